"""How hard data is to search: figures of recall mean nothing without it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Difficulty:
    """``lid``: local intrinsic dimension around the queries, median; ``contrast``: mean
    distance over nearest distance (He et al., 2012), median; near 1 is hopeless."""

    rows: int
    dimension: int
    lid: float
    contrast: float
    queries: int

    def __str__(self) -> str:
        return (
            f"{self.rows:,} x {self.dimension}, local intrinsic dimension {self.lid:.1f}, "
            f"relative contrast {self.contrast:.2f} (medians over {self.queries} queries)"
        )


def local_dimension(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Levina and Bickel's estimate for each query from its k nearest distances, ascending,
    shape (queries, k). Distances of 0 are left out; NaN where fewer than two are left."""
    found = np.full(len(distances), np.nan)
    for i, row in enumerate(distances):
        row = row[row > 0]
        if len(row) < 2:
            continue
        logs = np.log(row[-1] / row[:-1])
        if logs.sum() > 0:
            found[i] = (len(row) - 1) / logs.sum()
    return found


def difficulty(vectors: Floats, queries: Floats, k: int = 40, sample: int = 200) -> Difficulty:
    """Of unit vectors, seen from the first ``sample`` unit queries, by Euclidean distance."""
    asked = queries[:sample]
    cosines = (asked @ vectors.T).astype(np.float64)
    distances = np.sqrt(np.maximum(2 - 2 * cosines, 0))
    k = min(k, len(vectors))
    nearest = np.sort(np.partition(distances, k - 1, axis=1)[:, :k], axis=1)
    first = nearest[:, 0]
    contrast = distances.mean(axis=1) / np.where(first > 1e-6, first, np.nan)
    return Difficulty(
        len(vectors),
        vectors.shape[1],
        float(np.nanmedian(local_dimension(nearest))),
        float(np.nanmedian(contrast)),
        len(asked),
    )
