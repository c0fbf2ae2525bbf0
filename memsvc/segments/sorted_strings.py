"""Many strings in a few arrays, with no object for each in memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from memsvc.segments.arrayfile import ArrayFile, ArrayFileWriter

_NONE: Final = (
    np.zeros(0, np.uint8),
    np.zeros(1, np.int64),
    np.zeros(0, np.uint64),
    np.zeros(0, np.int32),
)


class SortedStrings:
    """n different strings in ascending order, which is the same by UTF-8 and by code point.

    ``blob`` uint8: their UTF-8; ``offsets`` int64 (n + 1,); ``hashes`` uint64 (n,): their
    xxh3-64, ascending; ``order`` int32 (n,): the string of each hash.
    """

    def __init__(
        self,
        blob: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        hashes: NDArray[np.uint64],
        order: NDArray[np.int32],
    ) -> None:
        # As memoryviews: indexing one is several times cheaper than indexing an array.
        self._blob = blob.data
        self._offsets = offsets.data
        self._hashes = hashes.data
        self._order = order.data

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def _at(self, index: int) -> bytes:
        return bytes(self._blob[self._offsets[index] : self._offsets[index + 1]])

    def find(self, text: str) -> int:
        """The index of a string, -1 when it is not there."""
        encoded = text.encode()
        wanted = xxhash.xxh3_64_intdigest(encoded)
        hashes = self._hashes
        # Bisecting numbers runs in C; bisecting the strings would be ten times slower.
        place = bisect_left(hashes, wanted)
        while place < len(hashes) and hashes[place] == wanted:
            if self._at(self._order[place]) == encoded:
                return self._order[place]
            place += 1
        return -1

    def place(self, text: str, *, after: bool = False) -> int:
        """Where a string stands or would stand; ``after`` it when it is there and so asked."""
        encoded = text.encode()
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) >> 1
            here = self._at(middle)
            if here < encoded or (after and here == encoded):
                low = middle + 1
            else:
                high = middle
        return low


def write_strings(writer: ArrayFileWriter, name: str, strings: Sequence[str]) -> None:
    """Adds ascending, different strings to a file as arrays ``NAME.blob`` and so on."""
    encoded = [text.encode() for text in strings]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    hashes = np.array([xxhash.xxh3_64_intdigest(text) for text in encoded], np.uint64)
    order = np.argsort(hashes, kind="stable").astype(np.int32)
    writer.add(f"{name}.blob", np.frombuffer(b"".join(encoded), np.uint8))
    writer.add(f"{name}.offsets", offsets)
    writer.add(f"{name}.hashes", hashes[order])
    writer.add(f"{name}.order", order)


def open_strings(file: ArrayFile, name: str) -> SortedStrings:
    """The strings that were added under a name; none when nothing was."""
    if file.optional(f"{name}.blob") is None:
        return SortedStrings(*_NONE)
    parts = (file.array(f"{name}.{part}") for part in ("blob", "offsets", "hashes", "order"))
    return SortedStrings(*parts)
