"""A memory-mapped matrix whose bytes are checked when they are first read.

Checking a rows file of 600 MB before serving takes 60 ms when it is in memory and more
than two seconds when it is not. A wrong byte in it cannot crash anything (unlike one in a
graph), so each block of rows is checked once, on first use.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

import numpy as np
import xxhash
from numpy.typing import NDArray

from memsvc.segments.arrayfile import ArrayFile
from memsvc.segments.errors import BadFile
from memsvc.segments.residency import MappedFile

Index = NDArray[np.int64]

SCRATCH_BYTES: Final = 2 << 20
"""Rows are gathered into a buffer of this size, one for each thread: large enough that the
calls around it do not show, small enough to stay in the cache."""

_local = threading.local()


def scratch(rows: int, like: NDArray[Any]) -> NDArray[Any]:
    """This thread's buffer as ``rows`` rows in shape and dtype of ``like``'s. Overwritten by
    the next call in the same thread."""
    need = rows * like.strides[0]
    held: NDArray[np.uint8] | None = getattr(_local, "buffer", None)
    if held is None or held.nbytes < need:
        held = _local.buffer = np.empty(max(need, SCRATCH_BYTES), np.uint8)
    return held[:need].view(like.dtype).reshape(rows, like.shape[1])


class GuardedMatrix:
    """Rows of a guarded array, shape (count, width), C order.

    ``scattered`` is a second mapping of the file, for reading rows here and there. While
    some of ``mapped`` is missing they are asked for each time, not only when they are first read.
    ``on_bad(reason)`` is called when a block is not as written, and must raise.
    """

    def __init__(
        self,
        file: ArrayFile,
        name: str,
        scattered: mmap.mmap,
        on_bad: Callable[[str], NoReturn],
        *,
        mapped: MappedFile | None = None,
    ) -> None:
        self._mapped = mapped
        self.data = file.array(name)
        self._scattered = file.through(scattered, name)
        self._mapping = scattered
        self._offset = file.offset(name)
        self.count, self.width = self.data.shape
        self.row_bytes = self.data.itemsize * self.width
        self._block = file.block_rows(name)
        sums = file.array(f"{name}.sums")
        if len(sums) != -(-self.count // self._block):
            raise BadFile(f"array {name} has {len(sums)} sums for {self.count} rows")
        self._sums = sums
        self._on_bad = on_bad
        self._checked = np.zeros(len(sums), np.bool_)
        self._left = len(sums)

    def trust(self) -> None:
        """Takes everything as checked (the whole file was, just now)."""
        self._left = 0

    def span(self, low: int, high: int) -> NDArray[Any]:
        """Rows [low, high) as a view."""
        if self._left and high > low:
            first, last = low // self._block, (high - 1) // self._block + 1
            if not self._checked[first:last].all():
                self._check(self.data, np.flatnonzero(~self._checked[first:last]) + first)
        return self.data[low:high]

    def take(self, rows: Index) -> NDArray[Any]:
        """Some rows, gathered into this thread's scratch buffer: valid until the next call in
        the same thread. At most ``chunk_rows`` of them."""
        if self._left:
            blocks = rows // self._block
            fresh = blocks[~self._checked[blocks]]
            if len(fresh):
                fresh = np.unique(fresh)
                self._read_ahead(fresh, self._block)
                self._check(self._scattered, fresh)
        if self._mapped is not None and self._mapped.missing > 0:
            self._read_ahead(rows, 1)
        into = scratch(len(rows), self.data)
        # "clip" because the default mode gathers into a second buffer first.
        return np.take(self._scattered, rows, axis=0, out=into, mode="clip")

    @property
    def chunk_rows(self) -> int:
        """Rows that fit the scratch buffer."""
        return max(1, SCRATCH_BYTES // max(int(self.row_bytes), 1))

    def _read_ahead(self, blocks: NDArray[np.intp], rows: int) -> None:
        """Asks for all blocks of so many rows at once, so that the disk does not get them one by
        one."""
        size = rows * self.row_bytes
        for block in blocks.tolist():
            start = self._offset + block * size
            aligned = start - start % mmap.PAGESIZE
            length = min(start + size, len(self._mapping)) - aligned
            self._mapping.madvise(mmap.MADV_WILLNEED, aligned, length)

    def _check(self, data: NDArray[Any], blocks: NDArray[np.intp]) -> None:
        for block in blocks.tolist():
            low = block * self._block
            rows = data[low : low + self._block]
            found = xxhash.xxh3_64_intdigest(rows.reshape(-1).view(np.uint8).data)
            if found != int(self._sums[block]):
                last = low + len(rows) - 1
                self._on_bad(f"rows {low} to {last} are not as written")
            # Two threads may check the same block; each flag is set once it is known good.
            self._checked[block] = True
        self._left = int(np.count_nonzero(~self._checked))
