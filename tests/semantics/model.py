"""What memsvc must do, said naively: dictionaries, linear scans, float64.

The model shares with the service only its types, its tokenizer and the BM25 of one term. It
has no segments, no tail, no log and no index, so whatever those change in an answer shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from memsvc.domain import filters as f
from memsvc.domain.types import (
    Caller,
    ForgetMode,
    ForgetRequest,
    Outcome,
    QueryRequest,
    Status,
    Vector,
    WriteRequest,
)
from memsvc.text.bm25 import contributions, idf
from memsvc.text.tokenize import query_terms
from tests.semantics.batch import Batch
from tests.semantics.memories import Memory, Partition, f32, passes


@dataclass(frozen=True)
class Score:
    """What a memory scores in a query; NaN = none."""

    memory: Memory
    similarity: float
    words: float
    score: float


def sees_hidden(caller: Caller, request: QueryRequest) -> bool:
    """Whether memories that are not active may be found: by a reviewer who asks for them."""
    return caller.may_review and any(c.field == "status" for c in f.conditions(request.filters))


class Model:
    """The whole store. ``time`` is that of the last entry."""

    def __init__(self, default_ttl: int, purge_delay: int, half_life: int) -> None:
        self.partitions: dict[tuple[str, str], Partition] = {}
        self.time = 0
        self.default_ttl = default_ttl
        self.purge_delay = purge_delay
        self.half_life = half_life

    # -- write -------------------------------------------------------------------------

    def write(
        self, caller: Caller, request: WriteRequest, clock: int, ids: Sequence[str]
    ) -> list[tuple[str, Outcome, Status, int]]:
        """Results; ``ids`` are those the service gave, used for new memories."""
        key = (request.namespace.tenant, request.namespace.agent)
        now = max(clock, self.time)
        batch = Batch(
            self.partitions.get(key, Partition()).copy(),
            caller,
            request.namespace.session,
            now,
            self.default_ttl,
        )
        results = [batch.apply(item, i) for item, i in zip(request.items, ids, strict=True)]
        if batch.changed or request.request_id:
            self.time = now
        if batch.changed:
            self.partitions[key] = batch.partition
        return results

    # -- forget ------------------------------------------------------------------------

    def forget(self, request: ForgetRequest, clock: int) -> tuple[int, int, set[str]]:
        """Matched, changed and the ids matched."""
        now = max(clock, self.time)
        partition = self.partitions.get((request.namespace.tenant, request.namespace.agent))
        if partition is None:
            partition = Partition()
        hard = request.mode is ForgetMode.HARD
        wanted = request.ids or tuple(partition.memories)
        matched, changed = set(), 0
        for id_text in wanted:
            m = partition.memories.get(id_text)
            if m is None or m.status is Status.FORGOTTEN or id_text in matched:
                continue
            if not hard and m.status_at(now) is not Status.ACTIVE:
                continue
            if request.filters is not None and (m.erased or not passes(request.filters, m, now)):
                continue
            if m.erased and not request.ids:
                continue
            matched.add(id_text)
            lowered = m.importance * request.factor
            if not hard and lowered == m.importance:
                continue
            changed += 1
            if request.validate_only:
                continue
            self.time = now
            if hard:
                new = replace(
                    m,
                    version=m.version + 1,
                    status=Status.FORGOTTEN,
                    erased=True,
                    vector=None,
                    updated_at=now,
                    expires_at=0,
                )
            else:
                new = replace(m, importance=f32(lowered))
            partition.memories[id_text] = new
        if request.request_id and not request.validate_only:
            self.time = now
        return len(matched), 0 if request.validate_only else changed, matched

    # -- upkeep ------------------------------------------------------------------------

    def sweep(self, clock: int) -> None:
        """Expires, and erases what expired long enough ago."""
        now = max(clock, self.time)
        for partition in self.partitions.values():
            for m in list(partition.memories.values()):
                if m.status in (Status.EXPIRED, Status.FORGOTTEN) or not 0 < m.expires_at <= clock:
                    continue
                self.time = now
                partition.expired.append((now, m.row, m.id))
                partition.memories[m.id] = replace(
                    m, status=Status.EXPIRED, version=m.version + 1, updated_at=now
                )
        for partition in self.partitions.values():
            due = [e for e in partition.expired if e[0] <= clock - self.purge_delay]
            partition.expired = [e for e in partition.expired if e not in due]
            for _at, row, id_text in due:
                m = partition.memories[id_text]
                if m.row == row and m.status is Status.EXPIRED and not m.erased:
                    self.time = now
                    partition.memories[id_text] = replace(m, erased=True, vector=None)

    # -- query -------------------------------------------------------------------------

    def scope(self, caller: Caller, request: QueryRequest, clock: int) -> list[Memory]:
        """What a query may return, in order of rows."""
        partition = self.partitions.get((request.namespace.tenant, request.namespace.agent))
        if partition is None:
            return []
        now = max(clock, self.time)
        hidden = sees_hidden(caller, request)
        return sorted(
            (
                m
                for m in partition.memories.values()
                if not m.erased
                and (hidden or m.status_at(now) is Status.ACTIVE)
                and passes(request.filters, m, now)
                and (request.as_of is None or m.ts <= request.as_of)
            ),
            key=lambda m: m.row,
        )

    def counted(self, request: QueryRequest, hidden: bool) -> list[Memory]:
        """What word statistics count, filters aside: everything active, or everything that is
        stored when other statuses are asked for."""
        partition = self.partitions.get((request.namespace.tenant, request.namespace.agent))
        memories = partition.memories.values() if partition else ()
        return [m for m in memories if (hidden or m.status is Status.ACTIVE) and not m.erased]

    def importance(self, memory: Memory, at: int) -> float:
        """Effective importance."""
        age = at - max(memory.ts, memory.recalled_at)
        return memory.importance * (0.5 ** (age / self.half_life) if age > 0 else 1.0)

    def browse(self, scope: Iterable[Memory]) -> list[Memory]:
        """Newest first."""
        return sorted(scope, key=lambda m: (-m.ts, -m.row))

    def words(
        self, request: QueryRequest, scope: Iterable[Memory], hidden: bool
    ) -> tuple[dict[str, float], float]:
        """BM25 by id of those in scope that have any word, and the bound of scores."""
        live = [(m, m.words) for m in self.counted(request, hidden)]
        mean = sum(len(w) for _, w in live) / len(live) if live else 0.0
        scores: dict[str, float] = {}
        bound = []
        documents = [(m, m.words) for m in scope]
        for term in query_terms(request.text):
            weight = idf(len(live), sum(term in words for _, words in live))
            if weight <= 0:
                continue
            bound.append(weight)
            for m, words in documents:
                if term in words:
                    tf, length = np.array([words.count(term)]), np.array([len(words)])
                    added = float(contributions(weight, tf, length, mean)[0])
                    scores[m.id] = scores.get(m.id, 0.0) + added
        return scores, math.fsum(bound)

    def similarity(self, memory: Memory, query: Vector) -> float:
        """Cosine in float64; NaN without a vector."""
        if memory.vector is None:
            return math.nan
        a, b = memory.vector.astype(np.float64), query.astype(np.float64)
        return float(a @ b / math.sqrt(float(a @ a) * float(b @ b)))

    def scored(
        self,
        request: QueryRequest,
        scope: list[Memory],
        query: Vector | None,
        min_score: float,
        hidden: bool,
    ) -> list[Score]:
        """Everything a search by vector, by words or by both may return, best first. Those
        below ``min_score`` by less than rounding are in; the caller judges them."""
        words, bound = self.words(request, scope, hidden) if request.text else ({}, 0.0)
        found = []
        for m in scope:
            sim = self.similarity(m, query) if query is not None else math.nan
            word = words.get(m.id, 0.0)
            if query is None:
                if word > 0:
                    found.append(Score(m, math.nan, word, f32(word)))
            elif not request.text:
                if sim >= min_score - 1e-5:
                    found.append(Score(m, sim, math.nan, sim))
            elif word > 0 or sim >= min_score - 1e-5:
                close = 0.0 if math.isnan(sim) else min(max(sim, 0.0), 1.0)
                part = min(word, bound) / bound if bound > 0 else 0.0
                found.append(Score(m, sim, word, 0.5 * part + 0.5 * close))
        return sorted(found, key=lambda s: (-s.score, s.memory.row))
