"""kill -9 at random moments under load: nothing acknowledged is lost, nothing is doubled.

``CRASH_ROUNDS`` sets the number of rounds, ``CRASH_SEED`` the random numbers.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable

import grpc
import psutil
import pytest

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import harness as h
from tests.scenarios.crash_model import EVERYTHING, Model, Worker, check
from tests.waiting import until

WORKERS = 4
SEED = int(os.environ.get("CRASH_SEED", "0")) or random.randrange(1 << 30)


def _maintain_now_and_then(node: h.Node, stop: threading.Event, draw: random.Random) -> None:
    """Keeps sealing, merging and compacting under way."""
    while not stop.wait(draw.uniform(0.1, 0.8)):
        request = admin_pb.MaintainRequest(
            seal_min_rows=draw.choice([0, 1, 20]),
            merge_all=draw.random() < 0.4,
            purge=draw.random() < 0.5,
        )
        try:
            node.admin().Maintain(request, timeout=5)
        except (grpc.RpcError, ValueError):
            return


def _crash_round(node: h.Node, model: Model, draw: random.Random) -> int:
    """Load until the server (and sometimes before it a builder) is killed. Returns the
    calls that were acknowledged."""
    stop = threading.Event()
    workers = [Worker(node, model, number, draw.randrange(1 << 30)) for number in range(WORKERS)]
    threads = [threading.Thread(target=worker.run, args=(stop,)) for worker in workers]
    threads.append(
        threading.Thread(
            target=_maintain_now_and_then, args=(node, stop, random.Random(draw.random()))
        )
    )
    for thread in threads:
        thread.start()
    if draw.random() < 0.5:
        time.sleep(draw.uniform(0.1, 1.5))
        for builder in node.builders():
            with contextlib.suppress(psutil.Error):
                builder.kill()
    time.sleep(draw.uniform(0.1, 2.5))
    process = node.process
    assert process is not None
    process.kill()
    process.wait()
    stop.set()
    for thread in threads:
        thread.join(h.CALL_S + 10)
        assert not thread.is_alive(), "a client hangs"
    node.disconnect()
    for worker in workers:
        assert worker.failure is None, worker.failure
    return sum(worker.acknowledged for worker in workers)


def _run(make_node: Callable[..., h.Node], rounds: int) -> None:
    draw = random.Random(SEED)
    h.tell(f"seed {SEED}")
    node = make_node(
        storage__seal_rows=40, query__max_top_k=EVERYTHING, server__max_message_bytes=1 << 26
    )
    model = Model()
    node.start()
    calls = 0
    for number in range(rounds):
        calls += _crash_round(node, model, draw)
        until(
            lambda: not h.users_of(node.data_dir), 10, "builders end with their server", every=0.01
        )
        node.start()
        model.resolve(node, draw)
        facts = check(node, model)
        h.tell(
            f"round {number + 1}: {calls} calls acknowledged, {len(model.memories)} memories "
            f"written, {facts['memories']} left, {facts['segments']} segments"
        )
    node.maintain(seal_min_rows=1, merge_all=True, purge=True)
    check(node, model)
    left = [p for p in node.data_dir.rglob("*") if p.suffix in (".tmp", ".damaged")]
    assert not left, f"left behind: {left}"
    folders = [p for p in (node.data_dir / "segments").glob("*/*") if p.is_dir()]
    assert len(folders) == node.inspect()["segments"]
    assert node.stop() == 0


def test_kill_9_loses_and_doubles_nothing(make_node: Callable[..., h.Node]) -> None:
    _run(make_node, int(os.environ.get("CRASH_ROUNDS", "4")))


@pytest.mark.soak
def test_kill_9_a_hundred_times_loses_and_doubles_nothing(
    make_node: Callable[..., h.Node],
) -> None:
    _run(make_node, int(os.environ.get("CRASH_ROUNDS", "100")))


def test_a_builder_does_not_outlive_its_server(make_node: Callable[..., h.Node]) -> None:
    """It would write into the folders of the next server, which does not know of it."""
    node = make_node().start()
    h.fill(node, range(6_000))
    until(lambda: bool(node.builders()), what="a builder", every=0.005)
    node.kill()
    until(lambda: not h.users_of(node.data_dir), 10, "the builder ends", every=0.01)
    node.start()
    node.maintain(seal_min_rows=1)
    assert node.stub().Health(pb.HealthRequest(), timeout=5).store.memories == 6_000
