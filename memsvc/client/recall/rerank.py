"""Which of the candidates are kept, and in what order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from memsvc.client.messages import LAST_SEQ
from memsvc.domain.scoring import rank_score, select
from memsvc.domain.types import RankOptions
from memsvc.v1 import memory_service_pb2 as pb


@dataclass(frozen=True, slots=True)
class Candidate:
    """A memory that the service found. Times in UTC ms."""

    id: str
    summary: str
    relevance: float
    """How well it answers, on a scale of this one answer: by words, meaning, or both."""
    similarity: float | None = None
    """Cosine to the query; None without vectors."""
    importance: float = 0.5
    ts: int = 0
    topic: str = ""
    session: str = ""
    source: str = ""
    seq: int | None = None
    """First and last turn of the session (or piece of the source) that it covers."""
    last_seq: int | None = None

    def touches(self, other: Candidate) -> bool:
        """Whether it overlaps with another stretch of the same conversation, or lies next to
        it."""
        if self.seq is None or other.seq is None or not (self.session or self.source):
            return False
        if (self.session, self.source) != (other.session, other.source):
            return False
        last, other_last = self.last_seq or self.seq, other.last_seq or other.seq
        return self.seq <= other_last + 1 and other.seq <= last + 1


def candidates_of(answer: pb.QueryResponse) -> list[Candidate]:
    """The hits of an answer, best first."""
    return [_candidate(hit) for hit in answer.items]


def _candidate(hit: pb.Hit) -> Candidate:
    metadata = hit.metadata
    last = metadata.attributes.get(LAST_SEQ)
    return Candidate(
        id=hit.id,
        summary=hit.summary or hit.content,
        relevance=hit.score,
        similarity=hit.similarity if hit.HasField("similarity") else None,
        importance=metadata.importance,
        ts=metadata.ts,
        topic=metadata.topic,
        session=hit.session,
        source=metadata.source,
        seq=metadata.seq if metadata.HasField("seq") else None,
        last_seq=last.int_value if last is not None and last.HasField("int_value") else None,
    )


def with_neighbours(candidates: Sequence[Candidate], share: float) -> list[float]:
    """The relevances, each raised by a share of that of the best neighbour among the candidates:
    where two stretches side by side are found, people spoke about it there."""
    if share == 0:
        return [one.relevance for one in candidates]
    return [
        one.relevance
        + share
        * max((n.relevance for n in candidates if n is not one and one.touches(n)), default=0.0)
        for one in candidates
    ]


def spread(relevances: Sequence[float]) -> list[float]:
    """Relevances as shares of the way from the least to the greatest of them; all 1 where they
    are equal.

    Scores of one question lie close together (0.2 to 0.6 with the local model), importance and
    freshness take the whole of 0 to 1: added up as they are, a fresh memory about something
    else beats any answer.
    """
    least, greatest = min(relevances, default=0.0), max(relevances, default=0.0)
    width = greatest - least
    return [(one - least) / width if width > 0 else 1.0 for one in relevances]


def rerank(
    candidates: Sequence[Candidate],
    options: RankOptions,
    now_ms: int,
    cost_of: Callable[[Candidate], int],
    *,
    neighbours: float = 0.0,
) -> list[tuple[float, Candidate]]:
    """The candidates that are kept, best first, with their scores: the weighted sum of
    relevance (with a share of the ``neighbours``', spread over 0 to 1), importance and
    freshness; no topic more than ``max_per_topic`` times; whole items until the first whose cost
    in tokens (``cost_of``) does not fit the budget."""
    relevances = spread(with_neighbours(candidates, neighbours))
    scored = [
        (rank_score(options, relevance, one.importance, now_ms - one.ts), one.id)
        for relevance, one in zip(relevances, candidates, strict=True)
    ]
    kept = select(
        options,
        scored,
        lambda index: candidates[index].topic,
        lambda index: cost_of(candidates[index]),
    )
    return [(scored[index][0], candidates[index]) for index in kept]
