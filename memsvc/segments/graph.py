"""The graph of a segment: a plain usearch file over unit vectors, searched memory-mapped.

Keys are local rows (0 to count-1 in the order of the segment's rows).
"""

from __future__ import annotations

import errno
import mmap
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from usearch.compiled import MetricKind, ScalarKind
from usearch.index import Index as UsearchIndex

from memsvc.segments.errors import BadFile, FilesUnavailable
from memsvc.segments.files import TEMPORARY_SUFFIX, checksum_of, map_file, publish
from memsvc.segments.quantise import Quantised, quantise, quantise_one
from memsvc.segments.topk import Index, Sims

DTYPES: Final = {
    "f32": ScalarKind.F32,
    "bf16": ScalarKind.BF16,
    "f16": ScalarKind.F16,
    "i8": ScalarKind.I8,
}
"""Number formats a graph can hold, by the names of the setting."""

MAX_VIEWS: Final = 4
"""Searches of one graph that run at once in a process; further ones wait. A view of 100,000
rows costs 0.8 MB and some 3 ms, once."""


GLANCES_WORTH: Final = 0.4
"""Share of narrow searches of a graph that must have been enough for the next one to be tried: each
that is not costs half of a whole search on top."""
_GLANCE_WEIGHT: Final = 0.05
_GLANCE_AGAIN: Final = 0.005
"""What each search without one adds to the share, so that it is tried again after a while."""


class Glances:
    """How often a narrow search of a graph was enough, lately. Where most of what is asked for is
    in this graph it rarely is, and then time is better spent on the whole breadth at once."""

    def __init__(self) -> None:
        self._share = 1.0

    @property
    def worth(self) -> bool:
        """Whether to try one now."""
        if self._share >= GLANCES_WORTH:
            return True
        self._share += _GLANCE_AGAIN
        return False

    def saw(self, enough: bool) -> None:
        """One was tried."""
        self._share += _GLANCE_WEIGHT * (enough - self._share)


class Graph:
    """An opened graph; ``search`` is safe for any number of threads.

    ``data`` is the mapped file, whose checksum must have been verified before: a wrong bit
    in it can crash the process. ``dimension``, ``dtype`` and number of ``vectors`` are compared
    with ``expected`` where that has them. Raises BadFile when they differ or the file is no
    graph.
    """

    def __init__(self, data: mmap.mmap, expected: Mapping[str, Any]) -> None:
        self.data = memoryview(data)
        header = _read_header(self.data)
        for name, value in header.items():
            if expected.get(name, value) != value:
                raise BadFile(f"{name} is {value}, expected {expected[name]}")
        self.dimension: int = header["dimension"]
        self.dtype: str = header["dtype"]
        self.vectors: int = header["vectors"]
        self._free: list[UsearchIndex] = []
        self._made = 0
        self.glances = Glances()
        self._changed = threading.Condition()
        with self._view():
            pass

    def search(
        self,
        query: NDArray[np.float32],
        count: int,
        ef: int,
        quantised: Quantised | None = None,
    ) -> tuple[Index, Sims]:
        """About the ``count`` rows nearest to a unit query, best first. ``quantised`` is what
        ``quantise_one`` makes of the query, where that is known.

        Returns local rows and approximate cosines (score again for the true ones), both of
        shape (found,), found <= count. ``ef`` below ``count`` has no effect.
        """
        wanted = min(count, self.vectors)
        if wanted <= 0:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        asked: NDArray[Any] = query
        if self.dtype == "i8":
            asked, _ = quantised or quantise_one(query)
        with self._view() as view:
            view.expansion_search = ef  # type: ignore[misc]  # has a setter
            # A single query gives as many matches as were found, without padding.
            matches = view.search(asked, wanted, threads=1)
        return matches.keys.astype(np.int64), 1 - matches.distances

    @contextmanager
    def _view(self) -> Iterator[UsearchIndex]:
        """A view for one call alone: ``ef`` is a property of the index object, and two calls
        without the interpreter lock would share one working area."""
        view = self._taken()
        try:
            yield view
        finally:
            with self._changed:
                self._free.append(view)
                self._changed.notify()

    def _taken(self) -> UsearchIndex:
        """A view that nobody else has: a free one, or a new one as long as there may be more."""
        with self._changed:
            while not self._free and self._made >= MAX_VIEWS:
                self._changed.wait()
            if self._free:
                return self._free.pop()
            self._made += 1
        try:
            return self._open()
        except BaseException as error:
            with self._changed:
                self._made -= 1
                self._changed.notify()
                if not self._made or not isinstance(error, FilesUnavailable):
                    raise
                # There is no memory for another one: those there are have to do.
                while not self._free:
                    self._changed.wait()
                return self._free.pop()

    def _open(self) -> UsearchIndex:
        index = UsearchIndex(
            ndim=self.dimension,
            metric=MetricKind.Cos,
            dtype=DTYPES[self.dtype],
            enable_key_lookups=False,
        )
        try:
            index.view(self.data)
        except MemoryError as error:
            raise FilesUnavailable(errno.ENOMEM, "no memory for a view of a graph") from error
        except Exception as error:  # the binding raises RuntimeError and ValueError alike
            raise BadFile(f"cannot be opened: {error}") from error
        if len(index) != self.vectors or index.ndim != self.dimension:
            raise BadFile(f"holds {len(index)} vectors of {index.ndim}")
        return index


def _read_header(data: memoryview) -> dict[str, Any]:
    """What a graph file says of itself; ``view`` would silently go by it."""
    try:
        found = UsearchIndex.metadata(data)
    except Exception as error:
        raise BadFile(f"is not a graph: {error}") from error
    if found is None or found["kind_metric"] != MetricKind.Cos or found["count_deleted"]:
        raise BadFile("is not a graph of this kind")
    dtype = next((name for name, kind in DTYPES.items() if kind == found["kind_scalar"]), None)
    if dtype is None:
        raise BadFile(f"has scalars of kind {found['kind_scalar']}")
    return {"dimension": found["dimensions"], "dtype": dtype, "vectors": found["count_present"]}


class GraphBuilder:
    """Builds a graph in memory and writes it. Takes dtype bytes x dimension + some 10 x m
    bytes for each vector.

    ``first`` is the opened graph of the first rows, of the same dimension, dtype and m: it is
    copied, and only what is added is linked, which is nearly all of the work.
    """

    def __init__(
        self,
        dimension: int,
        dtype: str,
        m: int,
        ef_construction: int,
        first: Graph | None = None,
    ) -> None:
        self._dtype = dtype
        self._index = UsearchIndex(
            ndim=dimension,
            metric=MetricKind.Cos,
            dtype=DTYPES[dtype],  # never left out: the default depends on the CPU
            connectivity=m,
            expansion_add=ef_construction,
        )
        if first is not None:
            self._index.load(first.data)

    @property
    def vectors(self) -> int:
        """Rows that are in it."""
        return len(self._index)

    def add(self, local: NDArray[Any], rows: NDArray[np.float32]) -> None:
        """Adds unit rows, float32 (n, dimension), under their local row numbers (n,)."""
        vectors: NDArray[Any] = quantise(rows)[0] if self._dtype == "i8" else rows
        # Two threads leave rows that no search reaches, see DESIGN.md.
        self._index.add(local.astype(np.uint64), vectors, threads=1)

    def save(self, path: Path) -> tuple[int, str]:
        """Writes and publishes the file. Returns its bytes and xxh3-128 in hex."""
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        self._index.save(temporary)
        publish(temporary, path)
        data = map_file(path)
        return len(data), checksum_of(data)
