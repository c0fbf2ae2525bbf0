"""Many strings in two arrays, found by bisection: no object for each in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class SortedStrings(Sequence[bytes]):
    """Ascending UTF-8 strings: ``blob`` uint8, ``offsets`` int64 (n + 1,). UTF-8 orders as
    code points do."""

    def __init__(self, blob: NDArray[np.uint8], offsets: NDArray[np.int64]) -> None:
        self._blob = blob.data  # indexing it is cheaper than indexing the array
        self._offsets = offsets.data

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: Any) -> Any:
        return bytes(self._blob[self._offsets[index] : self._offsets[index + 1]])

    def place(self, text: bytes, *, after: bool = False) -> int:
        """Where a string stands or would stand; ``after`` it when it is there and so asked."""
        return bisect_right(self, text) if after else bisect_left(self, text)

    def find(self, text: bytes) -> int:
        """The index of a string, -1 when it is not there."""
        place = bisect_left(self, text)
        return place if place < len(self) and self[place] == text else -1


def string_arrays(strings: Sequence[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Blob and offsets of ascending strings."""
    encoded = [text.encode() for text in strings]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    return np.frombuffer(b"".join(encoded), np.uint8), offsets
