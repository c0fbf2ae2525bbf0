"""Which of the candidates are kept, and in what order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memsvc.domain.scoring import rank_score, select
from memsvc.domain.types import RankOptions
from memsvc.v1 import memory_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class Candidate:
    """A memory that the service found. Times in UTC ms."""

    id: str
    summary: str
    relevance: float
    """How well it answers, 0 to 1: words and meaning together."""
    similarity: float | None = None
    """Cosine to the query; None without vectors."""
    importance: float = 0.5
    ts: int = 0
    topic: str = ""
    session: str = ""


def candidates_of(answer: pb.QueryResponse) -> list[Candidate]:
    """The hits of an answer, best first. Scores of words alone have no upper bound: there the
    best one counts as 1."""
    scale = 1.0
    if answer.mode == pb.MODE_KEYWORD:
        scale = max((hit.score for hit in answer.items), default=0.0) or 1.0
    return [_candidate(hit, scale) for hit in answer.items]


def _candidate(hit: pb.Hit, scale: float) -> Candidate:
    return Candidate(
        id=hit.id,
        summary=hit.summary or hit.content,
        relevance=hit.score / scale,
        similarity=hit.similarity if hit.HasField("similarity") else None,
        importance=hit.metadata.importance,
        ts=hit.metadata.ts,
        topic=hit.metadata.topic,
        session=hit.session,
    )


def rerank(
    candidates: Sequence[Candidate],
    options: RankOptions,
    now_ms: int,
    cost_of: Callable[[Candidate], int],
) -> list[tuple[float, Candidate]]:
    """The candidates that are kept, best first, with their scores: the weighted sum of
    relevance, importance and freshness; no topic more than ``max_per_topic`` times; whole items
    until the first whose cost in tokens (``cost_of``) does not fit the budget."""
    scored = [
        (rank_score(options, one.relevance, one.importance, now_ms - one.ts), one.id)
        for one in candidates
    ]
    kept = select(
        options,
        scored,
        lambda index: candidates[index].topic,
        lambda index: cost_of(candidates[index]),
    )
    return [(scored[index][0], candidates[index]) for index in kept]
