"""When to seal, and what to merge: neighbours of similar size.

A tail is sealed together with the last segment while that is small: its rows are read again,
but only the new ones are linked into the graph, which is nearly all of the work. So there is
one small segment and not several, each of which a query would have to search, and merging begins
with larger ones.

Merging rewrites every row of the segments it joins, so it must not join many small ones to a
large one: each merge of a balanced run at least doubles the segment that a row is in, and a
row is rewritten some log2(rows / sealed rows) times at most. (Joining "this size or smaller"
looks alike but rewrites the largest segment with every few that are sealed: simulated, a row
of a partition sealed 600 times was written 100 times, this way 7.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from memsvc.domain.manifest import HOT
from memsvc.domain.wording import counted

FAN: Final = 4
"""Neighbours of similar size at which they are merged."""
BALANCED: Final = 0.5
"""Share of the largest in a run up to which its members are of similar size."""
MAX_SEGMENTS: Final = 8
GROWN_TAILS: Final = 6
"""Tails that one segment takes in before the next is begun. A row is so read again three times
at most before it is merged."""
GROWN_MAX: Final = 32_000
"""Rows up to which a segment is grown, however large tails may become."""
CROWDED: Final = 2
"""So many times the most segments tell that merging has fallen behind: it is to go on as fast as
can be."""
DEAD_SHARE: Final = 0.4
"""Share of rows nobody can see any more at which a segment is written anew."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A segment as the policy sees it: rows of [row_lo, row_hi), of which ``count`` were
    put in; ``dead`` of these are gone by now; ``must`` = write anew in any case (files are
    damaged, or rows in it are to be erased); ``fixed`` = not to be grown, since its graph is
    not to be taken over."""

    name: str
    row_lo: int
    row_hi: int
    count: int
    dead: int = 0
    must: bool = False
    tier: str = HOT
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Job:
    """Build one segment of a ``tier`` for [row_lo, row_hi) in place of ``replaces``; ``calmly``
    when nobody waits for it; ``grows`` when the only one that is replaced holds the first of
    these rows."""

    row_lo: int
    row_hi: int
    replaces: tuple[str, ...]
    why: str
    calmly: bool = False
    tier: str = HOT
    grows: bool = False


def growing(last: Sealed, seal_rows: int, more: int = 1) -> bool:
    """Whether the last segment may take in so many rows ``more``. Not where a row of it is dead:
    it would have to leave the graph, which takes as long as building one."""
    most = min(GROWN_TAILS * seal_rows, GROWN_MAX)
    return not (last.dead or last.must or last.fixed) and last.count + more <= most


def seal(
    sealed_row: int, next_row: int, least: int, seal_rows: int, last: Sealed | None = None
) -> Job | None:
    """The tail as a segment, when it has at least ``least`` rows, or with the ``last`` segment
    as one while that may grow. ``seal_rows`` is how many are usual."""
    rows = next_row - sealed_row
    if rows <= 0 or rows < least:
        return None
    why = f"seal {counted(rows, 'row')}"
    if last is not None and last.row_hi == sealed_row and growing(last, seal_rows, rows):
        return Job(last.row_lo, next_row, (last.name,), why, grows=True)
    return Job(sealed_row, next_row, (), why)


def rewrite(segments: Sequence[Sealed]) -> Job | None:
    """The first segment that must be written anew, or that is mostly dead."""
    for s in segments:
        if s.must or (s.count and s.dead / s.count >= DEAD_SHARE):
            why = "rewrite" if s.must else "compact"
            return Job(s.row_lo, s.row_hi, (s.name,), why, tier=s.tier)
    return None


def merge(
    segments: Sequence[Sealed], most: int = MAX_SEGMENTS, *, seal_rows: int = 0
) -> Job | None:
    """The next merge of neighbours, None when the partition is in order.

    The smallest balanced run of at least FAN; with more than ``most`` segments the run in which
    the largest is the smallest share, whatever its length. The last segment is left alone while
    it may grow.
    """
    crowded, calmly = len(segments) > most, len(segments) < CROWDED * MAX_SEGMENTS
    if segments and growing(segments[-1], seal_rows):
        segments = segments[:-1]
    live = [max(0, s.count - s.dead) for s in segments]
    runs = [_Run.of(live, i, j) for i in range(len(live)) for j in range(i + 2, len(live) + 1)]
    balanced = [run for run in runs if run.length >= FAN and run.share <= BALANCED]
    if balanced:
        run = min(balanced, key=lambda r: (r.rows, r.share))
        why = f"merge {run.length} of similar size"
        return _join(segments[run.start : run.end], why, calmly=calmly)
    if crowded and runs:
        run = min(runs, key=lambda r: (r.share, r.rows))
        why = f"more than {most} segments"
        return _join(segments[run.start : run.end], why, calmly=calmly)
    return None


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbours [start, end): their rows, and the share of the largest among them."""

    start: int
    end: int
    rows: int
    share: float

    @classmethod
    def of(cls, live: Sequence[int], start: int, end: int) -> _Run:
        rows = sum(live[start:end])
        return cls(start, end, rows, max(live[start:end]) / rows if rows else 0.0)

    @property
    def length(self) -> int:
        return self.end - self.start


def merge_all(segments: Sequence[Sealed]) -> Job | None:
    """Everything into one segment."""
    return _join(segments, "merge all") if len(segments) > 1 else None


def _join(segments: Sequence[Sealed], why: str, *, calmly: bool = False) -> Job:
    names = tuple(s.name for s in segments)
    first, last = segments[0], segments[-1]
    return Job(first.row_lo, last.row_hi, names, why, calmly, first.tier)
