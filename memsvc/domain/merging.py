"""When to seal, and what to merge: size-tiered, on neighbouring segments.

A segment belongs to the tier ``log_FAN(rows / seal_rows)``. FAN neighbours of one tier (or
below) become one of the next, so a row is rewritten once a tier and a partition has at
most FAN - 1 segments a tier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FAN: Final = 4
MAX_SEGMENTS: Final = 8
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


@dataclass(frozen=True, slots=True)
class Job:
    """Build one segment for [row_lo, row_hi) in place of ``replaces``."""

    row_lo: int
    row_hi: int
    replaces: tuple[str, ...]
    why: str


def tier(count: int, seal_rows: int) -> int:
    """Tier of a segment of ``count`` rows; 0 is what sealing makes."""
    if count < 2 * seal_rows:
        return 0
    return int(math.log(count / seal_rows, FAN) + 0.01)


def seal(sealed_row: int, next_row: int, least: int) -> Job | None:
    """The tail as a segment, when it has at least ``least`` rows."""
    rows = next_row - sealed_row
    if rows <= 0 or rows < least:
        return None
    return Job(sealed_row, next_row, (), f"seal {rows} rows")


def rewrite(segments: Sequence[Sealed]) -> Job | None:
    """The first segment that must be written anew, or that is mostly dead."""
    for s in segments:
        if s.must or (s.count and s.dead / s.count >= DEAD_SHARE):
            return Job(s.row_lo, s.row_hi, (s.name,), "rewrite" if s.must else "compact")
    return None


def merge(segments: Sequence[Sealed], seal_rows: int) -> Job | None:
    """The next merge of neighbours, None when the partition is in order."""
    live = [max(0, s.count - s.dead) for s in segments]
    tiers = [tier(count, seal_rows) for count in live]
    for level in range(max(tiers, default=0) + 1):
        start = 0
        while start < len(segments):
            end = start
            while end < len(segments) and tiers[end] <= level:
                end += 1
            if end - start >= FAN:
                return _join(segments[start:end], f"merge {end - start} of tier {level}")
            start = end + 1
    if len(segments) > MAX_SEGMENTS:
        # The cheapest pair of neighbours.
        at = min(range(len(segments) - 1), key=lambda i: live[i] + live[i + 1])
        return _join(segments[at : at + 2], f"more than {MAX_SEGMENTS} segments")
    return None


def merge_all(segments: Sequence[Sealed]) -> Job | None:
    """Everything into one segment."""
    return _join(segments, "merge all") if len(segments) > 1 else None


def _join(segments: Sequence[Sealed], why: str) -> Job:
    return Job(segments[0].row_lo, segments[-1].row_hi, tuple(s.name for s in segments), why)
