"""The vectors of a segment in one generation: exact scores, and exact search over any part.

Rows are float32 unit vectors. Larger segments keep an 8-bit copy beside them (the *scan*
file): a search over many rows is bound by memory, so reading a quarter of the bytes takes
a third of the time. Every row that its error may hide among the best is scored again from
float32 (`rescore`), so what is returned are the true neighbours with their true cosines.

Everything here speaks of *local* rows: 0 to count-1 in the order of the segment's rows,
also when only some of them have a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from memsvc.segments.errors import SegmentDamaged
from memsvc.segments.guarded import GuardedMatrix
from memsvc.segments.quantise import Quantised, int8_dots, quantise_one
from memsvc.segments.rescore import ANY, Exact, margins, rescored, through_copy
from memsvc.segments.topk import Index, Sims, best, cosines

Mask = NDArray[np.bool_]

DENSE: Final = 0.4
"""Share of matching rows in a block above which reading the whole block and dropping the
others is cheaper than gathering (measured; see DESIGN.md)."""
_SPAN_BYTES: Final = 4 << 20
_SPARSE: Final = 0.02
SHARED_LEAST_BYTES: Final = 8 << 20
"""Bytes to be read from which on two threads share a scan: some 0.5 ms."""

_Kernel = Callable[[NDArray[Any], NDArray[np.float32]], None]


def nothing_to_check() -> None:
    """For scans that are not to be interrupted."""


class VectorRows:
    """See the module. Safe for any number of threads.

    ``rows`` float32 (vectors, dimension); ``scan`` int8 of the same shape with ``scales``
    float32 (vectors,), or None; ``local`` int32 (vectors,) ascending: the local row of each
    vector, None when every row has one; ``count`` rows of the segment.
    """

    def __init__(
        self,
        rows: GuardedMatrix,
        scan: GuardedMatrix | None,
        scales: NDArray[np.float32] | None,
        local: NDArray[np.int32] | None,
        count: int,
    ) -> None:
        self.dimension = rows.width
        self.vectors = rows.count
        self.count = count
        self._rows = rows
        self._scan = scan
        self._scales = scales
        self._local = local
        self._vector_of: NDArray[np.int64] | None = None
        if local is not None:
            self._vector_of = np.full(count, -1, np.int64)
            self._vector_of[local] = np.arange(len(local))

    @property
    def present(self) -> Mask | None:
        """Which local rows have a vector, bool (count,); None when all have."""
        return None if self._vector_of is None else self._vector_of >= 0

    @property
    def quantised(self) -> bool:
        """Whether large scans read the 8-bit copy."""
        return self._scan is not None

    def unit_vectors(self, local: Index) -> NDArray[np.float32]:
        """The stored unit vectors of some local rows that all have one, float32 (n, dimension),
        copied. Raises SegmentDamaged."""
        vectors = local if self._vector_of is None else self._vector_of[local]
        return self._rows.take(vectors).copy()

    def hopeful(self, local: Index, rough: Sims, query_scale: float, floor: float) -> Index:
        """Those of some local rows, all with a vector, whose true cosine may reach ``floor``.
        ``rough``: their cosines by 8-bit or wider numbers, as a graph gives them. All of them
        where there is no 8-bit copy, whose scales tell how far off those may be."""
        scales = self._scales
        if floor <= ANY or scales is None:
            return local
        vectors = local if self._vector_of is None else self._vector_of[local]
        return local[rough + margins(scales[vectors], query_scale) >= floor]

    def score(self, local: Index, query: NDArray[np.float32]) -> Sims:
        """Cosine of each of some local rows with a unit query: float32, shape of ``local``,
        NaN for rows without a vector. Raises SegmentDamaged."""
        vectors = local if self._vector_of is None else self._vector_of[local]
        if self._vector_of is None:
            return self._score(vectors, query)
        sims = np.full(len(local), np.nan, np.float32)
        has = vectors >= 0
        sims[has] = self._score(vectors[has], query)
        return sims

    def scan(
        self,
        query: NDArray[np.float32],
        match: Mask | Index | None,
        k: int,
        check: Callable[[], None] = nothing_to_check,
        *,
        floor: float = ANY,
        full_precision: bool = False,
        beside: Executor | None = None,
        quantised: Quantised | None = None,
    ) -> tuple[Index, Sims]:
        """The k rows most similar to a unit query among the matching ones, best first; rows
        whose cosine is below ``floor`` may be left out.

        ``match``: bool (count,), or ascending local rows, or None for all. ``check`` is
        called at least every few milliseconds, also by another thread, and may raise to stop;
        a thread of ``beside`` takes half of what is much to read. Returns local rows and their
        cosines, both of shape (min(k, matching rows with a vector),), or fewer with a floor.
        ``quantised`` is what ``quantise_one`` makes of the query, where that is known.
        Equal cosines are ordered by row. Raises SegmentDamaged.
        """
        vectors = self._matching(match)

        def dots(rows: NDArray[Any], out: NDArray[np.float32]) -> None:
            np.vecdot(rows, query, out=out)

        def exact(some: Index | None) -> tuple[Index, Sims]:
            found, sims = _shared(self._rows, dots, _given(some, self.vectors), check, beside)
            # Not asarray, which takes a range apart number by number: 6 ms for 20,000.
            return np.arange(len(found)) if isinstance(found, range) else found, sims

        best_rows = None
        if not full_precision and k > 0:
            known = quantised or quantise_one(query)
            best_rows = self._through_copy(known, vectors, k, check, exact, floor, beside)
        if best_rows is None:
            found, sims = exact(vectors)
            best_rows = best(sims, found, k)
        found, sims = best_rows
        return (found if self._local is None else self._local[found].astype(np.int64)), sims

    def _through_copy(
        self,
        quantised: Quantised,
        vectors: Index | None,
        k: int,
        check: Callable[[], None],
        exact: Exact,
        floor: float,
        beside: Executor | None,
    ) -> tuple[Index, Sims] | None:
        """The k best of the vectors (ascending; None = all) through the 8-bit copy; None when
        that is no gain: they are few, too close to each other, or there is no copy."""
        scan, scales = self._scan, self._scales
        matching = self.vectors if vectors is None else len(vectors)
        if scan is None or scales is None or not through_copy(matching, k):
            return None
        query8, query_scale = quantised

        def dots(rows: NDArray[Any], out: NDArray[np.float32]) -> None:
            int8_dots(rows, query8, out)

        try:
            found, rough = _shared(scan, dots, _given(vectors, self.vectors), check, beside)
        except SegmentDamaged:
            # Known to the segment by now. The float32 rows hold everything the copy did.
            self._scan = None
            return None
        some = None if isinstance(found, range) else found
        mine = scales if some is None else scales[some]
        rough *= mine
        rough *= np.float32(query_scale)
        return rescored(rough, some, mine, query_scale, k, exact, floor)

    def _score(self, vectors: Index, query: NDArray[np.float32]) -> Sims:
        step = self._rows.chunk_rows
        if len(vectors) <= step:
            return cosines(self._rows.take(vectors), query)
        return np.concatenate(
            [
                cosines(self._rows.take(vectors[start : start + step]), query)
                for start in range(0, len(vectors), step)
            ]
        )

    def _matching(self, match: Mask | Index | None) -> Index | None:
        """Ascending vector numbers of the matching local rows; None = all."""
        if match is None:
            return None
        if match.dtype == np.bool_:
            return np.flatnonzero(match if self._local is None else match[self._local])
        if self._vector_of is None:
            return match.astype(np.int64, copy=False)
        vectors = self._vector_of[match]
        return vectors[vectors >= 0]


def _given(rows: Index | None, count: int) -> Index | range:
    return range(count) if rows is None else rows


def _shared(
    matrix: GuardedMatrix,
    kernel: _Kernel,
    rows: Index | range,
    check: Callable[[], None],
    beside: Executor | None,
) -> tuple[Index | range, NDArray[np.float32]]:
    """``_scan``, of which another thread does half when there is much to read and it has
    time."""
    half = len(rows) // 2
    if beside is None or len(rows) * matrix.row_bytes < SHARED_LEAST_BYTES:
        return _scan(matrix, kernel, rows, check)
    other = beside.submit(_scan, matrix, kernel, rows[half:], check)
    try:
        found, products = _scan(matrix, kernel, rows[:half], check)
    except BaseException:
        other.cancel()
        raise
    if other.cancel():
        rest, more = _scan(matrix, kernel, rows[half:], check)
    else:
        rest, more = other.result()
    if not isinstance(rows, range):
        rows = np.concatenate((found, rest))
    return rows, np.concatenate((products, more))


def _scan(
    matrix: GuardedMatrix, kernel: _Kernel, rows: Index | range, check: Callable[[], None]
) -> tuple[Index | range, NDArray[np.float32]]:
    """Dot products of some rows (ascending), in bounded pieces.

    Where matching rows are dense the whole stretch is read in place; elsewhere they are
    gathered. Returns the rows in the order of the products.
    """
    step = max(64, _SPAN_BYTES // max(matrix.row_bytes, 1))
    if isinstance(rows, range):
        out = np.empty(len(rows), np.float32)
        for low in range(rows.start, rows.stop, step):
            check()
            high = min(low + step, rows.stop)
            kernel(matrix.span(low, high), out[low - rows.start : high - rows.start])
        return rows, out
    found: list[Index] = []
    sims: list[NDArray[np.float32]] = []
    sparse = rows
    if len(rows) > _SPARSE * matrix.count:
        edges = np.arange(0, matrix.count + step, step)
        starts = np.searchsorted(rows, edges)
        dense = np.diff(starts) > DENSE * step
        products = np.empty(step, np.float32)
        for block in np.flatnonzero(dense).tolist():
            check()
            low, high = int(edges[block]), min(int(edges[block + 1]), matrix.count)
            kernel(matrix.span(low, high), products[: high - low])
            mine = rows[starts[block] : starts[block + 1]]
            found.append(mine)
            sims.append(products[mine - low])
        if found:
            sparse = rows[np.repeat(~dense, np.diff(starts))]
    for start in range(0, len(sparse), matrix.chunk_rows):
        check()
        piece = sparse[start : start + matrix.chunk_rows]
        products = np.empty(len(piece), np.float32)
        kernel(matrix.take(piece), products)
        found.append(piece)
        sims.append(products)
    if not found:
        return rows, np.empty(0, np.float32)
    return np.concatenate(found), np.concatenate(sims)
