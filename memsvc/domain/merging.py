"""When to seal, and what to merge: neighbours of similar size.

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

FAN: Final = 4
"""Neighbours of similar size at which they are merged."""
BALANCED: Final = 0.5
"""Share of the largest in a run up to which its members are of similar size."""
MAX_SEGMENTS: Final = 8
CROWDED: Final = 2
"""Tails of so many times the rows that are sealed, and so many times the most segments, tell that
building has fallen behind: it is to go on as fast as can be."""
DEAD_SHARE: Final = 0.4
"""Share of rows nobody can see any more at which a segment is written anew."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A segment as the policy sees it: rows of [row_lo, row_hi), of which ``count`` were
    put in; ``dead`` of these are gone by now; ``must`` = write anew in any case (files are
    damaged, or rows in it are to be erased)."""

    name: str
    row_lo: int
    row_hi: int
    count: int
    dead: int = 0
    must: bool = False
    tier: str = HOT


@dataclass(frozen=True, slots=True)
class Job:
    """Build one segment of a ``tier`` for [row_lo, row_hi) in place of ``replaces``; ``calmly``
    when nobody waits for it."""

    row_lo: int
    row_hi: int
    replaces: tuple[str, ...]
    why: str
    calmly: bool = False
    tier: str = HOT


def seal(sealed_row: int, next_row: int, least: int) -> Job | None:
    """The tail as a segment, when it has at least ``least`` rows; calmly while it has not many
    more."""
    rows = next_row - sealed_row
    if rows <= 0 or rows < least:
        return None
    return Job(sealed_row, next_row, (), f"seal {rows} rows", calmly=rows < CROWDED * least)


def rewrite(segments: Sequence[Sealed]) -> Job | None:
    """The first segment that must be written anew, or that is mostly dead."""
    for s in segments:
        if s.must or (s.count and s.dead / s.count >= DEAD_SHARE):
            why = "rewrite" if s.must else "compact"
            return Job(s.row_lo, s.row_hi, (s.name,), why, tier=s.tier)
    return None


def merge(segments: Sequence[Sealed], most: int = MAX_SEGMENTS) -> Job | None:
    """The next merge of neighbours, None when the partition is in order.

    The smallest balanced run of at least FAN; with more than ``most`` segments the run in which
    the largest is the smallest share, whatever its length.
    """
    live = [max(0, s.count - s.dead) for s in segments]
    runs = [_Run.of(live, i, j) for i in range(len(live)) for j in range(i + 2, len(live) + 1)]
    calmly = len(segments) < CROWDED * MAX_SEGMENTS
    balanced = [run for run in runs if run.length >= FAN and run.share <= BALANCED]
    if balanced:
        run = min(balanced, key=lambda r: (r.rows, r.share))
        why = f"merge {run.length} of similar size"
        return _join(segments[run.start : run.end], why, calmly=calmly)
    if len(segments) > most:
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
