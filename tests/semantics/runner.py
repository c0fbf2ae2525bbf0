"""One random life of a store, beside the model of it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from memsvc.domain import filters as f
from memsvc.domain.errors import MemsvcError
from memsvc.domain.types import (
    Caller,
    ForgetRequest,
    Hit,
    Mode,
    QueryAnswer,
    QueryRequest,
    Status,
    Vector,
    WriteRequest,
)
from memsvc.service.api import Control
from memsvc.store import heads
from tests.semantics.generate import PLACES, Generator
from tests.semantics.harness import DAY, HOUR, READER, REVIEWER, Clock, World
from tests.semantics.invariants import check_replay, check_store
from tests.semantics.memories import Memory, Refused, f32
from tests.semantics.model import Model, Score, sees_hidden

EDGE = 2e-6
"""Cosines of float32 vectors in 8 dimensions agree with float64 to this."""
SHARE = {"write": 40, "forget": 8, "query": 40, "turn": 4, "sweep": 3, "seal": 2, "merge": 1,
         "purge": 1, "restart": 1, "flush": 0, "count": 2}  # fmt: skip


class Run:
    """A sequence of steps, decided by the seed alone. ``settings`` change the store, and
    ``share`` how often each step is taken."""

    def __init__(
        self, seed: int, folder: Path, share: dict[str, int] = SHARE, **settings: object
    ) -> None:
        self.seed = seed
        self.share = share
        self.draw = Generator(seed)
        self.clock = Clock()
        self.world = World(
            folder,
            self.clock,
            random=random.Random(seed).randbytes,
            storage__seal_rows=self.draw.rng.choice((4, 10, 25)),
            lifecycle__default_ttl_days=self.draw.rng.choice((0, 2, 180)),
            **settings,
        )
        lifecycle = self.world.node.settings.lifecycle
        self.model = Model(
            int(lifecycle.default_ttl_days * DAY),
            int(lifecycle.purge_within_hours * HOUR / 2),
            int(lifecycle.decay_half_life_days * DAY),
        )
        self.model.time = self.clock.now
        self.remembered: dict[tuple[str, ...], tuple[int, bytes, Any]] = {}
        self.sent: list[WriteRequest | ForgetRequest] = []
        self.steps: list[str] = []

    def go(self, steps: int) -> None:
        """Runs, compares after each step, and tells all steps when something differs."""
        kinds, weights = list(self.share), list(self.share.values())
        try:
            for _ in range(steps):
                (kind,) = self.draw.rng.choices(kinds, weights)
                getattr(self, f"_{kind}")()
            check_store(self.world.node)
            check_replay(self.world.node, self.world.folder / "replay")
        except Exception as error:
            told = "\n".join(self.steps[-40:])
            raise AssertionError(
                f"seed {self.seed}, step {len(self.steps)}: {type(error).__name__}: {error}\n{told}"
            ) from error
        finally:
            self.world.close()

    def _note(self, kind: str, what: object = "") -> None:
        self.steps.append(f"{len(self.steps) + 1:3} {kind} {what!r}")

    def _caller(self) -> Caller:
        return REVIEWER if self.draw.chance(0.5) else READER

    # -- changes -----------------------------------------------------------------------

    def _write(self) -> None:
        again = [r for r in self.sent if isinstance(r, WriteRequest)]
        if again and self.draw.chance(0.1):
            request = self.draw.rng.choice(again)
        else:
            request = self.draw.write(self.clock.now)
        caller = self._caller()
        self._note("write", (caller.actor, request))
        answer, code = _called(lambda: self.world.node.memory.write(caller, request, Control()))
        known = self._known("w", request)
        if known is not None:
            self._repeated(known, request, answer, code)
            return
        ids = [r.id for r in answer.results] if answer else [str(n) for n in range(1_000)]
        try:
            wanted = self.model.write(caller, request, self.clock.now, ids[: len(request.items)])
        except Refused as refused:
            assert code == str(refused), f"answered {code}, expected {refused}"
            return
        assert code == "", f"refused with {code}"
        found = [(r.id, r.outcome, r.status, r.version) for r in answer.results]
        assert found == wanted, f"{found} is not {wanted}"
        self.draw.ids += [r.id for r in answer.results if r.outcome == 1]
        self._remember("w", request, answer)

    def _forget(self) -> None:
        again = [r for r in self.sent if isinstance(r, ForgetRequest)]
        if again and self.draw.chance(0.2):
            request = self.draw.rng.choice(again)
        else:
            request = self.draw.forget(self.clock.now)
        caller = self._caller()
        self._note("forget", (caller.actor, request))
        if isinstance(request.filters, f.And) and request.filters.filters[-1:] == (f.And(()),):
            request = replace(request, filters=request.filters.filters[0])
        answer, code = _called(lambda: self.world.node.memory.forget(caller, request, Control()))
        if request.validate_only and not caller.may_review and _hidden_named(request.filters):
            # A preview tells no more than a query by the same filter would.
            assert code == "PERMISSION_DENIED", f"answered {code!r}"
            return
        known = None if request.validate_only else self._known("f", request)
        if known is not None:
            self._repeated(known, request, answer, code)
            return
        assert code == "", f"refused with {code}"
        matched, changed, ids = self.model.forget(request, self.clock.now)
        found = (answer.matched, answer.changed, set(answer.ids))
        assert found == (matched, changed, ids), f"{found} is not {(matched, changed, ids)}"
        if not request.validate_only:
            self._remember("f", request, answer)

    def _known(
        self, call: str, request: WriteRequest | ForgetRequest
    ) -> tuple[int, bytes, Any] | None:
        if not request.request_id:
            return None
        ns = request.namespace
        known = self.remembered.get((call, ns.tenant, ns.agent, request.request_id))
        now = max(self.clock.now, self.model.time)
        return known if known is not None and known[0] + DAY > now else None

    def _repeated(
        self,
        known: tuple[int, bytes, Any],
        request: WriteRequest | ForgetRequest,
        answer: Any,
        code: str,
    ) -> None:
        if known[1] != request.fingerprint:
            assert code == "INVALID_ARGUMENT", f"a reused request_id was answered {code!r}"
            return
        assert code == "" and answer == replace(known[2], replayed=True), f"{answer}, {known[2]}"

    def _remember(self, call: str, request: Any, answer: Any) -> None:
        if not request.request_id:
            return
        self.sent.append(request)
        ns = request.namespace
        key = (call, ns.tenant, ns.agent, request.request_id)
        self.remembered[key] = (self.model.time, request.fingerprint, answer)

    # -- time and upkeep ---------------------------------------------------------------

    def _turn(self) -> None:
        self.clock.turn(self.draw.rng.choice((1, 1_000, HOUR, 7 * HOUR, DAY, 9 * DAY)))
        self._note("turn", self.clock.now)

    def _sweep(self) -> None:
        self._note("sweep")
        self.world.node.sweep()
        self.model.sweep(self.clock.now)

    def _seal(self) -> None:
        self._note("seal")
        self.world.seal()

    def _merge(self) -> None:
        self._note("merge")
        self.world.merge()

    def _purge(self) -> None:
        self._note("purge")
        self.world.purge()
        self.model.sweep(self.clock.now)

    def _restart(self) -> None:
        self._note("restart")
        self.world.restart()

    def _count(self) -> None:
        self._note("count")
        facts, _ = self.world.admin.list_tenants("", 0, "")
        found = {(p.tenant, p.agent): (p.memories, p.active) for p in facts}
        for place in set(PLACES):
            partition = self.model.partitions.get(place)
            memories = partition.memories.values() if partition else ()
            kept = [m for m in memories if m.status is not Status.FORGOTTEN]
            wanted = (len(kept), sum(m.status is Status.ACTIVE for m in kept))
            assert found.get(place, (0, 0)) == wanted, f"{place}: {found.get(place)} not {wanted}"

    # -- queries -----------------------------------------------------------------------

    def _query(self) -> None:
        request, caller = self.draw.query(self.clock.now), self._caller()
        # A clock that went back must not bring back what has expired.
        back = HOUR if self.draw.chance(0.05) else 0
        self._note("query", (caller.actor, back, request))
        clock = self.clock.now - back
        self.clock.now = clock
        try:
            self._compare(caller, request, clock)
        finally:
            self.clock.now += back

    def _ask(self, caller: Caller, request: QueryRequest) -> tuple[Any, str]:
        return _called(lambda: self.world.node.memory.query(caller, request, Control()))

    def _compare(self, caller: Caller, request: QueryRequest, clock: int) -> None:
        answer, code = self._ask(caller, request)
        if not caller.may_review and _hidden_named(request.filters):
            assert code == "PERMISSION_DENIED", f"answered {code!r}"
            return
        assert code == "", f"refused with {code}"
        assert answer.degraded.level == 0, f"degraded: {answer.degraded}"
        scope = self.model.scope(caller, request, clock)
        for hits in answer.lists:
            for hit in hits:
                self._same(hit, request, clock)
        if request.ids:
            by_id = {m.id: m for m in scope}
            _equal(_ids(answer), [i for i in request.ids if i in by_id])
        elif request.mode is Mode.BROWSE:
            self._pages(caller, request, answer, scope)
        else:
            queries: list[Vector | None] = list(request.vectors) or [None]
            for hits, query in zip(answer.lists, queries, strict=True):
                self._ordered(hits, request, scope, query, sees_hidden(caller, request))

    def _pages(
        self, caller: Caller, request: QueryRequest, answer: QueryAnswer, scope: list[Memory]
    ) -> None:
        found = _ids(answer)
        while answer.next_page_token:
            answer, code = self._ask(caller, replace(request, page_token=answer.next_page_token))
            assert code == "", f"page refused with {code}"
            assert answer.lists[0], "an empty page"
            found += _ids(answer)
        _equal(found, [m.id for m in self.model.browse(scope)])

    def _ordered(
        self,
        hits: list[Hit],
        request: QueryRequest,
        scope: list[Memory],
        query: Vector | None,
        hidden: bool,
    ) -> None:
        settings = self.world.node.settings
        top_k = request.top_k or settings.query.default_top_k
        least = settings.query.min_score if request.min_score is None else request.min_score
        keyword = request.mode is Mode.KEYWORD
        scored = self.model.scored(request, scope, None if keyword else query, least, hidden)
        if keyword or query is None:
            _equal([h.id for h in hits], [s.memory.id for s in scored[:top_k]])
        else:
            _near(hits, scored, top_k, least)
        by_id = {s.memory.id: s for s in scored}
        for hit in hits:
            wanted = by_id[hit.id]
            similar = math.nan if query is None else self.model.similarity(wanted.memory, query)
            _close(hit.similarity, similar, "similarity")
            _close(hit.keyword_score, f32(wanted.words) or math.nan, "keyword_score")
            _close(hit.score, wanted.score, "score")

    def _same(self, hit: Hit, request: QueryRequest, clock: int) -> None:
        """Everything an answer says about a memory."""
        partition = self.model.partitions[request.namespace.tenant, request.namespace.agent]
        m = partition.memories[hit.id]
        now = max(clock, self.model.time)
        head = heads.parse_head(hit.head)
        for name in ("version", "ts", "expires_at", "recall_count", "created_at", "updated_at"):
            found, wanted = getattr(hit, name), getattr(m, name)
            assert found == wanted, f"{hit.id}: {name} {found} is not {wanted}"
        found = (hit.status, hit.importance_stored, head.summary, head.session)
        wanted = (m.status_at(now), m.importance, m.shown, m.session)
        assert found == wanted, f"{hit.id}: {found} is not {wanted}"
        at = now if request.as_of is None else request.as_of
        _close(hit.importance, self.model.importance(m, at), "importance")
        assert hit.content == (m.content if request.include.content else None)
        if request.include.vector and m.vector is not None:
            assert hit.vector is not None and np.array_equal(hit.vector, m.vector)
        else:
            assert hit.vector is None


def _called(call: Callable[[], Any]) -> tuple[Any, str]:
    try:
        return call(), ""
    except MemsvcError as error:
        return None, error.code.name


def _ids(answer: QueryAnswer) -> list[str]:
    return [hit.id for hits in answer.lists for hit in hits]


def _equal(found: list[str], wanted: list[str]) -> None:
    assert found == wanted, (
        f"{len(found)} found, {len(wanted)} expected; missing {set(wanted) - set(found)}, "
        f"too many {set(found) - set(wanted)}, in order {found} not {wanted}"
    )


def _close(found: float | None, wanted: float, what: str) -> None:
    if found is None or math.isnan(wanted):
        assert found is None and math.isnan(wanted), f"{what} {found} is not {wanted}"
    else:
        assert math.isclose(found, wanted, rel_tol=1e-5, abs_tol=1e-6), f"{what} {found}, {wanted}"


def _near(hits: list[Hit], scored: list[Score], top_k: int, least: float) -> None:
    """The best ``top_k`` in falling order, give or take what rounding may swap."""
    by_id = {s.memory.id: s for s in scored}
    ids = [h.id for h in hits]
    assert len(set(ids)) == len(ids), f"twice in the answer: {ids}"
    assert set(ids) <= set(by_id), f"too many: {set(ids) - set(by_id)}"
    certain = [s for s in scored if s.words > 0 or s.similarity >= least + EDGE]
    assert min(top_k, len(certain)) <= len(ids) <= min(top_k, len(scored)), (
        f"{len(ids)} hits, {len(certain)} to {len(scored)} match"
    )
    for first, second in pairwise(ids):
        a, b = by_id[first], by_id[second]
        assert a.score >= b.score - EDGE, f"{first} before {second}: {a.score} < {b.score}"
        if _twins(a, b):
            assert a.memory.row < b.memory.row, f"equal ones out of order: {first}, {second}"
    if len(ids) == top_k and ids:
        last = min(by_id[i].score for i in ids)
        missed = [s.memory.id for s in certain if s.score > last + EDGE and s.memory.id not in ids]
        assert not missed, f"missed {missed}"


def _twins(a: Score, b: Score) -> bool:
    same = a.memory.vector is not None and b.memory.vector is not None
    return same and a.words == b.words and np.array_equal(a.memory.vector, b.memory.vector)


def _hidden_named(node: f.Filter | None) -> bool:
    for condition in f.conditions(node):
        test = condition.test
        if condition.field == "status" and isinstance(test, f.Equals | f.In):
            named = test.values if isinstance(test, f.In) else (test.value,)
            if set(named) - {"active"}:
                return True
    return False
