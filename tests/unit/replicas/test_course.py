"""A follower's steps, as scripts of what happens to it."""

from __future__ import annotations

import pytest

from memsvc.domain.replication import Verdict
from replicas.course import FIRST_PAUSE_S, LONGEST_PAUSE_S, Course, Step


def test_it_probes_before_it_follows_and_after_every_loss() -> None:
    course = Course()
    assert course.step is Step.PROBE
    course.probed(Verdict.FOLLOW, "goes on")
    assert course.step is Step.FOLLOW
    course.lost("the network")
    assert course.step is Step.PAUSE and course.reason == "the network"
    course.paused()
    assert course.step is Step.PROBE


def test_pauses_grow_while_nothing_comes_and_begin_anew_after_entries() -> None:
    course = Course()
    pauses = []
    for _ in range(10):
        course.lost("gone")
        pauses.append(course.pause_s)
        course.paused()
    assert pauses[0] == FIRST_PAUSE_S and pauses[-1] == LONGEST_PAUSE_S
    assert pauses == sorted(pauses)
    course.probed(Verdict.FOLLOW, "")
    course.applied()
    course.lost("gone")
    assert course.pause_s == FIRST_PAUSE_S


def test_a_connection_that_is_lost_before_any_entry_is_no_reason_to_hurry() -> None:
    course = Course()
    course.lost("gone")
    course.paused()
    course.probed(Verdict.FOLLOW, "")
    course.lost("gone again")
    assert course.pause_s == 2 * FIRST_PAUSE_S


@pytest.mark.parametrize(
    ("verdict", "step"),
    [
        (Verdict.FORKED, Step.RESTORE),
        (Verdict.TOO_OLD, Step.HALT),
        (Verdict.AHEAD, Step.PAUSE),
    ],
)
def test_what_is_no_beginning_is_never_followed(verdict: Verdict, step: Step) -> None:
    course = Course()
    course.probed(verdict, "why")
    assert (course.step, course.reason) == (step, "why")


def test_a_difference_found_on_the_way_means_to_begin_anew_and_the_unknown_to_halt() -> None:
    course = Course()
    course.probed(Verdict.FOLLOW, "")
    course.differs("digest")
    assert course.step is Step.RESTORE
    other = Course()
    other.probed(Verdict.FOLLOW, "")
    other.unknown("format 9")
    assert other.step is Step.HALT
