"""Vectors as 8-bit integers, each row with a scale of its own.

A row is scaled so that its largest component becomes 127. For a 1536-d unit vector the
components then use some 38 levels either side (one standard deviation), ten times what a
fixed scale of 127 gives them, and a row with a few large components is not clipped. Cosine
distance does not see the scale, so a graph needs no record of it.

The scale that is kept is the one with which the product of a row and its own integers is
right. Components that are equal are all rounded the same way, so a row of a few different
numbers (counts of words, bits) would else come out longer or shorter than it is by more than
chance explains, and its nearest neighbours with it.
"""

from __future__ import annotations

import numkong
import numpy as np
from numpy.typing import NDArray


def quantise(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows, float32 (n, dimension), as int8 of the same shape and scales float32 (n,), so
    that ``row ~ scale * int8``. Zero rows give zeros."""
    largest = np.maximum(rows.max(axis=1, initial=0.0), -rows.min(axis=1, initial=0.0))
    # Of a unit row the largest is far above the floor, which is there for zeros.
    scales = np.maximum(largest, np.float32(1e-30)) / np.float32(127)
    levels = rows * (1 / scales)[:, None]
    np.rint(levels, out=levels)
    along = np.vecdot(levels, rows)
    np.divide(np.vecdot(rows, rows), along, out=scales, where=along > 0)
    return levels.astype(np.int8), scales.astype(np.float32)


Quantised = tuple[NDArray[np.int8], float]
"""One vector as 8-bit integers, and its scale."""


def quantise_one(vector: NDArray[np.float32]) -> Quantised:
    """The same for one vector, shape (dimension,), and to the same last bit; by scalars, which
    takes a third of the time."""
    largest = max(vector.max(initial=0.0), -vector.min(initial=0.0))
    scale = max(largest, np.float32(1e-30)) / np.float32(127)
    levels = vector * (1 / scale)
    np.rint(levels, out=levels)
    along = np.vecdot(levels, vector)
    if along > 0:
        scale = np.vecdot(vector, vector) / along
    return levels.astype(np.int8), float(scale)


def int8_dots(rows: NDArray[np.int8], query: NDArray[np.int8], out: NDArray[np.float32]) -> None:
    """Dot products of rows (n, dimension) with a query (dimension,) into ``out`` (n,).

    Exact up to float32's 24 bits. The interpreter is released meanwhile. numkong because
    numpy multiplies integers without vector instructions.
    """
    numkong.cdist(query[None, :], rows, "dot", out=out[None, :])
