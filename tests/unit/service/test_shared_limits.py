"""One bucket for a namespace, whichever process takes the call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from memsvc.domain.errors import ResourceExhausted
from memsvc.service.shared_limits import SETS, WAYS, SharedRateLimiter
from tests.unit.service.taking import taken

TAKER = """
import sys
from pathlib import Path
from memsvc.domain.errors import ResourceExhausted
from memsvc.service.shared_limits import SharedRateLimiter
limiter = SharedRateLimiter(Path(sys.argv[1]), 0.001, 300)
done = 0
for _ in range(500):
    try:
        limiter.take("t", "a")
        done += 1
    except ResourceExhausted:
        pass
print(done)
"""


def test_processes_at_once_take_no_more_than_the_burst_together(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TAKER, str(tmp_path / "limits")]
    takers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert sum(int(taker.communicate(timeout=60)[0]) for taker in takers) == 300


def test_rate_burst_and_delay_are_those_of_one_process(tmp_path: Path) -> None:
    now = [100.0]
    limiters = [
        SharedRateLimiter(tmp_path / "limits", 2.0, 5, clock=lambda: now[0]) for _ in range(2)
    ]
    assert taken(limiters[0], 3) + taken(limiters[1], 10) == 5
    assert taken(limiters[0], 10, "other") == 5
    with pytest.raises(ResourceExhausted) as refused:
        limiters[0].take("t", "a")
    assert (refused.value.reason, refused.value.retry_after_ms) == ("RATE_LIMITED", 500)
    now[0] += 1.0
    assert taken(limiters[1], 10) == 2
    for limiter in limiters:
        limiter.configure(0.0, 0)
    assert taken(limiters[0], 100) == 100


def test_more_namespaces_than_places_are_limited_all_the_same(tmp_path: Path) -> None:
    limiter = SharedRateLimiter(tmp_path / "limits", 0.001, 1)
    for number in range(2 * SETS * WAYS):
        agent = f"a{number}"
        assert taken(limiter, 2, agent) == 1
