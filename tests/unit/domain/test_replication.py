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
    lag.reached(8)
    assert lag.positions == 1
    lag.reached(9)
    assert (lag.positions, lag.milliseconds(9_900, 2_000)) == (0, 0)


def test_lag_under_steady_writes_is_the_age_of_the_oldest_missing_entry() -> None:
    """The newest position that was told is never applied while writing goes on."""
    lag = Lag(applied=0, level_at=0)
    for tick in range(1, 2_000):
        lag.heard(10 * tick, 100 * tick)
        lag.reached(10 * tick - 30)  # three tellings behind, for ever
    now = 100 * 2_000
    assert lag.positions == 30
    assert lag.milliseconds(now, 2_000) == 400


def test_lag_of_a_follower_that_is_far_behind_stays_right_and_small_in_memory() -> None:
    lag = Lag(applied=0, level_at=1_000)
    for tick in range(1, 10_000):
        lag.heard(tick, 1_000 + tick)
    assert lag.milliseconds(20_000, 2_000) == 19_000
    assert len(lag._ahead) <= 256
    lag.reached(5_000)
    # What was thinned out makes it look a little older than it is, never younger.
    assert 14_000 <= lag.milliseconds(20_000, 2_000) <= 14_000 + 100
    lag.reached(9_999)
    assert lag.milliseconds(11_500, 2_000) == 0


def test_a_follower_that_has_heard_of_nobody_is_not_level_whatever_its_clock_says() -> None:
    # The last entry was made by a clock that is an hour ahead.
    lag = Lag(applied=5, level_at=3_600_000)
    assert lag.milliseconds(1_000, 500) > 0
    lag.heard(5, 1_000)
    assert lag.milliseconds(1_000, 500) == 0
