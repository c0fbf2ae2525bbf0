"""The keyword index of a segment: for every term the rows that have it.

Terms are looked up in the mapped file itself, so a process keeps no table of them.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from memsvc.segments.arrayfile import ArrayFile, ArrayFileWriter
from memsvc.segments.errors import BadFile
from memsvc.segments.sorted_strings import open_strings, write_strings

KIND: Final = "postings"
VERSION: Final = 1


class InvertedLike(Protocol):
    """What an inversion gives (memsvc.text.index.Inverted fits).

    T ``terms`` ascending by code point; ``offsets`` int64 (T + 1,): the postings of term i are
    ``docs[offsets[i]:offsets[i + 1]]`` with ``tfs`` beside them, int32, ascending; ``lengths``
    int32 (documents,): terms of each document.
    """

    @property
    def terms(self) -> Sequence[str]: ...
    @property
    def offsets(self) -> NDArray[np.int64]: ...
    @property
    def docs(self) -> NDArray[np.int32]: ...
    @property
    def tfs(self) -> NDArray[np.int32]: ...
    @property
    def lengths(self) -> NDArray[np.int32]: ...


class Postings:
    """An opened keyword index; safe for any number of threads.

    ``lengths`` int32 (count,): terms of each row; ``total`` their sum; ``count`` rows;
    ``analyzer`` names the rules that made the terms; ``row_numbers`` int64 (count,).
    """

    def __init__(self, file: ArrayFile) -> None:
        self._terms = open_strings(file, "terms")
        self._offsets = file.array("offsets")
        self._docs = file.array("docs")
        self._tfs = file.array("tfs")
        self.lengths: NDArray[np.int32] = file.array("lengths")
        self.row_numbers: NDArray[np.int64] = file.array("row_numbers")
        self.total: int = file.meta["total"]
        self.analyzer: str = file.meta["analyzer"]
        self.count = len(self.lengths)
        if len(self._offsets) != len(self._terms) + 1 or len(self._docs) != len(self._tfs):
            raise BadFile("arrays do not fit together")

    @property
    def terms(self) -> int:
        """Number of distinct terms."""
        return len(self._terms)

    def lookup(self, term: str) -> tuple[NDArray[np.int32], NDArray[np.integer[Any]]]:
        """Local rows that have a term, ascending int32, and how often each has it (uint8 or
        uint16, saturating); views, both empty when none has it."""
        index = self._terms.find(term)
        if index < 0:
            return self._docs[:0], self._tfs[:0]
        low, high = self._offsets[index], self._offsets[index + 1]
        return self._docs[low:high], self._tfs[low:high]


def open_postings(
    data: mmap.mmap, segment: str, count: int, analyzer: str | None = None
) -> Postings:
    """The keyword index of a segment of ``count`` rows from its mapped, verified file, made
    by the rules ``analyzer`` where given: words cut by other rules would not be found.
    Raises BadFile."""
    file = ArrayFile(data, KIND, VERSION, check_sums=False)
    file.require(segment=segment)
    if analyzer is not None:
        file.require(analyzer=analyzer)
    postings = Postings(file)
    if postings.count != count:
        raise BadFile(f"is for {postings.count} rows, expected {count}")
    return postings


def write_postings(
    path: Path,
    segment: str,
    inverted: InvertedLike,
    row_numbers: NDArray[np.int64],
    analyzer: str,
) -> tuple[int, str]:
    """Writes the file. Returns its bytes and xxh3-128 in hex."""
    tfs = inverted.tfs
    kind = np.uint8 if not len(tfs) or int(tfs.max()) <= 255 else np.uint16
    with ArrayFileWriter(path, KIND, VERSION) as writer:
        write_strings(writer, "terms", inverted.terms)
        writer.add("offsets", inverted.offsets.astype(np.int64))
        writer.add("docs", inverted.docs.astype(np.int32))
        writer.add("tfs", np.minimum(tfs, np.iinfo(kind).max).astype(kind))
        writer.add("lengths", inverted.lengths.astype(np.int32))
        writer.add("row_numbers", row_numbers.astype(np.int64))
        total = int(inverted.lengths.sum(dtype=np.int64))
        return writer.finish({"segment": segment, "total": total, "analyzer": analyzer})
