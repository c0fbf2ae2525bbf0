"""Logs that would be taken for another's beginning, and followers that would be drowned."""

from __future__ import annotations

import pytest

from memsvc.domain.replication import Lag, Standing, Verdict, Window, judge

A, B = "a" * 32, "b" * 32


def at(position: int, epoch: int = 1, store: str = A) -> Standing:
    return Standing(store, epoch, position, bytes([position % 256]) * 16)


@pytest.mark.parametrize(
    ("follower", "same", "verdict"),
    [
        (Standing(), False, Verdict.FOLLOW),
        (at(0, 0), False, Verdict.FOLLOW),
        (at(5), True, Verdict.FOLLOW),
        (at(10, 2), True, Verdict.FOLLOW),
        (at(5), False, Verdict.FORKED),
        (at(5, store=B), True, Verdict.FORKED),
        (at(0, 0, B), False, Verdict.FORKED),
        (at(11, 2), False, Verdict.AHEAD),
        (at(11, 1), False, Verdict.FORKED),
        (at(5, 3), True, Verdict.AHEAD),
    ],
)
def test_only_a_beginning_of_the_log_is_continued(
    follower: Standing, same: bool, verdict: Verdict
) -> None:
    found, reason = judge(at(10, 2), follower, same)
    assert found is verdict
    assert reason


def test_no_more_is_sent_than_the_window_holds_but_one_message_always_is() -> None:
    window = Window(100)
    assert window.open
    window.sent(3, 1_000)
    assert not window.open
    window.acknowledged(2)
    assert not window.open
    window.acknowledged(3)
    assert window.open and window.in_flight == 0


def test_an_acknowledgement_stands_for_everything_before() -> None:
    window = Window(100)
    for position in range(1, 10):
        window.sent(position, 30)
    window.acknowledged(7)
    assert window.in_flight == 60
    window.acknowledged(7)
    assert window.in_flight == 60


def test_lag_is_told_while_behind_and_while_nothing_is_heard() -> None:
    lag = Lag(applied=5, level_at=1_000)
    assert lag.milliseconds(1_500, 2_000) == 500
    lag.heard(5, 2_000)
    assert (lag.positions, lag.milliseconds(3_000, 2_000)) == (0, 0)
    assert lag.milliseconds(9_000, 2_000) == 7_000
    lag.heard(9, 9_500)
    assert (lag.positions, lag.milliseconds(9_600, 2_000)) == (4, 7_600)
    lag.reached(8, 9_700)
    assert lag.positions == 1
    lag.reached(9, 9_800)
    assert (lag.positions, lag.milliseconds(9_900, 2_000)) == (0, 0)
