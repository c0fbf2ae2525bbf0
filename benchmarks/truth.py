"""Exact neighbours by brute force, and recall against them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]
TIE = 1e-6
"""Rows this close to the last true neighbour count as neighbours: order among equals is
nobody's error."""


def kth_similarity(
    vectors: Floats, queries: Floats, k: int, masks: Sequence[Mask | None] | None = None
) -> NDArray[np.float32]:
    """Similarity of the k-th exact neighbour of each query, float32; -2 where fewer than k
    rows match. ``masks``: for each query the rows that count."""
    found = np.empty(len(queries), np.float32)
    step = max(1, 100_000_000 // max(1, 4 * len(vectors)))
    for low in range(0, len(queries), step):
        sims = queries[low : low + step] @ vectors.T
        for i, row in enumerate(sims, low):
            mask = masks[i] if masks is not None else None
            if mask is not None:
                row = row[mask]
            found[i] = np.partition(row, len(row) - k)[len(row) - k] if len(row) >= k else -2.0
    return found


def recall(
    vectors: Floats, query: Floats, found: Sequence[int], kth: float, k: int, matches: int
) -> float:
    """Share of the min(k, matches) true neighbours among the first k rows found; ``kth`` as
    from ``kth_similarity``. 1 when nothing matches."""
    wanted = min(k, matches)
    if not wanted:
        return 1.0
    rows = np.array(list(dict.fromkeys(found[:k])), np.int64)
    if not len(rows):
        return 0.0
    right = int(np.count_nonzero(vectors[rows] @ query >= kth - TIE))
    return min(right, wanted) / wanted
