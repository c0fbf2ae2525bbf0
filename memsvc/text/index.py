"""Inverted index of the rows that are not sealed yet, and inversion of a whole batch.

Documents are numbered 0, 1, 2, ... in the order in which they come. Nothing is ever removed:
whether a document is live is decided outside.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_LOW_32: Final = 0xFFFFFFFF
# Measured with tracemalloc: a term's dictionary entry, its string without the characters and the
# array object with its first posting; then each further posting with the slack of the array.
_TERM_BYTES: Final = 240
_POSTING_BYTES: Final = 9
_DOCUMENT_BYTES: Final = 5


class TailIndex:
    """Append-only inverted index in memory: one writer at a time, any number of readers.

    Readers take no lock. They say how many documents their snapshot has, and see exactly those,
    while a writer adds others: a posting is one 64-bit number (document in the upper half, term
    frequency in the lower), appended whole and in document order, so that a reader's copy is a
    prefix of the truth and what lies behind its snapshot is cut off by number. A reader must have
    learnt its ``n`` after the :meth:`append` that returned ``n - 1`` had returned.
    """

    __slots__ = ("_lengths", "_lock", "_nbytes", "_postings")

    def __init__(self) -> None:
        self._postings: dict[str, array[int]] = {}
        self._lengths: array[int] = array("I")
        self._lock = threading.Lock()
        self._nbytes = 0

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._lengths)

    @property
    def nbytes(self) -> int:
        """Memory taken, in bytes, approximately (within a quarter)."""
        return self._nbytes

    def append(self, terms: Sequence[str]) -> int:
        """Add a document with these terms (repetitions count) and return its number."""
        counts: dict[str, int] = {}
        for term in terms:
            counts[term] = counts.get(term, 0) + 1
        with self._lock:
            number = len(self._lengths)
            base = number << 32
            added = _DOCUMENT_BYTES + _POSTING_BYTES * len(counts)
            for term, count in counts.items():
                known = self._postings.get(term)
                if known is None:
                    self._postings[term] = array("Q", (base | count,))
                    added += _TERM_BYTES + len(term)
                else:
                    known.append(base | count)
            # Last, because len() of this array is what counts as present.
            self._lengths.append(len(terms))
            self._nbytes += added
        return number

    def postings(self, term: str, n: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Documents below ``n`` that have ``term``, ascending, and how often each has it.

        Two int32 arrays of one shape, (0,) when there are none. They are copies.
        """
        known = self._postings.get(term)
        # Slicing copies while the interpreter is held. A buffer on the array itself would make a
        # concurrent append fail with BufferError.
        packed = np.frombuffer(known[:], np.uint64) if known is not None else _NOTHING
        if len(packed) and packed[-1] >> np.uint64(32) >= n:
            packed = packed[: np.searchsorted(packed, np.uint64(max(n, 0) << 32))]
        docs = (packed >> np.uint64(32)).astype(np.int32)
        return docs, (packed & np.uint64(_LOW_32)).astype(np.int32)

    def lengths(self, n: int) -> NDArray[np.int32]:
        """Number of terms of each document below ``n``, int32, shape (min(n, len(self)),)."""
        return np.frombuffer(self._lengths[: max(n, 0)], np.uint32).astype(np.int32)


_NOTHING: Final = np.zeros(0, np.uint64)


@dataclass(frozen=True, slots=True)
class Inverted:
    """A batch of documents turned into postings, in the shape in which a segment stores them."""

    terms: list[str]
    """The T distinct terms, ascending by code point, which is also the order of their UTF-8."""
    offsets: NDArray[np.int64]
    """Shape (T + 1,). The postings of term i are ``docs[offsets[i]:offsets[i + 1]]``."""
    docs: NDArray[np.int32]
    """Shape (P,). Document numbers, ascending within a term."""
    tfs: NDArray[np.int32]
    """Shape (P,). How often the document has the term, >= 1."""
    lengths: NDArray[np.int32]
    """Shape (D,). Number of terms of each document, repetitions counted."""


class _Numbering(dict[str, int]):
    """Term -> the order in which it was first seen."""

    def __missing__(self, term: str) -> int:
        number = self[term] = len(self)
        return number


def invert(docs: Iterable[Sequence[str]]) -> Inverted:
    """Invert documents, each a sequence of terms; they are numbered from 0 as they come.

    The input is read once, so a generator will do. Takes some 40 bytes for each term
    occurrence while it runs.
    """
    numbering = _Numbering()
    occurrences: array[int] = array("I")
    lengths: array[int] = array("I")
    for terms in docs:
        occurrences.extend(map(numbering.__getitem__, terms))
        lengths.append(len(terms))

    terms = sorted(numbering)
    rank = np.empty(len(terms), np.int64)
    rank[[numbering[term] for term in terms]] = np.arange(len(terms))
    length_array = np.frombuffer(lengths, np.uint32).astype(np.int32)
    documents = np.repeat(np.arange(len(length_array), dtype=np.int64), length_array)
    # (term, document) as one number: sorting it groups equal pairs, and a group's size is the tf.
    packed = rank[np.frombuffer(occurrences, np.uint32)] << 32
    packed |= documents
    packed.sort()
    pairs, counts = np.unique_counts(packed)
    return Inverted(
        terms=terms,
        offsets=np.searchsorted(pairs >> 32, np.arange(len(terms) + 1)).astype(np.int64),
        docs=(pairs & _LOW_32).astype(np.int32),
        tfs=counts.astype(np.int32),
        lengths=length_array,
    )
