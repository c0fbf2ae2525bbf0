"""Hits as columns: forty objects of a class take longer to make than to send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.ids import format_id
from memsvc.domain.records import STATE_DTYPE
from memsvc.domain.types import STATUSES, Hit, Status, Vector


@dataclass(frozen=True, slots=True, eq=False)
class Hits:
    """Memories found, in the order they are answered; all columns have shape or length (n,).

    ``rows`` int64; ``heads`` serialised proto Hits with summary, session and metadata;
    ``states`` STATE_DTYPE; ``scores`` float; ``similarities`` and ``words`` float32, NaN for
    "none"; ``importance`` float, after decay; ``now`` UTC ms, for what has expired.
    ``contents`` and ``vectors`` are None unless they were asked for.
    """

    rows: NDArray[np.int64]
    heads: list[bytes]
    states: NDArray[Any]
    scores: NDArray[np.floating[Any]]
    similarities: NDArray[np.float32]
    words: NDArray[np.float32]
    importance: NDArray[np.floating[Any]]
    now: int
    contents: list[str | None] | None = None
    vectors: list[Vector | None] | None = None

    def __len__(self) -> int:
        return len(self.heads)

    def __iter__(self) -> Iterator[Hit]:
        n = len(self)
        for head, row, score, similarity, word, importance, state, status, content, vector in zip(
            self.heads,
            self.rows.tolist(),
            self.scores.tolist(),
            self.similarities.tolist(),
            self.words.tolist(),
            self.importance.tolist(),
            self.states.tolist(),
            self.statuses.tolist(),
            self.contents or [None] * n,
            self.vectors or [None] * n,
            strict=True,
        ):
            id_, version, _, _, _, created, updated, ts, expires, _, stored, recalls, _ = state
            yield Hit(
                id=format_id(id_),
                row=row,
                head=head,
                score=score,
                similarity=similarity if similarity == similarity else None,
                keyword_score=word if word == word else None,
                importance=importance,
                importance_stored=stored,
                ts=ts,
                version=version,
                status=STATUSES[status],
                created_at=created,
                updated_at=updated,
                expires_at=expires,
                recall_count=recalls,
                content=content,
                vector=vector,
            )

    @property
    def ids(self) -> list[str]:
        """Their ids."""
        return [format_id(id_) for id_ in self.states["id"].tolist()]

    @property
    def statuses(self) -> NDArray[np.uint8]:
        """Their statuses with expiry counted in, uint8."""
        status: NDArray[np.uint8] = self.states["status"]
        ends = self.states["expires_at"]
        if not ends.any():
            return status
        past = (status == Status.ACTIVE) & (ends != 0) & (ends <= self.now)
        return np.where(past, np.uint8(Status.EXPIRED), status)

    def take(self, places: Sequence[int] | NDArray[np.intp]) -> Self:
        """Some of them, in another order."""
        chosen = np.asarray(places, np.intp)
        listed = chosen.tolist()
        return replace(
            self,
            rows=self.rows[chosen],
            heads=[self.heads[i] for i in listed],
            states=self.states[chosen],
            scores=self.scores[chosen],
            similarities=self.similarities[chosen],
            words=self.words[chosen],
            importance=self.importance[chosen],
            contents=self.contents and [self.contents[i] for i in listed],
            vectors=self.vectors and [self.vectors[i] for i in listed],
        )

    def first(self, count: int) -> Self:
        """The first of them."""
        return self if len(self) <= count else self.take(range(count))


def joined(pieces: Sequence[Hits]) -> Hits:
    """One after the other, without contents and vectors. There must be one at least."""
    if len(pieces) == 1:
        return pieces[0]
    return Hits(
        np.concatenate([p.rows for p in pieces]),
        [head for p in pieces for head in p.heads],
        np.concatenate([p.states for p in pieces]),
        np.concatenate([p.scores for p in pieces]),
        np.concatenate([p.similarities for p in pieces]),
        np.concatenate([p.words for p in pieces]),
        np.concatenate([p.importance for p in pieces]),
        pieces[0].now,
    )


_NONE = np.empty(0, np.float32)
NO_HITS = Hits(np.empty(0, np.int64), [], np.empty(0, STATE_DTYPE), _NONE, _NONE, _NONE, _NONE, 0)
"""Nothing was found."""
