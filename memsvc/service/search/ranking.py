"""Rank: which hits are kept, and in what order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.hits import Hits
from memsvc.domain.scoring import item_cost, rank_score, select
from memsvc.domain.types import RankOptions
from memsvc.store import heads


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
