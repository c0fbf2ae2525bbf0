"""The order in which maintenance works."""

from __future__ import annotations

import pytest

from memsvc.service.workqueue import COMPACT, WorkQueue

NEVER_S = 1e6
"""A pause that no test sees the end of."""


@pytest.fixture
def queue() -> WorkQueue:
    return WorkQueue()


def _fail(queue: WorkQueue, lane: str) -> int | None:
    number = queue.take(lane)
    assert number is not None
    queue.finished(lane, number, NEVER_S)
    return number


def test_a_partition_that_keeps_failing_does_not_stop_compaction(queue: WorkQueue) -> None:
    queue.add(7)
    queue.compact([7])
    assert _fail(queue, "merge") == 7
    assert queue.take("merge") == COMPACT


def test_one_that_failed_before_compaction_was_asked_for_is_not_waited_for(
    queue: WorkQueue,
) -> None:
    queue.add(7)
    assert _fail(queue, "merge") == 7
    queue.add(7)
    queue.compact([7])
    assert queue.take("merge") == COMPACT


def test_a_full_queue_does_not_stop_compaction(queue: WorkQueue) -> None:
    for number in range(1, 1_000):
        queue.add(number)
    queue.compact([500, 900])
    taken = []
    for _ in range(3):
        taken.append(queue.take("merge"))
        queue.finished("merge", taken[-1] or COMPACT)
    assert taken == [500, 900, COMPACT]
    assert queue.take("merge") == 1


def test_asking_again_and_again_does_not_put_compaction_off(queue: WorkQueue) -> None:
    queue.compact([7])
    assert queue.take("merge") == 7
    queue.compact([7])
    queue.finished("merge", 7)
    queue.compact([7])
    assert queue.take("merge") == COMPACT


def test_compaction_that_failed_waits_while_merges_go_on(queue: WorkQueue) -> None:
    queue.compact([])
    assert _fail(queue, "merge") == COMPACT
    assert not queue.compacting
    queue.add(3)
    assert queue.take("merge") == 3
    assert not queue.wait_idle(0)


def test_the_pause_of_one_that_failed_is_no_running_job_and_not_done_either(
    queue: WorkQueue,
) -> None:
    queue.add(7, "seal")
    _fail(queue, "seal")
    assert queue.running == 0
    assert queue.waiting == 1
    assert not queue.wait_idle(0)


def test_one_that_failed_is_tried_again_after_its_pause(queue: WorkQueue) -> None:
    queue.add(7, "seal")
    assert queue.take("seal") == 7
    queue.finished("seal", 7, 0.0)
    assert queue.take("seal") == 7
    queue.finished("seal", 7)
    assert queue.wait_idle(0)


def test_one_that_is_looked_at_while_it_fails_keeps_its_pause(queue: WorkQueue) -> None:
    queue.add(7, "merge")
    assert queue.take("merge") == 7
    queue.add(7, "merge")
    queue.finished("merge", 7, NEVER_S)
    queue.add(7, "merge")
    queue.add(8, "merge")
    assert queue.take("merge") == 8
    assert queue.waiting == 1


def test_lanes_end_when_the_queue_stops(queue: WorkQueue) -> None:
    queue.add(7)
    queue.stop()
    assert queue.take("merge") is None


def test_what_is_asked_for_meanwhile_is_not_struck_off(queue: WorkQueue) -> None:
    queue.ask([7], seal_min_rows=0, merge_all=True, purge=False)
    wish, sealing = queue.wish(7)
    queue.ask([7], seal_min_rows=0, merge_all=True, purge=True)
    queue.fulfilled("merge", 7, wish.asked, sealing)
    again, _ = queue.wish(7)
    assert again.merge_all
    assert again.purge
