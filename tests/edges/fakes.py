"""Fake use cases, administration and tokens, and what they answer with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memsvc.domain.generations import Coverage, GenerationFacts, LackingMemory, NewGeneration
from memsvc.domain.hits import Hits
from memsvc.domain.ids import format_id, parse_id
from memsvc.domain.log import Generation
from memsvc.domain.manifest import GraphSettings
from memsvc.domain.rebuild import Plan, RebuildState, Step, StepState, progress_of
from memsvc.domain.records import STATE_DTYPE
from memsvc.domain.types import (
    Caller,
    Degraded,
    DegradedLevel,
    ForgetAnswer,
    ForgetRequest,
    HealthAnswer,
    Hit,
    Load,
    Mode,
    Outcome,
    QueryAnswer,
    QueryRequest,
    Status,
    StoreFacts,
    WriteAnswer,
    WriteRequest,
    WriteResult,
)
from memsvc.service.api import (
    AgentFacts,
    Control,
    Promoted,
    RebuildAnswer,
    RebuildFailure,
    SnapshotFacts,
)
from memsvc.service.rebuild import RebuildFacts
from memsvc.service.rebuild_plan import Survey
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2


def make_hit(number: int = 0, **changes: Any) -> Hit:
    """A hit as the read path makes it."""
    head = pb.Hit(
        summary=f"summary {number}",
        session="s1",
        metadata=types_pb2.Metadata(
            seq=number,
            role="user",
            topic="food",
            attributes={
                "city": types_pb2.Value(string_value="Bern"),
                "tags": types_pb2.Value(list_value=types_pb2.StringList(values=["a", "b"])),
            },
        ),
    ).SerializeToString()
    values: dict[str, Any] = {
        "id": hit_id(number),
        "row": number,
        "head": head,
        "score": 0.75,
        "similarity": 0.75,
        "keyword_score": None,
        "importance": 0.25,
        "importance_stored": 0.5,
        "ts": 1_700_000_000_000,
        "version": 1,
        "status": Status.ACTIVE,
        "created_at": 1_700_000_000_001,
        "updated_at": 1_700_000_000_002,
        "expires_at": 0,
        "recall_count": 2,
    }
    return Hit(**{**values, **changes})


def hit_id(number: int) -> str:
    """The id of ``make_hit(number)``."""
    return format_id(number.to_bytes(16, "big"))


def hits_of(*hits: Hit) -> Hits:
    """The same hits as columns."""
    states = np.zeros(len(hits), STATE_DTYPE)
    for state, hit in zip(states, hits, strict=True):
        state["id"] = parse_id(hit.id)
        state["importance"] = hit.importance_stored
        for name in (
            "ts",
            "version",
            "status",
            "created_at",
            "updated_at",
            "expires_at",
            "recall_count",
        ):
            state[name] = getattr(hit, name)

    def floats(values: Iterable[float | None]) -> np.ndarray[Any, Any]:
        return np.array([np.nan if v is None else v for v in values], np.float32)

    return Hits(
        rows=np.array([hit.row for hit in hits], np.int64),
        heads=[hit.head for hit in hits],
        states=states,
        scores=floats(hit.score for hit in hits),
        similarities=floats(hit.similarity for hit in hits),
        words=floats(hit.keyword_score for hit in hits),
        importance=floats(hit.importance for hit in hits),
        now=0,
        contents=[hit.content for hit in hits],
        vectors=[hit.vector for hit in hits],
    )


@dataclass
class FakeApi:
    """Records what it is asked and answers from its fields; ``fail`` is raised instead."""

    hits: list[Hit] = field(default_factory=lambda: [make_hit(0), make_hit(1)])
    fail: Exception | None = None
    during: Callable[[Control], None] | None = None
    asked: list[Any] = field(default_factory=list)
    callers: list[Caller] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    ready: bool = True
    degraded: Degraded = field(default_factory=Degraded)

    def _note(self, caller: Caller, request: Any, control: Control) -> None:
        self.asked.append(request)
        self.callers.append(caller)
        self.controls.append(control)
        if self.during:
            self.during(control)
        if self.fail:
            raise self.fail

    def write(self, caller: Caller, request: WriteRequest, control: Control) -> WriteAnswer:
        self._note(caller, request, control)
        results = tuple(
            WriteResult(f"id-{i}", Outcome.CREATED, Status.ACTIVE, 1)
            for i in range(len(request.items))
        )
        return WriteAnswer(results, "pos-1")

    def query(self, caller: Caller, request: QueryRequest, control: Control) -> QueryAnswer:
        self._note(caller, request, control)
        lists = (hits_of(*self.hits),) * (len(request.vectors) if request.many else 1)
        return QueryAnswer(lists, request.many, Mode.VECTOR, "pos-2", self.degraded)

    def forget(self, caller: Caller, request: ForgetRequest, control: Control) -> ForgetAnswer:
        self._note(caller, request, control)
        return ForgetAnswer(2, 1, ("id-0",), False, "pos-3")

    def health(self) -> HealthAnswer:
        return HealthAnswer(
            ready=self.ready,
            role="standalone",
            position="pos-9",
            degraded=Degraded(DegradedLevel.NONE),
            load=Load(1, 5_000, 2),
            store=StoreFacts(10, 1, 2, 1_000, 0, 4, "", "bf16", 500, 0),
            version="0.1.0",
            store_id="store-1",
        )


@dataclass
class FakeAdmin:
    """Answers every administration call with something to translate."""

    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def list_tenants(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[list[AgentFacts], str]:
        self.asked.append((tenant, page_size, page_token))
        return [AgentFacts("acme", "bot", 3, 2, 100)], "next"

    def export_tenant(
        self, tenant: str, agent: str, vectors: bool
    ) -> tuple[int, Iterator[dict[str, object]]]:
        self.asked.append((tenant, agent, vectors))
        return 2, iter([{"id": "1", "content": "köln"}, {"id": "2"}])

    def erase_tenant(
        self, caller: Caller, tenant: str, agent: str, validate_only: bool, reason: str
    ) -> tuple[int, str]:
        self.asked.append((caller.actor, tenant, agent, validate_only, reason))
        return 7, "pos-7"

    def set_degraded(self, level: int | None, reason: str) -> tuple[Degraded, bool]:
        self.asked.append((level, reason))
        return Degraded(DegradedLevel(level or 0), reason), level is not None

    def inspect(
        self, tenant: str, agent: str, verify: bool, log_tail: int, memory_id: str
    ) -> dict[str, object]:
        self.asked.append((tenant, agent, verify, log_tail, memory_id))
        return {"partitions": 1}

    def maintain(
        self, seal_min_rows: int, merge_all: bool, purge: bool, wait_seconds: float
    ) -> tuple[int, bool]:
        self.asked.append((seal_min_rows, merge_all, purge, wait_seconds))
        return 1, True

    def start_rebuild(
        self, tenant: str, agent: str, everything: bool, validate_only: bool
    ) -> RebuildAnswer:
        self.asked.append((tenant, agent, everything, validate_only))
        return self.rebuild()

    def rebuild(self) -> RebuildAnswer:
        plan = Plan("1f", 5, GraphSettings("f16", 24, 300), state=RebuildState.FAILED, ended=9)
        step = Step(1, "s1", 10, StepState.FAILED, "bad")
        facts = RebuildFacts(plan, progress_of([step]), Survey(4, 3, 1))
        return RebuildAnswer(facts, (RebuildFailure("acme", "bot", "s1", "bad"),))

    def cancel_rebuild(self) -> RebuildAnswer:
        return self.rebuild()

    @property
    def generations(self) -> FakeGenerations:
        return FakeGenerations(self.asked)

    def reload(self) -> tuple[list[str], list[str]]:
        return ["query.min_score"], ["server.listen"]

    def take_snapshot(self) -> SnapshotFacts:
        self.asked.append("snapshot")
        return SnapshotFacts("/snapshots/one", 7, 2, 1_000, 4_096)

    def promote(self, force: bool, accept_loss: bool) -> Promoted:
        self.asked.append((force, accept_loss))
        return Promoted(3, 8, "node-1:8850", ("node-3:8850",), accept_loss)


class FakeGenerations:
    """Embedding models that are as they are, and what was asked of them."""

    def __init__(self, asked: list[object]) -> None:
        self.asked = asked

    def facts(self) -> list[GenerationFacts]:
        old, new = Generation(1, "old", 8, True), Generation(2, "new", 12, False)
        gone = Generation(3, "gone", 4, False, dropped=True)
        return [
            GenerationFacts(old, Coverage(10, 10, 10, 10)),
            GenerationFacts(new, Coverage(10, 4, 10, 4), eta_ms=60_000),
            GenerationFacts(gone, erasing=True),
            GenerationFacts(gone),
        ]

    def create(self, caller: Caller, wish: NewGeneration, validate_only: bool) -> GenerationFacts:
        self.asked.append((caller.actor, wish, validate_only))
        made = Generation(2, wish.embedding, wish.dimension, False, m=wish.m)
        return GenerationFacts(made, Coverage(10, 0, 10, 0), needed_bytes=5_000)

    def make_default(
        self,
        caller: Caller,
        embedding: str,
        min_coverage: float,
        force: bool,
        validate_only: bool,
    ) -> GenerationFacts:
        self.asked.append((caller.actor, embedding, min_coverage, force, validate_only))
        return GenerationFacts(Generation(2, embedding, 12, True), Coverage(10, 10, 10, 10))

    def drop(
        self, caller: Caller, embedding: str, confirm: str, validate_only: bool
    ) -> GenerationFacts:
        self.asked.append((caller.actor, embedding, confirm, validate_only))
        gone = Generation(1, embedding, 8, False, dropped=True)
        return GenerationFacts(gone, Coverage(10, 10, 10, 10), erasing=True)

    def lacking(
        self, tenant: str, agent: str, embedding: str, page_size: int, page_token: str
    ) -> tuple[list[LackingMemory], str]:
        self.asked.append((tenant, agent, embedding, page_size, page_token))
        found = LackingMemory("acme", "bot", "s", bytes(15) + b"1", 3, Status.REVIEW, "köln", "c")
        return [found], "" if page_token else "more"


@dataclass(frozen=True)
class FakePrincipal:
    """A token for one tenant/agent prefix."""

    name: str
    prefix: tuple[str, ...]
    rights: frozenset[str]

    def allows(
        self,
        right: str,
        tenant: str | None = None,
        agent: str | None = None,
        session: str | None = None,
    ) -> bool:
        target = tuple(part for part in (tenant, agent, session) if part)
        return right in self.rights and target[: len(self.prefix)] == self.prefix


class FakeTokens:
    """Tokens by their text."""

    def __init__(self, **principals: FakePrincipal) -> None:
        self.principals = principals

    def authenticate(self, token: str, now_ms: int) -> FakePrincipal | None:
        return self.principals.get(token)


EVERYTHING = FakePrincipal("root", (), frozenset({"read", "write", "forget", "admin", "review"}))
