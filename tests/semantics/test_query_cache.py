"""Kept answers: what must end one, and what must not be one."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memsvc.domain import filters
from memsvc.domain.types import (
    Caller,
    DegradedLevel,
    LateVector,
    Namespace,
    QueryRequest,
    WriteRequest,
)
from memsvc.service.api import Control
from memsvc.service.node import Node
from memsvc.service.positions import format_position
from memsvc.store import feed
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
from tests.semantics.kept_answers import CACHE, hits_and_misses, hits_of, told
from tests.switching import switching_every

MakeWorld = Callable[..., World]


@pytest.fixture
def kept(make_world: MakeWorld) -> World:
    """A world that keeps answers."""
    return make_world(**CACHE)


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


def test_threads_that_ask_the_same_find_what_each_has_written(kept: World) -> None:
    """An answer must be kept for the position it was searched at, not for a later one."""
    failures: list[BaseException] = []

    def live() -> None:
        try:
            for _ in range(60):
                new = kept.put(vector=vector(1))
                for _ in range(3):
                    assert new in kept.ids(vector=vector(1), top_k=200)
                kept.forget(ids=[new], mode="HARD")
                assert new not in kept.ids(vector=vector(1), top_k=200)
        except BaseException as error:
            failures.append(error)

    with switching_every(1e-5):
        threads = [threading.Thread(target=live) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]
    assert hits_and_misses(kept.node)[0] > 0
