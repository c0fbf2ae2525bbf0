"""A node goes by what its container or its unit may have, not by what the machine has."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from memsvc.service import cores
from memsvc.service.control_group import core_limit, memory_limit_bytes

GROUPS = "sys/fs/cgroup"


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_memory_limit_is_that_of_the_container(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path) == 0
    write(tmp_path, "proc/meminfo", "MemTotal:       1000 kB\nMemFree: 1 kB\n")
    assert memory_limit_bytes(tmp_path) == 1_024_000
    write(tmp_path, f"{GROUPS}/memory.max", "max\n")
    assert memory_limit_bytes(tmp_path) == 1_024_000
    write(tmp_path, f"{GROUPS}/memory.max", "500000\n")
    assert memory_limit_bytes(tmp_path) == 500_000


def test_limits_of_a_unit_of_systemd_are_found_where_its_group_is(tmp_path: Path) -> None:
    """The root group of a machine has no limits; those of a unit stand further down."""
    unit = "system.slice/memsvc@main.service"
    write(tmp_path, "proc/self/cgroup", f"1:name=systemd:/elsewhere\n0::/{unit}\n")
    write(tmp_path, f"{GROUPS}/{unit}/memory.max", "300000\n")
    write(tmp_path, f"{GROUPS}/{unit}/cpu.max", "150000 100000\n")
    assert memory_limit_bytes(tmp_path) == 300_000
    assert core_limit(tmp_path) == 1.5


def test_of_limits_above_each_other_the_tightest_counts(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/pods/one\n")
    write(tmp_path, f"{GROUPS}/pods/one/cpu.max", "400000 100000\n")
    write(tmp_path, f"{GROUPS}/pods/cpu.max", "50000 100000\n")
    assert core_limit(tmp_path) == 0.5
    write(tmp_path, f"{GROUPS}/pods/cpu.max", "max 100000\n")
    assert core_limit(tmp_path) == 4


@pytest.mark.parametrize("own", ["0::/../other", "0::/", "7:cpu:/old", "nonsense", ""])
def test_a_group_that_cannot_be_seen_is_that_of_the_root(own: str, tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", f"{own}\n")
    assert core_limit(tmp_path) == math.inf
    write(tmp_path, f"{GROUPS}/cpu.max", "200000 100000\n")
    assert core_limit(tmp_path) == 2


@pytest.mark.parametrize("text", ["", "max", "100000", "a b", "100000 0", "1 2 3"])
def test_what_is_no_limit_of_time_limits_nothing(text: str, tmp_path: Path) -> None:
    write(tmp_path, f"{GROUPS}/cpu.max", text)
    assert core_limit(tmp_path) == math.inf


@pytest.mark.parametrize(
    ("seen", "limit", "usable"),
    [(8, math.inf, 8), (8, 4.0, 4), (8, 1.5, 2), (8, 0.1, 1), (2, 4.0, 2)],
)
def test_a_container_with_part_of_the_cores_starts_no_readers_for_all(
    seen: int, limit: float, usable: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Affinity shows all cores of the machine where a container has the time of one."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(seen)))
    monkeypatch.setattr(cores, "core_limit", lambda: limit)
    assert cores.usable_cores() == usable
