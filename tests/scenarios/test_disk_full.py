"""A real full disk, and a store that is full by its own limit."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import harness as h
from tests.scenarios.disks import fill_disk, small_disk
from tests.waiting import until

MIB = 1 << 20
DISK_MIB = 96


KINDS = ["tmpfs", pytest.param("ext4", marks=pytest.mark.soak)]


@pytest.fixture(params=KINDS)
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A small file system that is removed after the nodes of the test have ended."""
    try:
        with small_disk(tmp_path, request.param, DISK_MIB) as point:
            yield point
    except OSError as error:
        pytest.skip(f"no {request.param} can be mounted here (root is needed): {error}")


MakeNode = Callable[..., h.Node]


@pytest.fixture
def node(disk: Path, make_node: MakeNode) -> h.Node:
    """A node with its data on the small disk and a reserve of 4 MiB."""
    return make_node(data_dir=disk / "data", storage__reserve_bytes=4 * MIB)


def _big(number: int) -> pb.WriteItem:
    return h.memory(number, f"word{number}x " + random.Random(number).randbytes(15_000).hex())


def _write_until_full(node: h.Node, start: int) -> tuple[dict[int, str], grpc.RpcError]:
    """Acknowledged memories by number, and the refusal that came in the end."""
    stored: dict[int, str] = {}
    for number in range(start, start + 20_000):
        try:
            stored[number] = h.write(node, [_big(number)]).results[0].id
        except grpc.RpcError as error:
            return stored, error
    raise AssertionError("the disk never got full")


def _assert_disk_full(error: grpc.RpcError) -> None:
    code, reason, hint = h.error_info(error)
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL"), error
    assert "free disk space" in hint


def test_a_full_disk_refuses_writes_and_nothing_else(node: h.Node, disk: Path) -> None:
    node.start()
    pid = node.pid
    early = h.fill(node, range(100))
    fill_disk(disk, leave=2 * MIB)
    stored, error = _write_until_full(node, 1_000)
    _assert_disk_full(error)
    fill_disk(disk)  # not even the reserve's room is left for long
    for number in range(40_000, 40_005):
        with pytest.raises(grpc.RpcError) as refused:
            h.write(node, [_big(number)])
        _assert_disk_full(refused.value)
    # Reads go on, by every way.
    assert h.by_vector(node, 7).items[0].id == early[7]
    assert [hit.id for hit in h.by_word(node, "word7x").items] == [early[7]]
    assert set(h.browse(node)) == {*early, *stored.values()}
    # Once there is room, the same process takes writes again.
    (disk / "filler").unlink()
    until(lambda: _accepts(node), what="writes go on")
    assert node.pid == pid and node.stub().Health(pb.HealthRequest(), timeout=5).ready
    assert {*early, *stored.values()} <= set(h.browse(node))
    node.kill()
    node.start()
    assert {*early, *stored.values()} <= set(h.browse(node))


def _accepts(node: h.Node) -> bool:
    try:
        h.write(node, [h.memory(90_000)])
    except grpc.RpcError as error:
        _assert_disk_full(error)
        return False
    return True


def test_forgetting_works_on_a_full_disk(node: h.Node, disk: Path) -> None:
    node.start()
    ids = h.fill(node, range(3_000))
    fill_disk(disk, leave=MIB)
    _stored, error = _write_until_full(node, 10_000)
    _assert_disk_full(error)
    assert h.forget(node, ids[:1]).changed == 1
    assert h.forget(node, ids[1:1_000]).changed == 999
    for one in ids[1_000:1_020]:
        assert h.forget(node, [one]).changed == 1
    left = set(h.browse(node))
    assert not left & set(ids[:1_020]) and set(ids[1_020:]) <= left
    node.kill()
    node.start()
    assert set(h.browse(node)) == left


def test_a_node_starts_on_a_full_disk_and_forgets(node: h.Node, disk: Path) -> None:
    node.start()
    ids = h.fill(node, range(500))
    assert node.stop() == 0
    reserve = node.data_dir / "reserve"
    assert reserve.stat().st_size == 4 * MIB
    fill_disk(disk)
    node.start()
    assert len(h.browse(node)) == 500
    assert h.forget(node, ids[:100]).changed == 100
    assert len(h.browse(node)) == 400


