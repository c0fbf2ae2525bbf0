"""Best k of many scores, with ties in a fixed order."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

Index = NDArray[np.int64]
Sims = NDArray[np.float32]

_SORTED_WHOLE: Final = 512
"""Sorting so many is quicker than choosing among them first."""


def unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """A vector, float32 (dimension,), scaled to length 1. Raises ValueError for one without a
    finite length above zero."""
    # In float64, where no square of a float32 overflows or vanishes.
    wide = vector.astype(np.float64)
    length = float(np.sqrt(np.dot(wide, wide)))
    if not (np.isfinite(length) and length > 0):
        raise ValueError("vector has no direction")
    return (wide / length).astype(np.float32)


def cosines(rows: NDArray[np.float32], query: NDArray[np.float32]) -> Sims:
    """Dot products of unit rows, shape (n, dimension), with a unit query, float32 (n,).

    One product per row (not a matrix product, whose result for a row may depend on its
    neighbours), so that every path to a row gives it the same similarity to the last bit.
    """
    out: Sims = np.vecdot(rows, query)
    return out


def best(sims: NDArray[np.float32], rows: Index, k: int) -> tuple[Index, Sims]:
    """The k highest of ``sims`` with their ``rows``, best first; equal ones by row.

    Both arrays have shape (n,); the result (min(n, k),).
    """
    n = len(sims)
    if k <= 0:
        return rows[:0], sims[:0]
    if n > max(k, _SORTED_WHOLE):
        bound = np.partition(sims, n - k)[n - k]
        above = np.flatnonzero(sims > bound)
        level = np.flatnonzero(sims == bound)
        if len(level) > k - len(above):
            level = level[np.argsort(rows[level], kind="stable")[: k - len(above)]]
        chosen = np.concatenate((above, level))
        sims, rows = sims[chosen], rows[chosen]
    order = np.lexsort((rows, -sims))[:k]
    return rows[order], sims[order]
