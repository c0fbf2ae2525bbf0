"""From rows to hits: the records of one snapshot have the last word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.errors import InvalidArgument, Violation
from memsvc.domain.records import FLAG_CURRENT, STATE_STRUCT, State, status_at
from memsvc.domain.scoring import effective_importances
from memsvc.domain.types import STATUSES, Hit, Include
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
        size = JUDGED_AT_ONCE if judge else max(8, limit - len(hits))
        batch = slice(start, start + size)
        start = batch.stop
        hits.extend(_passing(candidates, batch, snapshot, reader, how, judge))
    del hits[limit:]
    how.room.take(sum([HIT_BYTES + len(hit.head) for hit in hits]))
    if how.include.content or how.include.vector:
        _complete(hits, how, snapshot)
    return hits


def _passing(
    candidates: Candidates,
    batch: slice,
    snapshot: Snapshot,
    reader: Reader,
    how: Hydration,
    judge: bool,
) -> list[Hit]:
    """Hits of the candidates of a batch whose records pass. All records are read at once and
    their fields taken apart as arrays: forty hits one by one cost three times the time."""
    rows = candidates.rows[batch].tolist()
    states = snapshot.raw_states(how.partition, rows)
    texts = snapshot.raw_texts(how.partition, rows)
    seen = reader.sees_all(states) & ((states["flags"] & FLAG_CURRENT) != 0)
    importance = effective_importances(
        states["importance"], states["ts"], states["recalled_at"], how.scored_at, how.half_life_ms
    )
    fields = zip(
        rows,
        texts,
        seen.tolist(),
        candidates.scores[batch].tolist(),
        candidates.similarities[batch].tolist(),
        candidates.words[batch].tolist(),
        importance.tolist(),
        # Several times faster than tolist() of the same array.
        STATE_STRUCT.iter_unpack(states.tobytes()),
        strict=True,
    )
    hits: list[Hit] = []
    # Little is called here: this runs forty times in most queries.
    for row, text, visible, score, similarity, word, effective, state in fields:
        if not visible or text is None:
            continue
        head = keys.text_head(text)
        if judge and not reader.passes(head, State._make(state)):
            continue
        id_, version, status, _, _, created, updated, ts, expires, _, stored, recalls, _ = state
        hits.append(
            Hit(
                format_id(id_),
                row,
                head,
                score,
                similarity if similarity == similarity else None,
                word if word == word else None,
                effective,
                stored,
                ts,
                version,
                status_at(status, expires, reader.now) if expires else STATUSES[status],
                created,
                updated,
                expires,
                recalls,
            )
        )
    return hits


def _complete(hits: list[Hit], how: Hydration, snapshot: Snapshot) -> None:
    """Adds the vectors and contents that were asked for."""
    for number, hit in enumerate(hits):
        if not number % JUDGED_AT_ONCE:
            how.check()
        if how.include.vector:
            raw = snapshot.vector(how.generation, how.partition, hit.row)
            if raw is not None:
                how.room.take(len(raw))
                hit.vector = np.frombuffer(raw, np.float32)
        if how.include.content:
            text = snapshot.text(how.partition, hit.row)
            if text is not None:
                hit.content = text.content
                how.room.take(len(text.content.encode()))
