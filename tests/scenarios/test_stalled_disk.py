"""A disk that does not answer any more, and answers again.

The file system is frozen: whoever changes a file, or a page of a shared map, waits in the kernel.
"""

from __future__ import annotations

import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.service.node import SILENT_S
from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import harness as h
from tests.scenarios.disks import small_disk, stalled
from tests.waiting import until

MakeNode = Callable[..., h.Node]
CHECK_MS = 50


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that can be frozen; removed after the nodes of the test have ended."""
    try:
        with small_disk(tmp_path, "ext4", 96) as point:
            with stalled(point):
                pass
            yield point
    except OSError as error:
        pytest.skip(f"no file system can be mounted and frozen here: {error}")


def _node(make_node: MakeNode, disk: Path, **more: object) -> h.Node:
    return make_node(
        data_dir=disk / "data", node__check_interval_ms=CHECK_MS, query__timeout_ms=2_000, **more
    )


def _level(node: h.Node) -> tuple[int, str]:
    degraded = node.stub().Health(pb.HealthRequest(), timeout=5).degraded
    return degraded.level, degraded.reason


def _write(node: h.Node, number: int, seconds: float) -> tuple[grpc.StatusCode, str]:
    request = pb.WriteRequest(namespace=h.namespace(), items=[h.memory(number)])
    try:
        node.stub().Write(request, timeout=seconds)
    except grpc.RpcError as error:
        return h.error_info(error)[:2]
    return grpc.StatusCode.OK, ""


def _reads(node: h.Node, ids: list[str]) -> None:
    """By each way, whole and right."""
    for number in range(0, len(ids), 97):
        found = h.by_vector(node, number)
        assert (found.items[0].id, found.degraded.level) == (ids[number], 0)
        words = h.by_word(node, f"word{number}x")
        assert ([hit.id for hit in words.items], words.degraded.level) == ([ids[number]], 0)
    assert set(h.browse(node)) >= set(ids)


@pytest.mark.parametrize("readers", [0, 1])
def test_a_stalled_disk_does_not_stop_reads(disk: Path, make_node: MakeNode, readers: int) -> None:
    """Each read writes to LMDB's table of readers: on the disk, one would have held up all."""
    node = _node(make_node, disk, server__readers=readers).start()
    ids = h.fill(node, range(400))
    _reads(node, ids)
    with stalled(disk):
        _reads(node, ids)
        code, _ = _write(node, 1_000, 0.5)  # waits within its deadline
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        until(lambda: _level(node) == (1, "DISK_STALLED"), what="the stall is told")
        # From then on changes are refused at once: they would take the threads of reads.
        assert _write(node, 1_001, 30) == (grpc.StatusCode.UNAVAILABLE, "DISK_STALLED")
        with pytest.raises(grpc.RpcError) as refused:
            h.forget(node, ids[:1])
        assert h.error_info(refused.value)[1] == "DISK_STALLED"
        _reads(node, ids)
        health = node.stub().Health(pb.HealthRequest(), timeout=5)
        assert health.ready and any("does not answer" in r for r in health.reasons)
        with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/healthz", timeout=5) as up:
            assert up.status == 200
    until(lambda: _write(node, 1_002, 30)[0] is grpc.StatusCode.OK, what="writes go on")
    until(lambda: _level(node) == (0, ""), what="the level is left again")
    found = h.browse(node)
    numbers = {hit.content.split("word")[1].split("x")[0] for hit in found.values()}
    # What was refused is not there; what missed its deadline may be.
    assert {"1002"} <= numbers - {str(n) for n in range(400)} <= {"1000", "1002"}


def test_writes_that_wait_for_a_stalled_disk_do_not_keep_reads_out(
    disk: Path, make_node: MakeNode
) -> None:
    """More writers than threads, all of which wait: reads are answered, or empty and marked."""
    node = _node(make_node, disk, server__workers=4).start()
    ids = h.fill(node, range(50))
    with stalled(disk):
        writers = [threading.Thread(target=_write, args=(node, 2_000 + n, 30.0)) for n in range(12)]
        for writer in writers:
            writer.start()
        until(lambda: _level(node) == (1, "DISK_STALLED"), what="the stall is told")
        _reads(node, ids)
    for writer in writers:
        writer.join()
    assert set(h.browse(node)) >= set(ids)


@pytest.mark.soak
def test_the_supervisor_does_not_kill_a_node_whose_disk_has_stalled(
    disk: Path, make_node: MakeNode
) -> None:
    """A restart would lose what it has in memory, and could not open the store. Upkeep hangs
    too, for longer than the supervisor bears with else."""
    node = _node(make_node, disk)
    node.start(command=[sys.executable, "-m", "memsvc.cli", "serve", "--config", str(node.config)])
    ids = h.fill(node, range(50))
    h.write(node, [pb.WriteItem(memory=pb.Memory(content="short", ttl_ms=2_000))])
    (serving,) = psutil.Process(node.pid).children()
    with stalled(disk):
        end = time.monotonic() + SILENT_S + 25
        until(lambda: time.monotonic() > end, 2 * SILENT_S, every=1.0)
        _reads(node, ids)
        assert _level(node) == (1, "DISK_STALLED")
    until(lambda: _level(node) == (0, ""), what="the level is left again")
    assert psutil.Process(node.pid).children() == [serving]


def test_a_level_forced_on_a_stalled_disk_is_in_force_and_says_that_it_is_not_kept(
    disk: Path, make_node: MakeNode
) -> None:
    node = _node(make_node, disk).start()
    h.fill(node, range(50))
    with stalled(disk):
        _write(node, 4_000, 0.2)
        until(lambda: _level(node) == (1, "DISK_STALLED"), what="the stall is told")
        with pytest.raises(grpc.RpcError) as told:
            node.admin().SetDegraded(admin_pb.SetDegradedRequest(level=4, reason="DRILL"))
        assert h.error_info(told.value)[1] == "LEVEL_NOT_KEPT"
        assert _level(node) == (4, "DRILL")
        assert not h.by_vector(node, 3).items
    assert not (node.data_dir / "forced-level.json").exists()
