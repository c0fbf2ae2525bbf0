"""What of an answer depends on the time it is given at: importance, what has expired, and Rank,
which tells which hits are kept, and in what order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.hits import Hits
from memsvc.domain.scoring import effective_importances, item_cost, rank_score, select
from memsvc.domain.types import RankOptions
from memsvc.store import heads


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """The hits of one list before Rank. ``stand_ins`` (n,) take the place of a similarity that
    is missing."""

    hits: Hits
    stand_ins: NDArray[np.floating[Any]]

    def at(self, now_ms: int, scored_at_ms: int, half_life_ms: int) -> Chosen:
        """The same as answered at another time, in UTC ms: ``now_ms`` tells what has expired,
        ``scored_at_ms`` importance."""
        hits = self.hits
        importance = effective_importances(
            hits.states["importance"],
            hits.states["ts"],
            hits.states["recalled_at"],
            scored_at_ms,
            half_life_ms,
        )
        return replace(self, hits=replace(hits, importance=importance, now=now_ms))

    def owned(self) -> Chosen:
        """The same in memory of its own: columns may be views of what a search has brought."""
        everything = np.arange(len(self.hits))
        return Chosen(self.hits.take(everything), self.stand_ins[everything])

    def ranked(self, options: RankOptions | None, at_ms: int) -> Hits:
        """The hits as they are answered, at a time in UTC ms; without ``options`` all."""
        if options is None or not self.hits:
            return self.hits
        return rank_hits(self.hits, self.stand_ins, options, at_ms)


def rank_hits(
    hits: Hits, stand_ins: NDArray[np.floating[Any]], options: RankOptions, at_ms: int
) -> Hits:
    """The hits that Rank keeps, best first, with their rank scores. ``stand_ins`` (n,) take the
    place of a similarity that is missing."""
    parsed = [heads.parse_head(head) for head in hits.heads]
    likeness = np.where(np.isnan(hits.similarities), stand_ins, hits.similarities)
    scored = [
        (rank_score(options, like, importance, at_ms - ts), id_)
        for like, importance, ts, id_ in zip(
            likeness.tolist(),
            hits.importance.tolist(),
            hits.states["ts"].tolist(),
            hits.ids,
            strict=True,
        )
    ]
    kept = select(
        options,
        scored,
        lambda i: parsed[i].metadata.topic,
        lambda i: item_cost(parsed[i].summary),
    )
    scores = np.array([scored[i][0] for i in kept], np.float64)
    return replace(hits.take(kept), scores=scores)
