"""Positions, waiting for them, and when a write is acknowledged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from memsvc.domain.errors import Code
from memsvc.domain.types import Namespace, NewMemory, QueryRequest, WriteRequest
from memsvc.service.api import Control
from memsvc.service.positions import format_position
from tests.semantics.harness import NS, READER, World, error_of

Make = Callable[..., World]


def test_a_write_is_found_by_the_next_query_without_asking_for_its_position(world: World) -> None:
    for number in range(20):
        kept = world.put(summary=f"m{number}")
        assert world.all()[0] == kept


def test_the_position_of_a_write_or_forget_can_be_waited_for(world: World) -> None:
    written = world.memory.write(list(NS), [{"summary": "tea"}])
    assert len(world.query(mode="BROWSE", min_position=written["position"])["items"]) == 1
    gone = world.forget(filters={"session": "s1"}, mode="HARD")
    answer = world.query(mode="BROWSE", min_position=gone["position"])
    assert (answer["items"], answer["position"]) == ([], gone["position"])


def test_the_position_of_an_unchanged_repeat_is_there_already(world: World) -> None:
    world.put(dedup_key="k")
    again = world.memory.write(list(NS), [{"dedup_key": "k", "summary": "x"}])
    assert again["position"] == world.query(mode="BROWSE")["position"]


def _at(world: World, ahead: int, epoch: int = 1, store_id: str = "") -> str:
    with world.node.store.read() as snapshot:
        return format_position(store_id or snapshot.store_id, epoch, snapshot.position + ahead)


def test_a_position_that_does_not_come_in_time_is_never_answered(world: World) -> None:
    world.put()
    request = QueryRequest(Namespace(*NS), text="memory", min_position=_at(world, 1))
    control = Control(deadline=time.monotonic() + 0.05)
    error = error_of(lambda: world.node.memory.query(READER, request, control))
    assert error.reason in ("POSITION_NOT_REACHED", "POSITION_LOST")


@pytest.mark.parametrize("position", ["x", "AAAA", "ä", "!!!!", "A" * 128])
def test_what_is_no_position_is_refused(world: World, position: str) -> None:
    error = error_of(lambda: world.query(mode="BROWSE", min_position=position))
    assert error.code is Code.INVALID_ARGUMENT


def test_a_position_of_another_history_or_store_is_lost(world: World) -> None:
    for position in (_at(world, 0, epoch=2), _at(world, 0, store_id="ab" * 16)):
        error = error_of(
            lambda position=position: world.query(mode="BROWSE", min_position=position)
        )
        assert (error.code, error.reason) == (Code.ABORTED, "POSITION_LOST")


def test_positions_and_times_go_on_after_a_restart(world: World) -> None:
    first = world.memory.write(list(NS), [{"summary": "tea"}])["position"]
    world.restart()
    assert world.query(mode="BROWSE", min_position=first)["position"] == first
    second = world.memory.write(list(NS), [{"summary": "tea"}])["position"]
    assert second != first


def test_lazy_writes_are_acknowledged_at_once_and_found_when_waited_for(make_world: Make) -> None:
    world = make_world(storage__wal_sync="every_1000ms")
    for number in range(5):
        answer = world.memory.write(list(NS), [{"summary": f"m{number}", "dedup_key": "k"}])
        assert answer["results"][0]["outcome"] == ("CREATED" if number == 0 else "EXISTS")
        found = world.query(mode="BROWSE", min_position=answer["position"])
        assert len(found["items"]) == 1


def test_a_graceful_stop_loses_no_lazy_write(make_world: Make) -> None:
    world = make_world(storage__wal_sync="every_1000ms")
    ids = [world.put(summary=f"m{number}") for number in range(20)]
    world.restart()
    assert set(world.all()) == set(ids)


def test_a_refused_lazy_write_leaves_the_others_alone(make_world: Make) -> None:
    world = make_world(storage__wal_sync="every_1000ms")
    kept = world.put()
    error = error_of(lambda: world.write({"summary": "x"}, {"touch": {"id": "nothing"}}))
    assert error.code is Code.NOT_FOUND
    world.restart()
    assert world.all() == [kept]


@pytest.mark.parametrize("sync", ["always", "every_1000ms"])
def test_compaction_during_writes_loses_nothing(make_world: Make, sync: str) -> None:
    world = make_world(storage__wal_sync=sync)
    gone = [world.put(summary="quokka secret") for _ in range(30)]
    written: list[str] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            request = WriteRequest(Namespace(*NS), (NewMemory(summary="tea"),))
            answer = world.node.memory.write(READER, request, Control())
            written.append(answer.results[0].id)

    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    for round_ in range(4):
        world.forget(ids=gone[round_ * 7 : round_ * 7 + 7], mode="HARD")
        world.purge()
    stop.set()
    for writer in writers:
        writer.join()
    world.restart()
    kept = {i for page in _pages(world) for i in page}
    assert kept == {*written, *gone[28:]}


def _pages(world: World) -> list[list[str]]:
    pages, token = [], ""
    while True:
        answer = world.query(mode="BROWSE", top_k=200, page_token=token or None)
        pages.append([h["id"] for h in answer["items"]])
        token = answer.get("next_page_token", "")
        if not token:
            return pages


def test_queries_during_seals_and_merges_are_whole_and_unmarked(make_world: Make) -> None:
    world = make_world(storage__seal_rows=20)
    ids = [world.put(summary="tea", vector=[1.0, *[0.0] * 7]) for _ in range(10)]
    stop = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not stop.is_set():
            for fields in ({"vector": [1.0, *[0.0] * 7]}, {"text": "tea"}, {"mode": "BROWSE"}):
                answer = world.query(**fields, top_k=200, filters={"topic": {"exists": False}})
                found = {h["id"] for h in answer["items"]}
                if answer["degraded"]["level"] or found != set(ids):
                    wrong.append((fields, answer["degraded"], len(found)))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(60):
        world.write(*[{"summary": "tea", "metadata": {"topic": "other"}}] * 5)
        world.merge()
    stop.set()
    for reader in readers:
        reader.join()
    assert wrong == []
