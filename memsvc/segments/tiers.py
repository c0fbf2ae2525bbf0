"""Which rows a segment leaves out because one of the other tier has them.

Only rows that are in the other tier *and* belong there are left out, so every row is in at
least one segment whatever was built when. That holds as long as the others are still there
when the new segment is put into service, which the swap makes sure of.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.manifest import COLD
from memsvc.domain.records import State
from memsvc.domain.tiering import is_cold
from memsvc.segments import column_file, postings
from memsvc.segments.arrayfile import ArrayFile
from memsvc.segments.build import BuildSpec
from memsvc.segments.errors import BadFile, FilesUnavailable
from memsvc.segments.files import map_file


def rows_of(root: Path, name: str) -> NDArray[np.int64] | None:
    """Row numbers of the segment ``root / name``, int64, ascending, from the first of its files
    that can be read; None when none can."""
    for kind, version, array in (
        (column_file.KIND, column_file.VERSION, "rows"),
        (postings.KIND, postings.VERSION, "row_numbers"),
    ):
        try:
            data = map_file(root / name / f"{kind}.bin")
            return np.array(ArrayFile(data, kind, version, check_sums=True).array(array))
        except (BadFile, FilesUnavailable):
            continue
    return None


def belonging(spec: BuildSpec, root: Path) -> Callable[[int, State], bool]:
    """Whether a row is to be in the segment of ``spec``. A segment of the other tier that cannot
    be read counts as empty: a row may well be in both."""
    held = np.zeros(spec.row_hi - spec.row_lo, np.bool_)
    for name in spec.others:
        rows = rows_of(root, name)
        if rows is not None:
            inside = rows[(rows >= spec.row_lo) & (rows < spec.row_hi)]
            held[inside - spec.row_lo] = True

    def cold(row: int, state: State) -> bool:
        return is_cold(state, spec.cold_before) or not held[row - spec.row_lo]

    def hot(row: int, state: State) -> bool:
        return not (held[row - spec.row_lo] and is_cold(state, spec.cold_before))

    return cold if spec.tier == COLD else hot
