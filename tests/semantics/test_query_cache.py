"""Kept answers: whatever happens to a store, they are those that a search would give.

The searcher beside a node searches the same store and keeps nothing, so the two must agree to
the byte, positions and importances included.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memsvc.domain import filters
from memsvc.domain.errors import MemsvcError
from memsvc.domain.types import (
    Caller,
    DegradedLevel,
    LateVector,
    Mode,
    Namespace,
    QueryRequest,
    RankOptions,
    WriteRequest,
)
from memsvc.rpc.answers import query_response
from memsvc.service.api import Control
from memsvc.service.derived import search_settings
from memsvc.service.node import Node
from memsvc.service.positions import format_position
from memsvc.service.querying import QueryService
from memsvc.service.recalls import RecallBuffer
from memsvc.service.search.costs import CostBook
from memsvc.service.search.searcher import Searcher
from memsvc.store import feed
from tests.semantics.generate import Generator
from tests.semantics.harness import (
    DAY,
    HOUR,
    READER,
    REVIEWER,
    InlineBuilder,
    World,
    make_settings,
    vector,
)

MakeWorld = Callable[..., World]
CACHE: dict[str, Any] = {"query__cache": True, "query__cache_ms": 600_000}


class Beside:
    """Answers from the store of a node without keeping any."""

    def __init__(self, node: Node) -> None:
        settings = replace(search_settings(node.settings), cache=None)
        self.searcher = Searcher(node.views, settings, CostBook(node.costs))
        self.recalls = RecallBuffer()
        self.service = QueryService(
            node.store,
            self.searcher,
            node.generations,
            node.degradation,
            self.recalls,
            node.progress,
            node.memory.settings,
            clock=node.clock,
            own_log_wait_s=lambda: 0.0,
        )


def told(service: QueryService, caller: Caller, request: QueryRequest) -> bytes | str:
    """The serialised answer, or why there is none."""
    try:
        return query_response(service.query(caller, request, Control()))
    except MemsvcError as error:
        return f"{error.code} {error}"


def hits_and_misses(node: Node) -> tuple[float, float]:
    """How often an answer was there, and was not."""
    found = {
        labels["result"]: value
        for name, labels, value in node.metrics.samples()
        if name == "memsvc_query_cache_total"
    }
    return found.get("hit", 0.0), found.get("miss", 0.0)


class Life:
    """Random changes of a store, and questions that come again and again."""

    def __init__(self, seed: int, world: World) -> None:
        self.draw = Generator(seed)
        self.world = world
        self.beside = Beside(world.node)
        questions = [self.draw.query(world.clock.now) for _ in range(12)]
        ranks = (None, None, RankOptions(), RankOptions(0.0, 0.5, 0.5, HOUR, 1, 40, 4))
        self.questions = [
            q if q.mode is Mode.BROWSE or q.ids else replace(q, rank=self.draw.rng.choice(ranks))
            for q in questions
        ]

        self.write()

    def write(self) -> None:
        """Something that is accepted; many of what is drawn names ids that are not there."""
        for _ in range(50):
            request = self.draw.write(self.world.clock.now)
            try:
                answer = self.world.node.memory.write(REVIEWER, request, Control())
            except MemsvcError:
                continue
            self.draw.ids += [r.id for r in answer.results]
            return

    def change(self) -> None:
        node, clock, rng = self.world.node, self.world.clock, self.draw.rng
        kinds = {"write": 8, "forget": 3, "turn": 8, "sweep": 4, "flush": 2, "seal": 1, "merge": 1,
                 "purge": 1}  # fmt: skip
        (kind,) = rng.choices(list(kinds), list(kinds.values()))
        if kind == "write":
            self.write()
        elif kind == "forget":
            try:
                node.memory.forget(REVIEWER, self.draw.forget(clock.now), Control())
            except MemsvcError:
                return
        elif kind == "turn":
            clock.turn(rng.choice((1, 1_000, 1_000, HOUR, 7 * HOUR, DAY)))
        elif kind == "sweep":
            node.sweep()
        elif kind == "flush":
            node.upkeep.flush_recalls()
        else:
            getattr(self.world, kind)()

    def ask(self) -> None:
        asked = self.draw.rng.sample(self.questions, 4)
        for number, request in enumerate((*asked, *asked)):
            if number == len(asked):
                self.world.clock.turn(self.draw.rng.choice((0, 1, 1_000, HOUR)))
            caller = REVIEWER if self.draw.chance(0.5) else READER
            kept = told(self.world.node.memory, caller, request)
            assert kept == told(self.beside.service, caller, request), request
        # What was selected counts, whether it was searched for or kept.
        mine = self.world.node.recalls
        with mine._lock, self.beside.recalls._lock:
            assert mine._pending == self.beside.recalls._pending

    def go(self, steps: int) -> None:
        try:
            for _ in range(steps):
                self.change()
                if not self.world.node.recalls._pending:
                    self.beside.recalls.take()  # they were flushed
                self.ask()
        finally:
            self.beside.searcher.close()


@pytest.mark.parametrize("seed", range(6), ids=lambda n: f"seed-{n}")
def test_a_kept_answer_is_the_one_that_a_search_gives(seed: int, make_world: MakeWorld) -> None:
    world = make_world(storage__seal_rows=10, **CACHE)
    Life(seed, world).go(40)
    hits, misses = hits_and_misses(world.node)
    assert hits > 20 and misses > 20, "the questions came too rarely, or never again"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 160), ids=lambda n: f"seed-{n}")
def test_kept_answers_of_a_long_life(seed: int, make_world: MakeWorld) -> None:
    Life(seed, make_world(storage__seal_rows=10, **CACHE)).go(200)


# -- one by one: what must end an answer, and what must not be one ----------------------------


@pytest.fixture
def kept(make_world: MakeWorld) -> World:
    """A world that keeps answers."""
    return make_world(**CACHE)


def hits_of(world: World, call: Callable[[], object]) -> float:
    """How many kept answers a call was given."""
    before, _ = hits_and_misses(world.node)
    call()
    return hits_and_misses(world.node)[0] - before


def test_answers_are_not_kept_unless_asked_for(world: World) -> None:
    world.put(vector=vector(1))
    for _ in range(3):
        world.query(vector=vector(1))
    assert hits_and_misses(world.node) == (0.0, 0.0)
    assert len(world.node.searcher.cache) == 0


def test_another_agents_write_ends_no_answer_and_moves_its_position(kept: World) -> None:
    found = kept.put(vector=vector(1))
    before = kept.query(vector=vector(1))
    kept.put(ns=("acme", "other"))
    answers: list[dict[str, Any]] = []
    assert hits_of(kept, lambda: answers.append(kept.query(vector=vector(1)))) == 1
    (after,) = answers
    assert [item["id"] for item in after["items"]] == [found]
    assert after["position"] != before["position"], "as of when it was asked, not searched"
    # Whoever goes on from it waits for no more than the answer has.
    assert kept.query(vector=vector(1), min_position=after["position"])["items"]


def test_an_acknowledged_write_is_found_although_an_answer_was_kept(kept: World) -> None:
    kept.put(vector=vector(1))
    for number in range(5):
        kept.query(vector=vector(1))
        new = kept.put(summary=f"number {number}", vector=vector(1))
        assert new in kept.ids(vector=vector(1))


def test_a_late_vector_ends_an_answer(kept: World) -> None:
    found = kept.put(summary="tea")
    assert kept.ids(vector=vector(1)) == []
    late = LateVector(found, np.array(vector(1), np.float32))
    kept.node.memory.write(Caller(), WriteRequest(Namespace("acme", "helper"), (late,)), Control())
    assert kept.ids(vector=vector(1)) == [found]


@pytest.mark.parametrize("fields", [{}, {"filters": {"attributes.shade": "dark"}}], ids=str)
def test_an_answer_that_is_kept_holds_nothing_of_the_search(
    kept: World, fields: dict[str, Any]
) -> None:
    """Candidates are views of columns; judged on the records, these have every row of the agent."""
    item = {"summary": "tea", "vector": vector(1), "metadata": {"attributes": {"shade": "dark"}}}
    kept.write(*(item for _ in range(200)))
    assert len(kept.ids(vector=vector(1), top_k=3, **fields)) == 3
    (entry,) = kept.node.searcher.cache._entries.values()
    (chosen,) = entry.kept.lists
    columns = [getattr(chosen.hits, field.name) for field in dataclasses.fields(chosen.hits)]
    arrays = [c for c in (*columns, chosen.stand_ins) if isinstance(c, np.ndarray)]
    assert len(arrays) == 7
    assert all(array.base is None and len(array) == 3 for array in arrays)


def test_what_expires_is_gone_from_an_answer_that_was_kept(kept: World) -> None:
    short = kept.put(vector=vector(1), ttl_ms=5_000)
    long = kept.put(vector=vector(1), ttl_ms=60_000)
    assert set(kept.ids(vector=vector(1))) == {short, long}
    kept.clock.turn(4_999)
    assert hits_of(kept, lambda: kept.ids(vector=vector(1))) == 1
    kept.clock.turn(1)
    assert kept.ids(vector=vector(1)) == [long]


def test_nothing_is_kept_while_an_expired_memory_waits_to_be_swept(kept: World) -> None:
    short = kept.put(vector=vector(1), ttl_ms=5_000)
    kept.clock.turn(5_000)
    assert kept.ids(vector=vector(1)) == []
    assert hits_of(kept, lambda: kept.query(vector=vector(1))) == 0
    # Not even for a clock that is set back.
    kept.clock.turn(-1)
    assert kept.ids(vector=vector(1)) == [short]
    kept.clock.turn(1)
    kept.node.sweep()
    kept.query(vector=vector(1))
    assert hits_of(kept, lambda: kept.query(vector=vector(1))) == 1


def test_importance_decays_in_an_answer_that_was_kept(make_world: MakeWorld) -> None:
    world = make_world(lifecycle__decay_half_life_days=1.0, **CACHE)
    world.put(vector=vector(1), metadata={"importance": 0.8})
    (before,) = world.query(vector=vector(1))["items"]
    world.clock.turn(DAY)
    answers: list[dict[str, Any]] = []
    assert hits_of(world, lambda: answers.append(world.query(vector=vector(1)))) == 1
    (after,) = answers[0]["items"]
    assert before["metadata"]["importance"] == pytest.approx(0.8)
    assert after["metadata"]["importance"] == pytest.approx(0.4)


def test_a_kept_ranking_goes_by_the_time_it_is_given_at(kept: World) -> None:
    """Freshness of the newer one falls faster, and the more important one overtakes it."""
    old = kept.put(vector=vector(1), metadata={"importance": 0.9})
    kept.clock.turn(HOUR)
    new = kept.put(vector=vector(1), metadata={"importance": 0.5})
    rank = {
        "similarity_weight": 0.0,
        "importance_weight": 0.5,
        "freshness_weight": 1.0,
        "half_life_ms": HOUR,
    }
    assert kept.ids(vector=vector(1), rank=rank) == [new, old]
    kept.clock.turn(6 * HOUR)
    found: list[str] = []
    assert hits_of(kept, lambda: found.extend(kept.ids(vector=vector(1), rank=rank))) == 1
    assert found == [old, new]


def test_recalls_are_counted_of_a_kept_answer_too(kept: World) -> None:
    kept.put(vector=vector(1))
    kept.query(vector=vector(1), rank={})
    assert hits_of(kept, lambda: kept.query(vector=vector(1), rank={})) == 1
    (batch,) = kept.node.recalls.batches()
    assert list(batch.counts.values()) == [2]


def test_a_reader_is_not_given_what_a_reviewer_was(kept: World) -> None:
    kept.put(summary="tea", status="REVIEW")
    both = filters.Condition("status", filters.In(("active", "review")))
    request = QueryRequest(Namespace("acme", "helper"), text="tea", filters=both)
    answer = kept.node.memory.query(REVIEWER, request, Control())
    assert len(answer.lists[0]) == 1
    assert "REVIEW" in str(told(kept.node.memory, READER, request))


@pytest.mark.parametrize(
    "fields",
    [
        {"include": {"explain": True}},
        {"fallback": True},
    ],
    ids=str,
)
def test_what_is_not_to_be_kept(kept: World, fields: dict[str, Any]) -> None:
    kept.put(vector=vector(1))
    kept.query(vector=vector(1), **fields)
    assert len(kept.node.searcher.cache) == 0
    kept.query(vector=vector(1))
    assert hits_of(kept, lambda: kept.query(vector=vector(1), **fields)) == 0


def test_reads_by_id_and_further_pages_are_not_kept(kept: World) -> None:
    ids = [kept.put() for _ in range(3)]
    kept.query(ids=ids)
    assert len(kept.node.searcher.cache) == 0
    token = kept.query(mode="BROWSE", top_k=1)["next_page_token"]
    assert len(kept.node.searcher.cache) == 1
    kept.query(mode="BROWSE", top_k=1, page_token=token)
    assert len(kept.node.searcher.cache) == 1
    # The token of a page that was kept is that of the page.
    assert kept.query(mode="BROWSE", top_k=1)["next_page_token"] == token


def test_a_forced_level_is_told_although_an_answer_was_kept(kept: World) -> None:
    kept.put(summary="tea", vector=vector(1))
    question: dict[str, Any] = {"vector": vector(1), "text": "tea"}
    kept.query(**question)
    for level in (DegradedLevel.FALLBACK, DegradedLevel.NO_VECTORS, DegradedLevel.NO_MEMORY):
        kept.node.degradation.force(level, "REHEARSAL")
        for _ in range(2):
            assert kept.query(**question)["degraded"]["level"] == int(level)
    kept.node.degradation.force(None, "")
    answers: list[dict[str, Any]] = []
    assert hits_of(kept, lambda: answers.append(kept.query(**question))) == 1
    assert answers[0]["degraded"]["level"] == 0


def test_a_reload_ends_every_answer(kept: World) -> None:
    kept.put(vector=vector(1))
    kept.query(vector=vector(1))
    node = kept.node
    node.apply(node.settings)
    assert hits_of(kept, lambda: kept.query(vector=vector(1))) == 0
    off = node.settings.query.model_copy(update={"cache": False})
    node.apply(node.settings.model_copy(update={"query": off}))
    _, misses = hits_and_misses(node)
    kept.query(vector=vector(1))
    assert hits_and_misses(node)[1] == misses


def test_upkeep_lets_go_of_what_nobody_asks_for_again(make_world: MakeWorld) -> None:
    world = make_world(query__cache=True, query__cache_ms=1)
    world.put(vector=vector(1))
    world.query(vector=vector(1))
    cache = world.node.searcher.cache
    assert cache.nbytes > 0
    while len(cache):
        world.node.tick()
    assert cache.nbytes == 0


def test_a_kept_answer_of_a_replica_ends_with_what_it_follows(
    make_world: MakeWorld, folder: Path
) -> None:
    primary = make_world()
    primary.put(vector=vector(1))
    primary.close()
    copied = shutil.copytree(primary.folder, folder / "replica")
    primary.open()
    settings = make_settings(copied, **CACHE)
    replica = Node(
        settings, clock=primary.clock, upkeep=False, follows=True, builders=InlineBuilder
    )
    request = QueryRequest(Namespace("acme", "helper"), vectors=(np.array(vector(1), np.float32),))
    try:
        replica.memory.query(READER, request, Control())
        for _ in range(5):
            hits, misses = hits_and_misses(replica)
            replica.memory.query(READER, request, Control())
            assert hits_and_misses(replica) == (hits + 1, misses)
            new = primary.write({"summary": "new", "vector": vector(1)})[0]["id"]
            with primary.node.store.read() as there, replica.store.read() as here:
                records = list(feed.records(there, here.position))
                position = format_position(there.store_id, there.epoch, there.position)
            replica.follow(records)
            asked = replace(request, min_position=position)
            found = replica.memory.query(READER, asked, Control())
            assert new in found.lists[0].ids and found.position == position
            assert hits_and_misses(replica) == (hits + 1, misses + 1)
    finally:
        replica.stop()
