"""From rows to hits: the records of one snapshot have the last word."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.errors import InvalidArgument, Violation
from memsvc.domain.records import FLAG_CURRENT, FLAG_ERASED, STATE_STRUCT, State
from memsvc.domain.scoring import effective_importance
from memsvc.domain.types import STATUSES, Hit, Include, Status
from memsvc.service.positions import format_id
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


HIT_BYTES: Final = 200
"""At least what a hit takes in a message beside its head, text and vector."""


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
) -> list[Hit]:
    """The first ``limit`` candidates whose records pass.

    With ``judge`` the filter is applied to each record (some field has no column);
    otherwise only what the columns may have outdated is looked at again.
    """
    hits: list[Hit] = []
    start = 0
    while len(hits) < limit and start < len(candidates.rows):
        how.check()
        # As many as are missing: usually every one of them passes.
        batch = slice(start, start + max(8, limit - len(hits)))
        start = batch.stop
        rows = candidates.rows[batch].tolist()
        scores = candidates.scores[batch].tolist()
        similarities = candidates.similarities[batch].tolist()
        words = candidates.words[batch].tolist()
        for row, state, text, score, similarity, word in zip(
            rows,
            *_records(snapshot, how.partition, rows),
            scores,
            similarities,
            words,
            strict=True,
        ):
            if len(hits) >= limit:
                break
            if state is None or text is None or not state.flags & FLAG_CURRENT:
                continue
            head = keys.text_head(text)
            if not (reader.passes(head, state) if judge else reader.sees(state)):
                continue
            hits.append(
                _hit(row, state, head, text, score, similarity, word, reader, how, snapshot)
            )
    return hits


def _records(
    snapshot: Snapshot, partition: int, rows: Sequence[int]
) -> tuple[Iterator[State | None], list[bytes | None]]:
    states = (
        None if data is None else State._make(STATE_STRUCT.unpack(data))
        for data in snapshot.packed_states(partition, rows)
    )
    return states, snapshot.raw_texts(partition, rows)


def _hit(
    row: int,
    state: State,
    head: bytes,
    text: bytes,
    score: float,
    similarity: float,
    word: float,
    reader: Reader,
    how: Hydration,
    snapshot: Snapshot,
) -> Hit:
    vector = None
    if how.include.vector:
        raw = snapshot.vector(how.generation, how.partition, row)
        vector = None if raw is None else np.frombuffer(raw, np.float32)
    content = keys.unpack_text(text).content if how.include.content else None
    how.room.take(
        HIT_BYTES
        + len(head)
        + (0 if content is None else len(text))
        + (0 if vector is None else vector.nbytes)
    )
    status = state.status
    if status == Status.ACTIVE and 0 < state.expires_at <= reader.now:
        status = Status.EXPIRED
    return Hit(
        id=format_id(state.id),
        row=row,
        head=head,
        score=score,
        similarity=None if similarity != similarity else similarity,
        keyword_score=None if word != word else word,
        importance=effective_importance(
            state.importance, state.ts, state.recalled_at, how.scored_at, how.half_life_ms
        ),
        importance_stored=state.importance,
        ts=state.ts,
        version=state.version,
        status=STATUSES[status],
        created_at=state.created_at,
        updated_at=state.updated_at,
        expires_at=state.expires_at,
        recall_count=state.recall_count,
        content=content,
        vector=vector,
    )


def one(
    row: int, state: State, text: bytes, reader: Reader, how: Hydration, snapshot: Snapshot
) -> Hit | None:
    """The hit of one record, None when the reader may not see it."""
    if not state.flags & FLAG_CURRENT or state.flags & FLAG_ERASED:
        return None
    head = keys.text_head(text)
    if not reader.passes(head, state):
        return None
    nan = float("nan")
    return _hit(row, state, head, text, 0.0, nan, nan, reader, how, snapshot)
