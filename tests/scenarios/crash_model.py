"""What clients know was acknowledged, and what a store must show after a crash."""

from __future__ import annotations

import random
import threading
import uuid
from dataclasses import dataclass, field
from typing import Any

import grpc

from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2 as types
from tests.scenarios import harness as h

COMMON = "everymemory"
GONE_ERRORS = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)
FACTOR = 0.5
START_IMPORTANCE = 0.75
EVERYTHING = 10_000
"""The largest top_k there is: one answer has to show everything."""
MOST_EACH = 2_000
"""Memories of one of the four workers; with those nobody works on any more still fewer than
``EVERYTHING``."""
KINDS = {"create": 5, "touch": 3, "decay": 2, "update": 2, "forget": 1}


@dataclass
class Known:
    """One memory: what was acknowledged, and what may or may not have happened."""

    number: int
    id: str = ""
    created: bool = False
    forgotten: bool = False
    maybe_forgotten: bool = False
    touches: int = 0
    maybe_touches: int = 0
    decays: int = 0
    maybe_decays: int = 0
    revision: int = 0
    maybe_revision: int = 0


@dataclass
class Pending:
    """A call that got no answer: it happened or it did not."""

    known: Known
    kind: str
    request: pb.WriteRequest | pb.ForgetRequest


@dataclass
class Model:
    """Everything the clients of a store know."""

    memories: list[Known] = field(default_factory=list)
    pending: list[Pending] = field(default_factory=list)
    position: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def new(self) -> Known:
        """A memory that is about to be written."""
        with self.lock:
            known = Known(len(self.memories))
            self.memories.append(known)
            return known

    def resolve(self, node: h.Node, draw: random.Random) -> None:
        """After a restart: repeats some of the unanswered calls with the same request_id,
        after which they have happened exactly once; gives the others up."""
        pending, self.pending = self.pending, []
        for one in pending:
            if draw.random() < 0.6 or (one.kind == "create" and not one.known.id):
                answer = send(node, one.request)
                settle(one.known, one.kind, answer)
                # Once more: the answer must be the remembered one.
                again = send(node, one.request)
                assert again.replayed or one.kind == "create", "a repeat ran a second time"
            else:
                give_up(one.known, one.kind)


def send(node: h.Node, request: pb.WriteRequest | pb.ForgetRequest) -> Any:
    """Sends a Write or a Forget."""
    stub = node.stub()
    call = stub.Write if isinstance(request, pb.WriteRequest) else stub.Forget
    return call(request, timeout=h.CALL_S)


def settle(known: Known, kind: str, answer: Any) -> None:
    """Notes what an answer says."""
    if kind == "create":
        known.id, known.created = answer.results[0].id, True
        assert answer.results[0].outcome in (pb.OUTCOME_CREATED, pb.OUTCOME_EXISTS)
    elif kind == "touch":
        known.touches += 1
    elif kind == "decay":
        assert answer.matched == 1, answer
        known.decays += 1
    elif kind == "update":
        known.revision += 1
    elif kind == "forget":
        known.forgotten = True


def give_up(known: Known, kind: str) -> None:
    """Notes that a call may have happened."""
    if kind == "touch":
        known.maybe_touches += 1
    elif kind == "decay":
        known.maybe_decays += 1
    elif kind == "update":
        known.maybe_revision = known.revision + 1
    elif kind == "forget":
        known.maybe_forgotten = True


def text_of(number: int, revision: int) -> str:
    """The text of a memory at a revision."""
    return f"{COMMON} word{number}x revision {revision}"


