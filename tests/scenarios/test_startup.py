"""How soon a store answers, and what many small tenants cost in memory.

``STARTUP_ROWS``, ``STARTUP_TENANTS``, ``STARTUP_QUERIED`` and ``STARTUP_DIMENSION`` set the
sizes of the long forms. Figures are printed; nothing here asserts a time.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from benchmarks.fill import Filling, fill
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2 as types
from tests.scenarios import harness as h

MakeNode = Callable[..., h.Node]
DIMENSION = int(os.environ.get("STARTUP_DIMENSION", "384"))
ROWS = int(os.environ.get("STARTUP_ROWS", "100000"))
TENANTS = int(os.environ.get("STARTUP_TENANTS", "100000"))
QUERIED = int(os.environ.get("STARTUP_QUERIED", "1000"))
MIB = 1 << 20


def private_bytes(pid: int, data_dir: Path) -> tuple[int, int]:
    """(memory of this process alone, pages of mapped data files that only it has mapped).

    The kernel counts both as private. The second are page cache: clean, given back when
    somebody needs the memory, and shared as soon as a second process maps the file.
    """
    own = mapped = 0
    of_data = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("Private_Clean", "Private_Dirty"):
            size = int(rest.split()[0]) * 1024
            mapped, own = (mapped + size, own) if of_data else (mapped, own + size)
        elif "-" in line.partition(" ")[0]:
            of_data = str(data_dir) in line
    return own, mapped


def _answers(node: h.Node, filling: Filling, tenant: int, number: int) -> bool:
    """Whether a memory is found by its own vector; False while nobody listens."""
    request = pb.QueryRequest(
        namespace=filling.namespace(tenant),
        vector=types.Vector(data=filling.vector(tenant, number).tobytes()),
        top_k=1,
        include=pb.Include(content=True),
    )
    try:
        answer = node.stub().Query(request, timeout=h.CALL_S)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE, error
        return False
    assert [hit.content for hit in answer.items] == [filling.text(tenant, number)]
    assert answer.degraded.level == 0
    return True


def _start(node: h.Node, filling: Filling) -> float:
    """Seconds from the start of the process to the first right answer."""
    started = time.monotonic()
    node.start(wait=False)
    while not _answers(node, filling, filling.tenants // 2, filling.memories // 2):
        assert node.process is not None and node.process.poll() is None, node.log_tail()
        assert time.monotonic() - started < 300
        node.disconnect()
        time.sleep(0.01)
    return time.monotonic() - started


def _store(make_node: MakeNode, filling: Filling, **settings: object) -> h.Node:
    node = make_node(
        index__dimension=filling.dimension, storage__write_queue_max=100_000, **settings
    )
    node.fresh = True  # a forked one has most of its memory together with others
    node.start()
    took = fill(f"127.0.0.1:{node.port}", filling)
    h.tell(f"{filling.total} memories of {filling.dimension}-d in {took:.1f} s")
    node.maintain(seconds=3_000)
    return node


def _time_starts(make_node: MakeNode, filling: Filling, seal_rows: int) -> None:
    node = _store(make_node, filling, storage__seal_rows=seal_rows)
    assert node.stop() == 0
    after_stop = _start(node, filling)
    node.kill()
    after_kill = _start(node, filling)
    health = node.stub().Health(pb.HealthRequest(), timeout=h.CALL_S)
    assert health.store.memories == filling.total
    h.tell(
        f"start of {filling.total} memories in {health.store.segments} segments to the first "
        f"right answer: {after_stop:.2f} s after a stop, {after_kill:.2f} s after kill -9"
    )


def _measure_tenants(make_node: MakeNode, filling: Filling, queried: int) -> None:
    node = _store(make_node, filling)
    assert node.stop() == 0
    _query_tenants(node, filling, queried)


def _query_tenants(node: h.Node, filling: Filling, queried: int) -> None:
    node.start()
    before, _ = private_bytes(node.pid, node.data_dir)
    chosen = random.Random(1).sample(range(filling.tenants), queried)
    for tenant in chosen:
        assert _answers(node, filling, tenant, tenant % filling.memories)
    after, mapped = private_bytes(node.pid, node.data_dir)
    facts = node.inspect()
    h.tell(
        f"{filling.tenants} tenants of {filling.memories} memories of {filling.dimension}-d, "
        f"{facts['file_bytes'] / MIB:.0f} MiB on disk: {before / MIB:.0f} MiB private after the "
        f"start, {after / MIB:.0f} MiB after {queried} tenants were queried, and "
        f"{mapped / MIB:.0f} MiB of mapped database pages"
    )
    # A tenant that nobody asks for costs nothing; one that was asked for, little.
    assert (after - before) / queried < 0.25 * MIB
    assert facts["partitions"] == filling.tenants


def test_a_stopped_and_a_killed_store_answer_after_their_start(make_node: MakeNode) -> None:
    _time_starts(make_node, Filling(1, 5_000, 64), seal_rows=2_000)


def test_tenants_that_nobody_asks_for_cost_nothing(make_node: MakeNode) -> None:
    _measure_tenants(make_node, Filling(200, 10, 64), 100)


@pytest.mark.soak
def test_a_large_store_answers_soon(make_node: MakeNode) -> None:
    _time_starts(make_node, Filling(1, ROWS, DIMENSION), seal_rows=5_000)


@pytest.mark.soak
def test_a_hundred_thousand_tenants_fit_into_memory(make_node: MakeNode) -> None:
    _measure_tenants(make_node, Filling(TENANTS, 10, DIMENSION), QUERIED)