def test_a_segment_that_finds_no_room_is_built_later(node: h.Node, disk: Path) -> None:
    node.start()
    words = random.Random(1)
    items = [
        h.memory(n, f"word{n}x " + " ".join(f"w{words.randrange(10**9)}" for _ in range(300)))
        for n in range(200)
    ]
    for start in range(0, 200, 50):
        h.write(node, items[start : start + 50])
    # The files need more than the estimate, which leaves words out: the builder runs into
    # the end of the disk in the middle of them.
    fill_disk(disk, leave=700_000)
    with pytest.raises(AssertionError, match="not done"):
        node.maintain(seconds=2, seal_min_rows=1)
    until(lambda: "No space left" in node.log_file.read_text(), what="the builder fails")
    assert h.by_vector(node, 7).degraded.level == 0
    assert len(h.browse(node)) == 200
    (disk / "filler").unlink()
    node.maintain(seal_min_rows=1)
    facts = node.inspect("acme", "bot", verify=True)
    assert facts["segments"] == 1 and facts["damaged_found"] == 0
    assert facts["partition"]["tail_rows"] == 0
    assert not list(node.data_dir.rglob("*.tmp")), "a cut-off build was left behind"
    assert len(h.browse(node)) == 200


@pytest.mark.parametrize("spare", [0.5, 1.1])
def test_a_compaction_that_finds_no_room_leaves_the_database(
    node: h.Node, disk: Path, spare: float
) -> None:
    """At 0.5 of the file it is refused; at 1.1 the disk fills up while the copy is made."""
    node.start()
    for start in range(0, 600, 100):
        h.write(node, [_big(n) for n in range(start, start + 100)])
    ids = list(h.browse(node))
    h.forget(node, ids[:300])
    size = node.inspect()["file_bytes"]
    fill_disk(disk, leave=int(size * spare))
    with contextlib.suppress(AssertionError):
        node.maintain(seconds=1, purge=True)
    fill_disk(disk)
    assert len(h.browse(node)) == 300
    assert node.stub().Health(pb.HealthRequest(), timeout=5).ready
    (disk / "filler").unlink()
    node.maintain(purge=True)
    facts = node.inspect()
    assert facts["file_bytes"] < size * 0.8 and facts["dirty_since"] == 0
    assert len(h.browse(node)) == 300
    assert not (node.data_dir / "store.new").exists()
    assert not (node.data_dir / "store.old").exists()


def test_lock_pages_exist_before_the_disk_is_full(make_node: MakeNode) -> None:
    """LMDB writes its reader table through a shared map: a page of it that has no block yet
    would end the process with SIGBUS on a full disk."""
    node = make_node().start()
    facts = os.stat(node.data_dir / "store" / "lock.mdb")
    assert facts.st_blocks * 512 >= facts.st_size
    h.fill(node, range(10))
    node.maintain(purge=True)  # which opens a new database directory
    facts = os.stat(node.data_dir / "store" / "lock.mdb")
    assert facts.st_blocks * 512 >= facts.st_size


def test_a_store_at_its_limit_refuses_new_memories_and_nothing_else(make_node: MakeNode) -> None:
    node = make_node(storage__max_bytes=300_000).start()
    ids: list[str] = []
    with pytest.raises(grpc.RpcError) as refused:
        for number in range(10_000):
            ids += h.fill(node, [number])
    code, reason, hint = h.error_info(refused.value)
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "STORE_FULL")
    assert hint
    assert len(h.browse(node)) == len(ids) > 100
    h.write(node, [pb.WriteItem(touch=pb.Touch(id=ids[0], kind=pb.TOUCH_KIND_USED))])
    assert h.forget(node, ids[:50]).changed == 50
    assert len(h.fill(node, range(20_000, 20_010))) == 10
    # A larger limit takes effect without a restart.
    node.configure(storage__max_bytes=100 * MIB)
    node.signal(1)
    until(lambda: _accepts_many(node), what="the new limit is in force")
    assert shutil.disk_usage(node.data_dir).free > 0


def _accepts_many(node: h.Node) -> bool:
    try:
        return len(h.fill(node, range(30_000, 30_200))) == 200
    except grpc.RpcError as error:
        assert h.error_info(error)[1] == "STORE_FULL"
        return False
