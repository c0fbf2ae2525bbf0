"""Which pages of a segment's files are in memory, and letting go of them.

Mapped files live in the page cache, which the kernel fills and empties for the whole machine.
For cold segments it is told what to drop, so that what is hot keeps its place.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES: Final = 8 << 20
"""Dropped at once."""
ORDER: Final = ("scan", "rows", "postings", "columns", "graph")
"""Kinds of files, those first whose pages are least likely to be wanted again: of rows a search
reads a few here and there, of a graph nearly always the same upper layers."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True, eq=False)
class MappedFile:
    """A file with all the mappings that this process has of it. ``missing``: share of its bytes
    that was not in memory when it was last looked at, 0 to 1."""

    path: Path
    kind: str
    generation: int
    maps: Sequence[mmap.mmap]
    missing: float = field(default=1.0, init=False)
    _hand: int = field(default=0, init=False)

    def look(self) -> int:
        """Looks which pages are in memory; returns their bytes."""
        size = len(self.maps[0])
        found = resident_bytes(self.maps[0], 0, size)
        self.missing = 1 - found / size
        return found

    def drop(self, most: int) -> int:
        """Lets go of about ``most`` bytes in memory, from where it last ended on; returns how
        many. Pages that another process has mapped stay."""
        dropped, size = 0, len(self.maps[0])
        with suppress(OSError):
            fd = os.open(self.path, os.O_RDONLY)
            try:
                for _ in range(-(-size // CHUNK_BYTES)):
                    start, self._hand = self._hand, self._hand + CHUNK_BYTES
                    if self._hand >= size:
                        self._hand = 0
                    length = min(CHUNK_BYTES, size - start)
                    found = resident_bytes(self.maps[0], start, length)
                    if not found:
                        continue
                    for mapped in self.maps:
                        mapped.madvise(mmap.MADV_DONTNEED, start, length)
                    os.posix_fadvise(fd, start, length, os.POSIX_FADV_DONTNEED)
                    dropped += found - resident_bytes(self.maps[0], start, length)
                    if dropped >= most:
                        break
            finally:
                os.close(fd)
        return dropped


def resident_bytes(mapped: mmap.mmap, start: int, length: int) -> int:
    """How many bytes of a stretch of a mapping, which begins at a page, are in memory. All of
    them where the system does not tell."""
    whole: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8)
    flags = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
    failed = _libc.mincore(
        ctypes.c_void_p(whole.ctypes.data + start),
        ctypes.c_size_t(length),
        ctypes.c_void_p(flags.ctypes.data),
    )
    if failed:
        return length
    return min(length, int(np.count_nonzero(flags & 1)) * mmap.PAGESIZE)
