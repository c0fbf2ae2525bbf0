"""Where the rows of a partition with more than one tier are, read from records and files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.manifest import COLD, HOT, SegmentMeta
from memsvc.domain.records import FLAG_CURRENT, FLAG_ERASED
from memsvc.domain.tiering import Census, last_used
from memsvc.segments.tiers import rows_of
from memsvc.store.snapshot import Snapshot


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """A census, and the rows by which it was taken: those in the files of each segment by its
    name, int64; None where no file tells."""

    census: Census
    held: dict[str, NDArray[np.int64] | None]

    def dead(self, meta: SegmentMeta) -> int:
        """Rows of a segment that nobody sees, or that the other tier answers for."""
        rows = self.held[meta.name]
        if rows is None:
            return 0
        return len(rows) - int(np.count_nonzero(self.census.needed(meta.tier)[rows]))

    def anywhere(self, row: int) -> bool:
        """Whether any segment may have a row."""
        return any(self._has(name, row) for name in self.held)

    def holds(self, meta: SegmentMeta, row: int) -> bool:
        """Whether a segment has a row in its files, or may have it."""
        return meta.row_lo <= row < meta.row_hi and self._has(meta.name, row)

    def _has(self, name: str, row: int) -> bool:
        rows = self.held[name]
        if rows is None:
            return True
        at = int(np.searchsorted(rows, row))
        return at < len(rows) and int(rows[at]) == row


def take_census(
    snapshot: Snapshot, root: Path, metas: Iterable[SegmentMeta], sealed_row: int, cold_before: int
) -> Standing:
    """Counts the rows [1, sealed_row) of a partition whose segments, ``metas``, are in ``root``.
    Some 0.1 s for 100,000 rows."""
    held: dict[str, NDArray[np.int64] | None] = {}
    inside = {HOT: np.zeros(sealed_row, np.bool_), COLD: np.zeros(sealed_row, np.bool_)}
    number = 0
    for meta in metas:
        number = meta.partition
        rows = held[meta.name] = rows_of(root, meta.name)
        if rows is not None:
            inside[meta.tier][rows] = True
    rows, states = snapshot.state_range(number, 1, sealed_row)
    live, old = np.zeros(sealed_row, np.bool_), np.zeros(sealed_row, np.bool_)
    live[rows] = states["flags"] & (FLAG_CURRENT | FLAG_ERASED) == FLAG_CURRENT
    old[rows] = last_used(states) < cold_before
    return Standing(Census(live, old, inside[HOT], inside[COLD]), held)
