"""Memory of a server under attack: what 20,000 hostile requests leave behind."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from tests.hostile.attack import Fortress

WARM_UP = 5_000
"""It grows by some 5 MB in the first twenty thousand and hardly in the next sixty; most of that in
the beginning."""
WARM_THREADS = 40
"""More than the server has, so that all of its threads have started."""
REQUESTS = 20_000
REST_S = 60.0
MOST_GROWTH = 1.05


def memory(pid: int) -> dict[str, int]:
    """Resident and private bytes of a process. Only what it has written: a page of a library
    counts as private, too, when no other process happens to have it mapped."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    kib = {name: int(size) for name, size in re.findall(r"^(\w+):\s+(\d+) kB", text, re.M)}
    return {"resident": kib["Rss"] << 10, "private": kib["Private_Dirty"] << 10}


def shown(found: dict[str, int]) -> str:
    return ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in found.items())


@pytest.mark.soak
def test_twenty_thousand_hostile_requests_leave_no_memory_behind(tmp_path: Path) -> None:
    fortress = Fortress(tmp_path / "fortress")
    try:
        fortress.start()
        fortress.attack(11, WARM_UP, threads=WARM_THREADS)
        time.sleep(REST_S / 2)
        before = memory(fortress.pid)
        started = time.monotonic()
        tally = fortress.attack(12, REQUESTS, threads=6)
        seconds = time.monotonic() - started
        busy = memory(fortress.pid)
        time.sleep(REST_S)
        after = memory(fortress.pid)
        print(f"\n{REQUESTS} requests in {seconds:.0f} s: {dict(sorted(tally.items()))}")  # noqa: T201
        print(f"before: {shown(before)}\nbusy: {shown(busy)}\nafter: {shown(after)}")  # noqa: T201
        fortress.check()
        for name, size in after.items():
            assert size <= before[name] * MOST_GROWTH, f"{name} grew"
    finally:
        fortress.close()
