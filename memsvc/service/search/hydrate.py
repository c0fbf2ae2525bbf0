"""From rows to hits: the records of one snapshot have the last word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.errors import InvalidArgument, Violation
from memsvc.domain.hits import NO_HITS, Hits, joined
from memsvc.domain.records import FLAG_CURRENT, State
from memsvc.domain.scoring import effective_importances
from memsvc.domain.types import Include, Vector
from memsvc.service.search.scope import Reader
from memsvc.store import keys
from memsvc.store.snapshot import Snapshot


@dataclass(slots=True)
class Candidates:
    """Rows in the order they are to be answered: ``rows`` int64, ``scores`` float32,
    ``similarities`` and ``words`` float32 with NaN for "none", all of shape (n,)."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float32]
    similarities: NDArray[np.float32]
    words: NDArray[np.float32]

    def take(self, order: NDArray[np.intp]) -> Candidates:
        """Some of them, in another order."""
        return Candidates(
            self.rows[order], self.scores[order], self.similarities[order], self.words[order]
        )


def unscored(rows: NDArray[np.int64]) -> Candidates:
    """Rows that were not found by likeness: score 0, no similarity."""
    nan = np.full(len(rows), np.nan, np.float32)
    return Candidates(rows, np.zeros(len(rows), np.float32), nan, nan)


HIT_BYTES: Final = 200
"""At least what a hit takes in a message beside its head, text and vector."""


JUDGED_AT_ONCE: Final = 64
"""Records judged between two looks at the time: under a millisecond."""


class Room:
    """How many bytes the hits of one answer may still take, of ``most`` in all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most

    def take(self, size: int) -> None:
        """Raises InvalidArgument when the answer would be larger than a message may be:
        without this, 64 vectors with their contents made one of 800 MB."""
        self._left -= size
        if self._left < 0:
            raise InvalidArgument(
                f"the answer would be larger than {self._most} bytes (server.max_message_bytes)",
                reason="ANSWER_TOO_LARGE",
                hint="ask for fewer items or vectors at a time, or without include.content and "
                "include.vector",
                violations=(Violation("top_k", "fewer items, or without content and vector"),),
            )


@dataclass(frozen=True, slots=True)
class Hydration:
    """How records become hits: decay in ms, time of the answer, what to include, what room
    there is. ``check`` raises when the call should stop."""

    partition: int
    generation: int
    half_life_ms: int
    scored_at: int
    include: Include
    room: Room
    check: Callable[[], object]


def hydrate(
    candidates: Candidates,
    snapshot: Snapshot,
    reader: Reader,
    how: Hydration,
    limit: int,
    *,
    judge: bool,
) -> Hits:
    """The first ``limit`` candidates whose records pass.

    With ``judge`` the filter is applied to each record (some field has no column);
    otherwise only what the columns may have outdated is looked at again.
    """
    pieces: list[Hits] = []
    start = found = 0
    while found < limit and start < len(candidates.rows):
        how.check()
        # As many as are missing: usually every one of them passes.
        size = JUDGED_AT_ONCE if judge else max(8, limit - found)
        piece = _passing(candidates, slice(start, start + size), snapshot, reader, how, judge)
        start += size
        found += len(piece)
        pieces.append(piece)
    if not pieces:
        return NO_HITS
    hits = joined(pieces).first(limit)
    how.room.take(HIT_BYTES * len(hits) + sum(map(len, hits.heads)))
    if how.include.content or how.include.vector:
        hits = _completed(hits, how, snapshot)
    return hits


def _passing(
    candidates: Candidates,
    batch: slice,
    snapshot: Snapshot,
    reader: Reader,
    how: Hydration,
    judge: bool,
) -> Hits:
    """Hits of the candidates of a batch whose records pass. All records are read at once and
    looked at as columns: forty hits one by one cost five times the time."""
    rows = candidates.rows[batch]
    listed = rows.tolist()
    states = snapshot.raw_states(how.partition, listed)
    texts = snapshot.raw_texts(how.partition, listed)
    seen = reader.sees_all(states)
    seen &= (states["flags"] & FLAG_CURRENT) != 0
    heads = [b"" if text is None else keys.text_head(text) for text in texts]
    hits = Hits(
        rows,
        heads,
        states,
        candidates.scores[batch],
        candidates.similarities[batch],
        candidates.words[batch],
        effective_importances(
            states["importance"],
            states["ts"],
            states["recalled_at"],
            how.scored_at,
            how.half_life_ms,
        ),
        reader.now,
    )
    if not judge and None not in texts and seen.all():
        return hits
    passing = [
        place
        for place, (text, head, visible) in enumerate(zip(texts, heads, seen.tolist(), strict=True))
        if visible
        and text is not None
        and (not judge or reader.passes(head, State._make(states[place].item())))
    ]
    return hits.take(passing)


def _completed(hits: Hits, how: Hydration, snapshot: Snapshot) -> Hits:
    """With the vectors and contents that were asked for."""
    contents: list[str | None] = []
    vectors: list[Vector | None] = []
    for number, row in enumerate(hits.rows.tolist()):
        if not number % JUDGED_AT_ONCE:
            how.check()
        raw = text = None
        if how.include.vector:
            raw = snapshot.vector(how.generation, how.partition, row)
            how.room.take(len(raw or b""))
        if how.include.content:
            text = snapshot.text(how.partition, row)
            how.room.take(len(text.content.encode()) if text is not None else 0)
        contents.append(None if text is None else text.content)
        vectors.append(None if raw is None else np.frombuffer(raw, np.float32))
    return replace(hits, contents=contents, vectors=vectors)