class Worker:
    """A client that works on memories of its own, one call at a time."""

    def __init__(self, node: h.Node, model: Model, number: int, seed: int) -> None:
        self._node, self._model, self._draw = node, model, random.Random(seed)
        self._number = number
        self._mine = [k for k in model.memories if k.number % 4 == number and k.id and not _done(k)]
        self.acknowledged = 0
        self.failure: BaseException | None = None

    def run(self, stop: threading.Event) -> None:
        """Works until the server is gone."""
        try:
            while not stop.is_set() and self._step():
                pass
        except BaseException as error:
            self.failure = error

    def _step(self) -> bool:
        kinds = dict(KINDS, create=0) if len(self._mine) >= MOST_EACH else KINDS
        kind = self._draw.choices(list(kinds), list(kinds.values()))[0]
        if kind == "create" or not self._mine:
            kind, known = "create", self._model.new()
        else:
            known = self._draw.choice(self._mine)
        request = self._request(kind, known)
        try:
            answer = send(self._node, request)
        except (grpc.RpcError, ValueError) as error:
            if isinstance(error, grpc.RpcError) and error.code() not in GONE_ERRORS:
                raise
            with self._model.lock:
                self._model.pending.append(Pending(known, kind, request))
            return False
        settle(known, kind, answer)
        self.acknowledged += 1
        with self._model.lock:
            self._model.position = answer.position
        if kind == "create":
            self._mine.append(known)
        elif kind == "forget":
            self._mine.remove(known)
        return True

    def _request(self, kind: str, known: Known) -> pb.WriteRequest | pb.ForgetRequest:
        space, request_id = h.namespace(), str(uuid.uuid4())
        if kind in ("decay", "forget"):
            mode = pb.FORGET_MODE_DECAY if kind == "decay" else pb.FORGET_MODE_HARD
            return pb.ForgetRequest(
                namespace=space, request_id=request_id, ids=[known.id], mode=mode, factor=FACTOR
            )
        item = pb.WriteItem()
        if kind == "create":
            item = h.memory(known.number, text_of(known.number, 0))
            item.memory.metadata.CopyFrom(types.Metadata(importance=START_IMPORTANCE))
            # Half of them rely on dedup_key alone.
            request_id = request_id if known.number % 2 else ""
        elif kind == "touch":
            item.touch.CopyFrom(pb.Touch(id=known.id, kind=pb.TOUCH_KIND_USED))
        else:
            revision = known.revision + 1
            item.update.CopyFrom(
                pb.Update(
                    id=known.id,
                    content=text_of(known.number, revision),
                    vector=h.wire(h.vector(known.number)),
                )
            )
        return pb.WriteRequest(namespace=space, request_id=request_id, items=[item])


def _done(known: Known) -> bool:
    return known.forgotten or known.maybe_forgotten or bool(known.maybe_revision)


def check(node: h.Node, model: Model) -> dict[str, Any]:
    """Compares the store with what the clients know; returns AdminService.Inspect."""
    shown = h.browse(node)
    for known in model.memories:
        hit = shown.get(known.id) if known.id else None
        if not known.created:
            continue
        if known.forgotten:
            assert hit is None, f"a forgotten memory is back: {known}"
            continue
        if hit is None:
            assert known.maybe_forgotten, f"lost: {known}"
            continue
        _check_memory(known, hit)
    _check_ways_of_finding(node, model, set(shown))
    return _check_tables(node, model, len(shown))


def _check_memory(known: Known, hit: pb.Hit) -> None:
    assert known.touches <= hit.recall_count <= known.touches + known.maybe_touches, (known, hit)
    factor = hit.importance_stored / START_IMPORTANCE
    allowed = [FACTOR**n for n in range(known.decays, known.decays + known.maybe_decays + 1)]
    assert any(abs(factor - one) <= 1e-6 * one for one in allowed), (known, hit)
    revisions = {known.revision, known.maybe_revision or known.revision}
    assert hit.content in {text_of(known.number, r) for r in revisions}, (known, hit)


def _check_ways_of_finding(node: h.Node, model: Model, shown: set[str]) -> None:
    """Keywords, vectors and time agree about what there is."""
    assert len(shown) <= EVERYTHING
    by_word = h.by_word(node, COMMON, top_k=EVERYTHING)
    by_vector = h.by_vector(node, 0, top_k=EVERYTHING, min_position=model.position)
    for name, answer in (("keyword", by_word), ("vector", by_vector)):
        assert answer.degraded.level == 0, (name, answer.degraded)
        found = [hit.id for hit in answer.items]
        assert len(found) == len(set(found)), f"{name}: something twice"
        assert set(found) == shown, f"{name}: {len(found)} found, {len(shown)} shown"


def _check_tables(node: h.Node, model: Model, shown: int) -> dict[str, Any]:
    health = node.stub().Health(pb.HealthRequest(), timeout=h.CALL_S)
    assert health.store.memories == shown
    facts = node.inspect("acme", "bot", verify=True)
    tables = facts["tables"]
    assert facts["damaged_found"] == 0
    assert facts["memories"] == shown
    assert tables["states"] == tables["ids"] + tables["versions"]
    assert tables["texts"] == shown + tables["versions"] == tables["vectors"]
    assert tables["dedup"] == tables["ids"] <= len(model.memories)
    assert tables["requests"] == tables["request_times"]
    partition = facts["partition"]
    covered = sum(hi - lo for lo, hi in (s["rows"] for s in partition["segments"]))
    assert covered + partition["tail_rows"] == partition["rows"]
    return facts
