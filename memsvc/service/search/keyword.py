"""Search by words over the parts of a partition: BM25 with statistics over live rows.

Statistics count exactly the rows that are active at the position (for a reviewer who asks
for other statuses: all that are stored), summed over all parts, so neither another tenant nor
the layout of segments moves a score.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memsvc.segments.topk import best
from memsvc.service.search.mutable import Mutable
from memsvc.service.search.parts import Part
from memsvc.service.search.scope import Scope
from memsvc.store.snapshot import Snapshot
from memsvc.text.bm25 import average_length, contributions, idf, upper_bound

Index = NDArray[np.int64]


@dataclass(slots=True)
class Words:
    """Scores of one query over all parts.

    ``scores`` float64 (n,) for each part, None where its words are unusable; ``bound`` the
    score no document can reach.
    """

    scores: list[NDArray[np.float64] | None]
    bound: float

    def top(self, number: int, scope: Scope, k: int) -> tuple[Index, NDArray[np.float32]]:
        """The k best rows of a part among those in scope that have any of the words."""
        scores = self.scores[number]
        if scores is None:
            return np.empty(0, np.int64), np.empty(0, np.float32)
        local = np.flatnonzero((scores > 0) & scope.mask)
        return best(scores[local].astype(np.float32), local, k)

    def of(self, number: int, local: Index) -> NDArray[np.float64]:
        """Scores of some rows of a part; 0 for rows without any of the words."""
        scores = self.scores[number]
        return np.zeros(len(local)) if scores is None else scores[local]

    @property
    def lost(self) -> bool:
        """Whether the words of some part could not be searched."""
        return any(scores is None for scores in self.scores)


class _LiveLengths:
    """Sum of the lengths of a part's live rows, kept for as long as its columns live."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Mutable, int] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, mutable: Mutable, lengths: NDArray[np.int32]) -> int:
        with self._lock:
            known = self._known.get(mutable)
        if known is None:
            known = int(lengths[mutable.live].sum(dtype=np.int64))
            with self._lock:
                self._known[mutable] = known
        return known


_live_lengths = _LiveLengths()


def search_words(
    parts: tuple[Part, ...],
    terms: list[str],
    snapshot: Snapshot,
    check: Callable[[], object],
    *,
    hidden: bool = False,
) -> Words:
    """BM25 of every row of every part for distinct query terms, summed in their order.

    ``hidden``: rows of every status may be found, so all of them are counted; a word that
    only archived memories have would otherwise weigh nothing and find none.
    """
    lengths = [part.lengths(snapshot) for part in parts]
    counted = [part.mutable.status != 0 if hidden else part.mutable.live for part in parts]
    documents = total = 0
    for part, length, rows in zip(parts, lengths, counted, strict=True):
        if length is None:
            continue
        if hidden:
            documents += int(np.count_nonzero(rows))
            total += int(length[rows].sum(dtype=np.int64))
        else:
            documents += part.mutable.live_count
            total += _live_lengths.of(part.mutable, length)
    mean = average_length(total, documents)
    scores = [None if length is None else np.zeros(len(length)) for length in lengths]
    weights = []
    for term in terms:
        check()
        found = [
            None if length is None else part.lookup(term)
            for part, length in zip(parts, lengths, strict=True)
        ]
        frequency = sum(
            int(np.count_nonzero(rows[pair[0]]))
            for rows, pair in zip(counted, found, strict=True)
            if pair is not None
        )
        weight = idf(documents, frequency)
        if weight <= 0:
            continue
        weights.append(weight)
        for length, pair, score in zip(lengths, found, scores, strict=True):
            if length is not None and pair is not None and score is not None and len(pair[0]):
                docs, tfs = pair
                score[docs] += contributions(weight, tfs, length[docs], mean)
    return Words(scores, upper_bound(weights))
