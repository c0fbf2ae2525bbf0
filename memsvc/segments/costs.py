"""What a search costs on this machine, measured at start-up for the planner."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from memsvc.segments.quantise import int8_dots

_BYTES: Final = 16 << 20
"""Read by each measurement. More than most caches leave to one core; larger arrays would
take longer to fill than the measuring may take."""
_GATHERED: Final = 2048
_DIMENSION: Final = 1024

_BYTES_PER_NUMBER: Final = {"f32": 4, "bf16": 2, "f16": 2, "i8": 1}


@dataclass(frozen=True, slots=True)
class ScanCosts:
    """Nanoseconds for one number (component) of one row, and for a call.

    ``scan``: reading rows one after the other; ``gather``: rows here and there; each for
    float32 rows and their 8-bit copy. ``hop``: a row met in a graph, for one byte of it.
    ``call``: what any search costs before its first row.
    """

    scan_f32: float
    gather_f32: float
    scan_i8: float
    gather_i8: float
    hop: float
    call: float

    def exact_ns(
        self, matching: int, vectors: int, dimension: int, quantised: bool, keep: int = 200
    ) -> float:
        """Nanoseconds of ``VectorRows.scan`` over ``matching`` of ``vectors`` rows. The
        matching ones are taken to be spread evenly, which is the dearest case."""
        if quantised and matching > 2 * keep:
            return self._read(matching, vectors, dimension, self.scan_i8, self.gather_i8) + (
                keep * dimension * self.gather_f32
            )
        return self._read(matching, vectors, dimension, self.scan_f32, self.gather_f32)

    def graph_ns(self, vectors: int, dimension: int, dtype: str, ef: int) -> float:
        """Nanoseconds of ``Graph.search`` over ``vectors`` nodes with candidate list ``ef``
        (at least the count asked for)."""
        met = nodes_met(vectors, ef)
        return self.call + met * dimension * _BYTES_PER_NUMBER[dtype] * self.hop

    def _read(
        self, matching: int, vectors: int, dimension: int, scan: float, gather: float
    ) -> float:
        return self.call + dimension * min(matching * gather, vectors * scan)


def nodes_met(vectors: int, ef: int) -> int:
    """Nodes of ``vectors`` that a graph search with candidate list ``ef`` looks at, about.
    Measured: each candidate brings some ten rows in that were not met before, whether m is 16 or
    32; the upper layers add a few hundred."""
    return min(vectors, 200 + 10 * ef)


def measure_costs() -> ScanCosts:
    """Takes the figures; about a tenth of a second and 50 MB for as long."""
    raw = np.random.default_rng(0).integers(0, 256, _BYTES, np.uint8)
    levels = raw.view(np.int8).reshape(-1, _DIMENSION)
    # The same bytes with the exponent made harmless.
    words = raw.view(np.uint32)
    words &= np.uint32(0x3FFFFFFF)
    floats = words.view(np.float32).reshape(-1, _DIMENSION)
    query8 = levels[0].copy()
    query = floats[0].copy()

    def dots_i8(rows: NDArray[Any]) -> None:
        int8_dots(rows, query8, np.empty(len(rows), np.float32))

    def dots_f32(rows: NDArray[Any]) -> None:
        np.vecdot(rows, query)

    return ScanCosts(
        scan_f32=_scan(floats, dots_f32),
        gather_f32=_gather(floats, dots_f32),
        scan_i8=_scan(levels, dots_i8),
        gather_i8=_gather(levels, dots_i8),
        hop=_gather(levels, dots_i8),
        call=50_000.0,
    )


def _best(work: Callable[[], object], repeats: int) -> float:
    """Nanoseconds of the fastest of some runs: others on the machine only make it slower."""
    fastest = float("inf")
    for _ in range(repeats):
        began = time.perf_counter_ns()
        work()
        fastest = min(fastest, time.perf_counter_ns() - began)
    return fastest


def _scan(rows: NDArray[Any], dots: Callable[[NDArray[Any]], None]) -> float:
    return _best(lambda: dots(rows), 3) / rows.size


def _gather(rows: NDArray[Any], dots: Callable[[NDArray[Any]], None]) -> float:
    picked = np.random.default_rng(1).permutation(len(rows))[: min(_GATHERED, len(rows) // 3)]
    into = np.empty((256, rows.shape[1]), rows.dtype)

    def work() -> None:
        for start in range(0, len(picked) - 255, 256):
            np.take(rows, picked[start : start + 256], axis=0, out=into, mode="clip")
            dots(into)

    return _best(work, 3) / (len(picked) // 256 * into.size)
