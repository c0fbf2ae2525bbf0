"""Rank: which hits are kept, and in what order."""

from __future__ import annotations

from dataclasses import replace

from memsvc.domain.scoring import rank_score, select
from memsvc.domain.types import Hit, RankOptions
from memsvc.store import heads


def rank_hits(
    hits: list[Hit], stand_ins: list[float], options: RankOptions, at_ms: int
) -> list[Hit]:
    """The hits that Rank keeps, best first, with their rank scores."""
    parsed = [heads.parse_head(hit.head) for hit in hits]
    scored = [
        (
            rank_score(
                options,
                stand_in if hit.similarity is None else hit.similarity,
                hit.importance,
                at_ms - hit.ts,
            ),
            hit.id,
        )
        for hit, stand_in in zip(hits, stand_ins, strict=True)
    ]
    kept = select(options, scored, lambda i: parsed[i].metadata.topic, lambda i: parsed[i].summary)
    return [replace(hits[i], score=scored[i][0]) for i in kept]
