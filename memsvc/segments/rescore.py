"""The best rows by true cosine, found through rough ones from 8-bit numbers.

No fixed number of candidates would do: in a tight cluster hundreds of rows are nearer to each
other than the rough cosines are to the true ones. So all rows that the error may hide are
scored exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from memsvc.segments.topk import Index, Sims, best

FIRST_LEAST: Final = 64
"""Rows that are scored exactly at first, to know the k-th best cosine: max(2 k, 64)."""
COPY_LEAST: Final = 4
"""The 8-bit copy is read when this many times more rows match than are scored exactly anyway."""
SHARE_MAX: Final = 1 / 3
"""Share of rows to be scored exactly above which scoring all of them, in order, is cheaper."""
_SIGMAS: Final = 6.0
ANY: Final = -2.0
"""A floor below every cosine: no row may be left out."""

Exact = Callable[[Index], tuple[Index, Sims]]
"""Scores some rows (ascending): the rows in any order, and their cosines in the same."""


def first_count(k: int) -> int:
    """Rows that are scored exactly in any case."""
    return max(2 * k, FIRST_LEAST)


def through_copy(matching: int, k: int) -> bool:
    """Whether so many rows are first looked at in their 8-bit copies."""
    return matching > COPY_LEAST * first_count(k)


def margins(scales: NDArray[np.float32], query_scale: float) -> NDArray[np.float32]:
    """How far the rough cosine of each row may be from the true one, shape of ``scales``.

    A component rounded to a multiple of s is off by up to s / 2, evenly spread: its variance
    is s^2 / 12. In the product of unit vectors the errors of a row's components are weighted
    with the query's and the other way round, so the variance of the sum is (row scale^2 +
    query scale^2) / 12. Six standard deviations; the largest of 100,000 is at some 4.4.
    It also holds for what a graph gives, whatever its dtype: wider numbers are off by less, and
    one of 8 bits divides by the lengths of the rounded vectors, which is no more (at most 0.7 of
    the margin in vectors of 2 to 1,536 numbers, clustered, sparse or with one large number).
    """
    out = scales * scales
    out += np.float32(query_scale * query_scale)
    np.sqrt(out, out=out)
    out *= np.float32(_SIGMAS / np.sqrt(12))
    return out


def rescored(
    rough: Sims,
    rows: Index | None,
    scales: NDArray[np.float32],
    query_scale: float,
    k: int,
    exact: Exact,
    floor: float = ANY,
) -> tuple[Index, Sims] | None:
    """The k best of ``rows`` by true cosine, best first, equal ones by row. Rows below
    ``floor`` may be left out.

    ``rough`` (n,): cosines of the 8-bit copies, overwritten; ``rows`` (n,) their numbers, None
    for 0 to n-1; ``scales`` (n,) their scales. k is above 0. None when so many rows come into
    question that all should be scored.
    """
    count = len(rough)
    first = first_count(k)
    if count <= first:
        return None
    if floor > ANY:
        # Often the rows that other parts have given already leave next to none here.
        hopeful = np.flatnonzero(rough + margins(scales, query_scale) >= floor)
        if len(hopeful) <= first:
            found, sims = exact(hopeful if rows is None else rows[hopeful])
            return best(sims, found, k)
    places = np.argpartition(rough, count - first)[count - first :]
    found, sims = exact(np.sort(places if rows is None else rows[places]))
    kth = np.partition(sims, first - k)[first - k]
    rough += margins(scales, query_scale)
    possible = rough >= max(kth, floor)
    possible[places] = False
    rest = np.flatnonzero(possible)
    if len(rest) > SHARE_MAX * count:
        return None
    if len(rest):
        more, more_sims = exact(np.sort(rest if rows is None else rows[rest]))
        found, sims = np.concatenate((found, more)), np.concatenate((sims, more_sims))
    return best(sims, found, k)
