"""What was forgotten leaves replicas, and snapshots and backups, byte by byte, in time.

Searched while the processes run; see patterns.py for what of a memory is searched for.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import harness as h
from tests.scenarios import patterns
from tests.scenarios import replication as r
from tests.waiting import until

DIMENSION = 64
ROWS = 300
PURGE_S = 8
"""What is promised of erasure in this test."""
MakeNode = Callable[..., h.Node]


def _fill(node: h.Node, numbers: range) -> dict[int, str]:
    items = [
        pb.WriteItem(
            memory=pb.Memory(
                content=f"geheimnis{n}inhalt: 東京 {n}。",
                summary=f"kurz{n}fassung",
                dedup_key=f"dedupkey-{n}-zz",
                vector=h.wire(h.vector(n, DIMENSION)),
            )
        )
        for n in numbers
    ]
    answer = h.write(node, items)
    return {n: result.id for n, result in zip(numbers, answer.results, strict=True)}


def _patterns(numbers: list[int]) -> patterns.Patterns:
    found: patterns.Patterns = {}
    for n in numbers:
        of_one = patterns.of_vector(h.vector(n, DIMENSION)) | patterns.of_text(
            f"geheimnis{n}inhalt", f"東京 {n}。", f"kurz{n}fassung", f"dedupkey-{n}-zz"
        )
        found |= {f"{n}: {name}": data for name, data in of_one.items()}
    return found


def _kinds(folder: Path, number: int) -> set[str]:
    """Names of the files that hold something of a memory."""
    found = patterns.found_in(folder, _patterns([number]))
    return {one.partition(": ")[0].rpartition("/")[2] for one in found}


def _assert_kept(folder: Path, number: int) -> None:
    found = patterns.found_in(folder, _patterns([number]))
    for name in ("geheimnis", "kurz", "raw float32"):
        assert any(name in one for one in found), f"{name} of {number} is not in {folder}"


@pytest.mark.parametrize("dtype", ["bf16", pytest.param("i8", marks=pytest.mark.soak)])
def test_what_is_forgotten_leaves_replicas_snapshots_and_later_backups(
    make_node: MakeNode, tmp_path: Path, dtype: str
) -> None:
    shared = {
        "index__dimension": DIMENSION,
        "index__dtype": dtype,
        "storage__seal_rows": 100_000,
        "lifecycle__purge_within_hours": PURGE_S / 3_600,
    }
    primary = r.make_primary(make_node, **shared).start()
    sealed = _fill(primary, range(ROWS))
    primary.maintain(seal_min_rows=1)
    # It begins with a copy of the primary's segments, and seals the rest itself.
    replica = r.make_replica(make_node, primary, **shared).start()
    tail = _fill(primary, range(ROWS, ROWS + 50))
    r.level(primary, replica)
    early = Path(primary.admin().TakeSnapshot(admin_pb.TakeSnapshotRequest(), timeout=60).path)
    victims, neighbours = [7, ROWS - 1, ROWS + 7], [8, ROWS + 8]
    for folder in (primary.data_dir, replica.data_dir, early):
        # The search is able to find them: in records and in segment files.
        assert _kinds(folder, 7) >= {"data.mdb", "rows-1.bin", "postings.bin"}, folder
        assert "data.mdb" in _kinds(folder, ROWS + 7)
    h.forget(primary, [{**sealed, **tail}[n] for n in victims])
    wanted = _patterns(victims)
    # The snapshot of before is below the primary's directory too.
    assert early.is_relative_to(primary.data_dir)
    for node in (primary, replica):
        until(
            lambda node=node: not patterns.found_in(node.data_dir, wanted),  # type: ignore[misc]
            120,
            lambda node=node: "\n".join(patterns.found_in(node.data_dir, wanted)[:9]),  # type: ignore[misc]
            every=0.5,
        )
    # Another has taken its place, or, on a machine too slow for what is promised here, none.
    assert not early.exists()
    backup = tmp_path / "backup"
    done = subprocess.run(
        [sys.executable, "-m", "memsvc.cli", "backup", "--to", str(backup), "--json",
         "--address", f"127.0.0.1:{primary.port}"],
        capture_output=True, text=True, cwd=h.REPOSITORY,
    )  # fmt: skip
    assert done.returncode == 0 and json.loads(done.stdout), done.stderr
    assert not patterns.found_in(backup, wanted)
    for number in neighbours:
        for folder in (primary.data_dir, replica.data_dir, backup):
            _assert_kept(folder, number)
    for node in (primary, replica):
        assert len(h.browse(node)) == ROWS + 50 - len(victims)
