"""Builder processes that take the processor from queries, or never get it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from memsvc.service.builder import Builder, BuilderFailed
from memsvc.store.store import Store

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="scheduling classes of Linux")


def policy_of(builder: Builder) -> int:
    process = builder._process
    assert process is not None and process.poll() is None
    return os.sched_getscheduler(process.pid)


def test_a_job_that_has_time_runs_when_nothing_else_does_and_an_urgent_one_does_not_wait(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    builder = Builder(tmp_path)
    try:
        for idle in (True, True, False, False, True):
            # A job it does not know is answered by the process all the same.
            with pytest.raises(BuilderFailed, match="unknown job"):
                builder.run({"job": "none"}, idle=idle)
            assert (policy_of(builder) == os.SCHED_IDLE) is idle
    finally:
        builder.stop()
        store.close()


def test_the_process_is_kept_from_one_job_to_the_next_of_its_kind(tmp_path: Path) -> None:
    store = Store(tmp_path)
    builder = Builder(tmp_path)
    pids = set()
    try:
        for _ in range(2):
            with pytest.raises(BuilderFailed, match="unknown job"):
                builder.run({"job": "none"}, idle=True)
            assert builder._process is not None
            pids.add(builder._process.pid)
    finally:
        builder.stop()
        store.close()
    assert len(pids) == 1
