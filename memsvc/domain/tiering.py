"""Which memories are cold, and what moves between hot and cold segments.

A memory is *cold* when it neither arrived nor was recalled nor said again for
``lifecycle.cold_archive_after_days``: the clock that also lets importance decay. Moving it takes
two steps, each of which leaves every row in at least one segment: first a cold segment is built
that holds it too, then the hot one is written anew without it. Where a row stands in both, the
hot one answers. A memory that was recalled goes back in one step: a hot segment is built that
holds it, and the cold one is left as it is until enough of its rows are of no use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from memsvc.domain import merging
from memsvc.domain.manifest import COLD, HOT
from memsvc.domain.merging import Job, Sealed
from memsvc.domain.records import State
from memsvc.domain.wording import counted

MOVED_SHARE: Final = 0.01
"""Share of the rows of a segment that must have become cold for it to be written anew for
that alone."""
COLD_SEGMENTS: Final = 3
"""Most cold segments of a partition; together with the hot ones there are MAX_SEGMENTS."""

Mask = NDArray[np.bool_]


def last_used(states: NDArray[Any]) -> NDArray[np.int64]:
    """When each of some memories (STATE_DTYPE, shape (n,)) arrived, or was last recalled or
    said again: UTC ms."""
    used: NDArray[np.int64] = np.maximum(states["ts"], states["recalled_at"])
    return used


def is_cold(state: State, before: int) -> bool:
    """Whether a memory was last used before a time (UTC ms; 0 = never)."""
    return max(state.ts, state.recalled_at) < before


@dataclass(frozen=True, slots=True, eq=False)
class Census:
    """Where the rows of a partition are, as masks over row numbers, bool (sealed rows + 1,):
    ``live`` (current, with a payload), ``old`` (cold by time), ``in_hot`` and ``in_cold`` (in a
    file of a segment of that tier)."""

    live: Mask
    old: Mask
    in_hot: Mask
    in_cold: Mask

    @property
    def to_chill(self) -> Mask:
        """Cold rows that no cold segment has."""
        return self.live & self.old & ~self.in_cold

    @property
    def to_warm(self) -> Mask:
        """Warm rows that only a cold segment has."""
        return self.live & ~self.old & self.in_cold & ~self.in_hot

    def needed(self, tier: str) -> Mask:
        """Rows that a segment of this tier would be built with, if it had them now."""
        if tier == COLD:
            return self.live & ~(self.in_hot & ~self.old)
        return self.live & ~(self.in_cold & self.old)


def plan(census: Census, segments: Sequence[Sealed]) -> Job | None:
    """The next step that puts every row where it belongs, None when there is none worth taking.
    Cold rows join a cold segment first; then the hot segments become one without them."""
    hot, cold = of_tier(segments, HOT), of_tier(segments, COLD)
    return _chill(census, hot, cold) or _hot_without(census, hot)


def of_tier(segments: Sequence[Sealed], tier: str) -> list[Sealed]:
    """The segments of one tier."""
    return [s for s in segments if s.tier == tier]


def _chill(census: Census, hot: Sequence[Sealed], cold: Sequence[Sealed]) -> Job | None:
    rows = np.flatnonzero(census.to_chill)
    for s in cold:
        inside = int(np.count_nonzero((rows >= s.row_lo) & (rows < s.row_hi)))
        if inside > MOVED_SHARE * s.count:
            why = f"{counted(inside, 'row')} more for the cold tier"
            return Job(s.row_lo, s.row_hi, (s.name,), why, tier=COLD)
    behind = cold[-1].row_hi if cold else min((s.row_lo for s in hot), default=1)
    rows = rows[rows >= behind]
    # Several hot segments become one in any case.
    if not len(rows) or (len(hot) == 1 and len(rows) <= MOVED_SHARE * hot[0].count):
        return None
    why = f"{counted(len(rows), 'row')} for the cold tier"
    return Job(behind, int(rows[-1]) + 1, (), why, tier=COLD)


def _hot_without(census: Census, hot: Sequence[Sealed]) -> Job | None:
    if len(hot) != 1:
        return merging.merge_all(hot)
    only = hot[0]
    warm = int(np.count_nonzero(census.to_warm[only.row_lo : only.row_hi]))
    moved = int(np.count_nonzero(census.live & census.old & census.in_hot & census.in_cold))
    if warm or moved > MOVED_SHARE * only.count:
        why = f"{counted(warm, 'row')} back to the hot tier, {moved:,} out of it"
        return Job(only.row_lo, only.row_hi, (only.name,), why)
    return None
