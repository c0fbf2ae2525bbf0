"""Callers that get in each other's way, go away, or come in great number."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import grpc
import pytest

from memsvc.domain.errors import MemsvcError
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc as rpc
from tests.scenarios.harness import Node, browse, by_word, fill, memory, namespace, vector, wire
from tests.semantics.harness import DAY, HOUR, World
from tests.waiting import until

THREADS = 32


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World(tmp_path / "data", storage__seal_rows=40)
    yield opened
    opened.close()


def at_once(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Results of as many threads, started together."""
    barrier = threading.Barrier(threads)

    def run(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(run, range(threads)))


def test_one_dedup_key_from_many_threads_makes_one_memory(world: World) -> None:
    def put(number: int) -> list[tuple[str, str]]:
        results = world.write(
            *({"dedup_key": f"key {k}", "summary": f"of thread {number}"} for k in (0, 1, 0))
        )
        return [(result["id"], result["outcome"]) for result in results]

    answers = [pair for answer in at_once(put) for pair in answer]
    assert len({id_text for id_text, _ in answers}) == 2
    assert sum(outcome == "CREATED" for _, outcome in answers) == 2
    assert len(world.all()) == 2


def test_one_request_id_from_many_threads_lowers_once(world: World) -> None:
    id_text = world.put(metadata={"importance": 0.8})
    answers = at_once(
        lambda _: world.forget(ids=[id_text], mode="DECAY", factor=0.5, request_id="once")
    )
    assert sum(not answer["replayed"] for answer in answers) == 1
    assert len({answer["position"] for answer in answers}) == 1
    found = world.get(id_text)
    assert found is not None
    assert found["importance_stored"] == pytest.approx(0.4)


def test_one_version_from_many_threads_is_updated_once(world: World) -> None:
    id_text = world.put()

    def update(number: int) -> bool:
        try:
            world.write({"update": {"id": id_text, "if_version": 1, "summary": f"by {number}"}})
        except MemsvcError as error:
            assert error.reason == "VERSION_MISMATCH"
            return False
        return True

    assert sum(at_once(update)) == 1


def test_updates_forgets_reads_and_maintenance_at_once_lose_and_revive_nothing(
    world: World,
) -> None:
    alive = {world.put(summary=f"memory number{n}") for n in range(200)}
    forgotten: set[str] = set()
    lock, seen = threading.Lock(), list[str]()
    done = threading.Event()

    def change(seed: int) -> None:
        random = Random(seed)
        for turn in range(60):
            with lock:
                id_text = random.choice(sorted(alive))
            try:
                if turn % 3 == 0:
                    world.write({"update": {"id": id_text, "summary": f"changed {seed} {turn}"}})
                elif turn % 3 == 1:
                    world.forget(ids=[id_text], mode="HARD")
                    with lock:
                        alive.discard(id_text)
                        forgotten.add(id_text)
                else:
                    made = world.put(summary=f"new memory {seed} {turn}")
                    with lock:
                        alive.add(made)
            except MemsvcError as error:
                assert error.reason == "MEMORY_NOT_FOUND"

    def read() -> None:
        while not done.is_set():
            with lock:
                gone = set(forgotten)
            found = world.ids(text="memory changed", top_k=200)
            seen.extend(id_text for id_text in found if id_text in gone)

    def maintain() -> None:
        while not done.is_set():
            world.purge()

    others = [threading.Thread(target=read), threading.Thread(target=maintain)]
    for other in others:
        other.start()
    try:
        at_once(change, 4)
    finally:
        done.set()
        for other in others:
            other.join()
    assert seen == []
    world.purge()
    found: set[str] = set()
    token = ""
    while True:
        page = world.query(mode="BROWSE", top_k=100, **({"page_token": token} if token else {}))
        found |= {item["id"] for item in page["items"]}
        token = page.get("next_page_token", "")
        if not token:
            break
    assert found == alive


def test_clock_that_jumps_back_neither_revives_nor_stops_anything(world: World) -> None:
    short = world.put(summary="short", ttl_ms=HOUR)
    world.clock.turn(2 * HOUR)
    world.node.tick()
    later = world.put(summary="later", ttl_ms=DAY)
    world.clock.turn(-10 * DAY)
    world.node.tick()
    assert world.get(short) is None
    assert world.get(later) is not None
    back = world.put(summary="written with a clock set back")
    found = world.get(back)
    assert found is not None
    assert found["created_at"] >= world.clock.now + 10 * DAY - 1
    assert set(world.all()) == {later, back}
    world.merge()
    world.restart()
    assert set(world.all()) == {later, back}
    assert world.forget(ids=[later], mode="HARD")["changed"] == 1


def test_namespaces_by_the_thousand_take_no_memory_beyond_the_budget(tmp_path: Path) -> None:
    world = World(tmp_path / "many", storage__tail_budget_bytes=1 << 20)
    try:
        for number in range(1_500):
            space = ("acme", f"agent{number}", "s")
            world.put(ns=space, summary=f"memory of agent{number}")
            assert len(world.ids(ns=space, text=f"agent{number}")) == 1
            world.ids(ns=("acme", f"nobody{number}", "s"), text="x")
        views = world.node.views
        assert views.nbytes <= views.budget
        assert len(views._holders) < 1_000
        with world.node.store.read() as snapshot:
            assert snapshot.count("names") == 1_500
    finally:
        world.close()


def test_clients_that_go_away_in_the_middle_leave_a_server_that_works(tmp_path: Path) -> None:
    node = Node(tmp_path / "node", server__max_connections=64)
    try:
        node.start()
        fill(node, range(50))

        def quit_early(seed: int) -> None:
            random = Random(seed)
            for _ in range(10):
                with grpc.insecure_channel(
                    f"127.0.0.1:{node.port}", options=[("grpc.use_local_subchannel_pool", 1)]
                ) as channel:
                    stub = rpc.MemoryServiceStub(channel)
                    query = pb.QueryRequest(namespace=namespace(), vector=wire(vector(seed)))
                    calls: list[Any] = [stub.Query.future(query) for _ in range(3)]
                    item = memory(random.randrange(100, 200))
                    write = pb.WriteRequest(namespace=namespace(), items=[item])
                    calls.append(stub.Write.future(write))
                    threading.Event().wait(random.random() / 200)
                    for call in calls:
                        call.cancel()

        at_once(quit_early, 8)
        assert len(by_word(node, "word1x").items) == 1
        found = browse(node)
        assert len({hit.summary for hit in found.values()}) == len(found)
        assert node.stub().Health(pb.HealthRequest()).ready
        # Writes whose callers left are still written, and may be waiting for it.
        until(
            lambda: node.stub().Health(pb.HealthRequest()).load.write_queue == 0,
            10,
            "an empty write queue",
        )
        assert "Traceback" not in node.log_file.read_text()
    finally:
        node.close()
