"""What moves between tiers, by its arithmetic alone."""

from __future__ import annotations

import numpy as np

from memsvc.domain import tiering
from memsvc.domain.manifest import COLD, HOT
from memsvc.domain.merging import Job, Sealed
from memsvc.domain.records import STATE_DTYPE, State
from memsvc.domain.tiering import Census

ROWS = 1_001
"""Row 0 is none."""


def census(old: range = range(0), hot: range = range(1, ROWS), cold: range = range(0)) -> Census:
    """All rows live; those of ranges old, and in files of a tier."""
    masks = []
    for rows in (old, hot, cold):
        mask = np.zeros(ROWS, np.bool_)
        mask[rows.start : rows.stop] = True
        masks.append(mask)
    live = np.ones(ROWS, np.bool_)
    live[0] = False
    return Census(live, *masks)


def hot(lo: int, hi: int, count: int | None = None) -> Sealed:
    return Sealed(f"h{lo}", lo, hi, hi - lo if count is None else count, tier=HOT)


def cold(lo: int, hi: int) -> Sealed:
    return Sealed(f"c{lo}", lo, hi, hi - lo, tier=COLD)


def test_old_rows_join_a_cold_segment_and_then_leave_the_hot_one() -> None:
    job = tiering.plan(census(old=range(1, 801)), [hot(1, ROWS)])
    assert job == Job(1, 801, (), "800 rows for the cold tier", tier=COLD)
    both = census(old=range(1, 801), cold=range(1, 801))
    job = tiering.plan(both, [hot(1, ROWS), cold(1, 801)])
    assert job == Job(1, ROWS, ("h1",), "0 rows back to the hot tier, 800 out of it")
    done = census(old=range(1, 801), hot=range(801, ROWS), cold=range(1, 801))
    assert tiering.plan(done, [hot(1, ROWS, 200), cold(1, 801)]) is None


def test_a_hundredth_is_not_worth_a_rewrite_and_one_row_more_is() -> None:
    assert tiering.plan(census(old=range(1, 11)), [hot(1, ROWS)]) is None
    assert tiering.plan(census(old=range(1, 12)), [hot(1, ROWS)]) is not None
    # Several hot segments become one in any case.
    job = tiering.plan(census(old=range(1, 2)), [hot(1, 500), hot(500, ROWS)])
    assert job == Job(1, 2, (), "1 row for the cold tier", tier=COLD)


def test_one_recalled_row_is_worth_it() -> None:
    found = census(old=range(2, 801), hot=range(801, ROWS), cold=range(1, 801))
    job = tiering.plan(found, [hot(1, ROWS, 200), cold(1, 801)])
    assert job == Job(1, ROWS, ("h1",), "1 row back to the hot tier, 0 out of it")


def test_rows_within_a_cold_segment_join_it_when_they_are_enough() -> None:
    segments = [hot(1, ROWS), cold(1, ROWS)]
    few = census(old=range(1, ROWS), hot=range(1, 11), cold=range(11, ROWS))
    assert tiering.plan(few, segments) is None
    more = census(old=range(1, ROWS), hot=range(1, 12), cold=range(12, ROWS))
    job = tiering.plan(more, segments)
    assert job == Job(1, ROWS, ("c1",), "11 rows more for the cold tier", tier=COLD)


def test_further_cold_rows_get_a_segment_behind_the_others() -> None:
    found = census(old=range(1, 901), hot=range(501, ROWS), cold=range(1, 501))
    job = tiering.plan(found, [hot(1, ROWS, 500), cold(1, 501)])
    assert job == Job(501, 901, (), "400 rows for the cold tier", tier=COLD)


def test_dead_rows_move_nowhere() -> None:
    found = census(old=range(1, ROWS))
    found.live[:] = False
    assert tiering.plan(found, [hot(1, ROWS)]) is None


def test_every_live_row_is_needed_by_the_tier_it_belongs_to() -> None:
    """Whatever the ages and files, no two segments may both leave a row out."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        live, old, in_hot, in_cold = rng.random((4, ROWS)) < 0.5
        found = Census(live, old, in_hot, in_cold)
        left_out = live & ~found.needed(HOT) & ~found.needed(COLD)
        assert not left_out.any()
        assert not (found.to_chill & found.to_warm).any()


def test_the_age_of_a_memory_begins_anew_with_a_recall_or_when_it_is_said_again() -> None:
    states = np.zeros(3, STATE_DTYPE)
    states["ts"] = (100, 300, 100)
    states["recalled_at"] = (100, 100, 500)
    assert tiering.last_used(states).tolist() == [100, 300, 500]
    each = [State(*state.tolist()) for state in states]
    assert [tiering.is_cold(state, 301) for state in each] == [True, True, False]
    assert not any(tiering.is_cold(state, 0) for state in each)
