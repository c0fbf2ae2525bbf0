"""The bare libraries: what the service is measured against."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from numpy.typing import NDArray
from usearch.compiled import MetricKind
from usearch.index import Index as UsearchIndex

from memsvc.segments.graph import DTYPES
from memsvc.segments.quantise import quantise

Floats = NDArray[np.float32]
GROUP_MOST = 512
"""Items of a group commit at most, as in the service."""


def _index(dimension: int, dtype: str, m: int, ef_construction: int) -> UsearchIndex:
    return UsearchIndex(
        ndim=dimension,
        metric=MetricKind.Cos,
        dtype=DTYPES[dtype],
        connectivity=m,
        expansion_add=ef_construction,
    )


def _numbers(vectors: Floats, dtype: str) -> NDArray[Any]:
    # For i8 the integers of the service (a scale for each row): a bare cast is worse.
    return quantise(vectors)[0] if dtype == "i8" else vectors


def build(
    vectors: Floats, path: Path, dtype: str, m: int = 16, ef_construction: int = 200
) -> float:
    """Writes an index of all vectors, keys 0 to n-1; returns seconds, with one thread: two
    leave rows that no search reaches, and the recall is compared with ours."""
    index = _index(vectors.shape[1], dtype, m, ef_construction)
    began = time.perf_counter()
    index.add(np.arange(len(vectors), dtype=np.uint64), _numbers(vectors, dtype), threads=1)
    seconds = time.perf_counter() - began
    temporary = path.with_suffix(".tmp")
    index.save(temporary)
    temporary.rename(path)
    return seconds


class BareIndex:
    """A memory-mapped index, searched in this process with one thread."""

    def __init__(self, path: Path, dimension: int, dtype: str) -> None:
        self._dtype = dtype
        self._index = _index(dimension, dtype, 16, 200)
        self._index.view(path)

    def __len__(self) -> int:
        return len(self._index)

    def prepare(self, queries: Floats) -> NDArray[Any]:
        """Queries as ``search`` takes them."""
        return _numbers(queries, self._dtype)

    def search(self, query: NDArray[Any], k: int, ef: int) -> tuple[list[int], float]:
        """Rows found, and seconds of the search alone."""
        self._index.expansion_search = ef  # type: ignore[misc]  # has a setter
        began = time.perf_counter()
        matches = self._index.search(query, k, threads=1)
        seconds = time.perf_counter() - began
        return matches.keys.astype(np.int64).tolist(), seconds


def group_commits(folder: Path, payloads: list[bytes], group: int) -> NDArray[np.float64]:
    """Puts the payloads under 16-byte keys into a fresh LMDB, ``group`` a transaction, each
    with fsync. Returns the seconds of each commit with its puts."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = lmdb.open(str(folder), map_size=64 << 30, readahead=False, meminit=False)
    spent = []
    try:
        for low in range(0, len(payloads), group):
            began = time.perf_counter()
            with environment.begin(write=True) as transaction:
                for number, data in enumerate(payloads[low : low + group], low):
                    transaction.put(number.to_bytes(16, "big"), data, append=True)
            spent.append(time.perf_counter() - began)
    finally:
        environment.close()
    return np.array(spent)
