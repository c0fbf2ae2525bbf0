"""Promotions beside crashes, full disks and mistakes; each test is named after what it prevents."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc as rpc
from tests.scenarios import groups as g
from tests.scenarios import harness as h
from tests.scenarios import replication as r
from tests.scenarios.disks import small_disk, stalled
from tests.scenarios.network import Switch
from tests.waiting import until


@pytest.mark.parametrize("name", ["0" * 16, "f" * 16])
def test_a_former_primary_that_lost_positions_alone_does_not_depose_the_promoted_one(
    make_node: r.MakeNode, name: str
) -> None:
    """Both begin an epoch, and neither knows of the other's."""
    with Switch() as switch:
        nodes = a, b = g.make_group(make_node, ("a", "b"), switch, storage__wal_sync="every_1000ms")
        a.data_dir.mkdir()
        (a.data_dir / "node_id").write_text(f"{name}\n")
        g.start(nodes)
        h.fill(a, range(10))
        until(lambda: len(h.browse(b)) == 10, 30, "b to have all")
        switch.cut("a")
        h.fill(a, range(100, 103))
        a.kill()
        g.promote(b, force=True, accept_loss=True)
        kept = h.fill(b, range(200, 210))
        a.start()
        h.fill(a, range(300, 303))
        switch.heal("a")
        g.await_role(a, pb.ROLE_REPLICA)
        assert a.process is not None
        assert a.process.wait(60) == 75
        a.start()
        r.level(b, a)
        assert (g.role(a), g.role(b)) == (pb.ROLE_REPLICA, pb.ROLE_PRIMARY)
        for node in nodes:
            found = h.browse(node)
            assert set(kept) <= set(found)
            assert len(found) == 20


def test_a_crashed_primary_that_was_replaced_adds_nothing_to_its_log_before_it_follows(
    make_node: r.MakeNode,
) -> None:
    """It would have to copy everything anew because of one entry that nobody needs."""
    nodes = a, b = g.make_group(
        make_node, ("a", "b"), storage__wal_sync="every_1000ms", storage__seal_rows=100
    )
    g.start(nodes)
    h.fill(a, range(150))
    until(lambda: len(h.browse(b)) == 150, 30, "b to have all")
    a.kill()
    g.promote(b, force=True, accept_loss=True)
    h.fill(b, range(200, 210))
    a.start()
    g.await_role(a, pb.ROLE_REPLICA)
    r.level(b, a)
    assert a.process is not None
    assert a.process.poll() is None
    assert not (a.data_dir / "surplus").exists()
    assert len(h.browse(a)) == 160


def test_a_role_that_cannot_be_written_down_leaves_everybody_what_they_were(
    make_node: r.MakeNode,
) -> None:
    nodes = a, b, c = g.make_group(make_node)
    g.start(nodes)
    h.fill(a, range(10))
    r.level(a, b, c)
    in_the_way = [node.data_dir / "ROLE.new" for node in nodes]
    for blocked, node in ((a, b), (b, b)):
        block = blocked.data_dir / "ROLE.new"
        block.mkdir()
        for how in ({}, {"force": True, "accept_loss": True}):
            if blocked is a and how:
                # What cannot be fenced counts as silent; another primary would be one by choice.
                continue
            assert g.refusal(node, **how) == "PROMOTION_FAILED"
            assert g.write_somewhere([a], 100 + len(how)) is a
            r.level(a, b, c)
        block.rmdir()
    # A replica that cannot note its new primary follows it once it can.
    in_the_way[2].mkdir()
    assert not g.promote(b).may_lack
    g.write_somewhere([b], 200)
    in_the_way[2].rmdir()
    r.level(b, a, c)
    assert [g.role(node) for node in nodes] == [
        pb.ROLE_REPLICA,
        pb.ROLE_PRIMARY,
        pb.ROLE_REPLICA,
    ]


def test_a_copy_that_is_configured_as_primary_does_not_depose_a_living_one(
    make_node: r.MakeNode,
) -> None:
    nodes = a, b = g.make_group(make_node, ("a", "b"))
    g.start(nodes)
    b.stop()
    kept = h.fill(a, range(20))
    b.configure(node__role="primary", replication__primary="")
    b.start()
    r.level(a, b)
    assert (g.role(a), g.role(b)) == (pb.ROLE_PRIMARY, pb.ROLE_REPLICA)
    assert set(h.browse(b)) == set(kept)
    # When nobody else leads, the configuration counts.
    a.stop()
    b.stop()
    b.configure(replication__listen=b.settings["replication.listen"], log__level="debug")
    (b.data_dir / "ROLE").unlink()
    b.start()
    assert g.role(b) == pb.ROLE_PRIMARY


def test_a_node_that_is_about_to_begin_anew_is_not_promoted(make_node: r.MakeNode) -> None:
    """Its store is no beginning of the primary's, and the next start would remove it."""
    nodes = _, b = g.make_group(make_node, ("a", "b"))
    g.start(nodes)
    (b.data_dir / "BEGIN_ANEW").write_text("for a test\n")
    assert g.refusal(b) == "NOT_BOOTSTRAPPED"
    assert g.refusal(b, force=True, accept_loss=True) == "NOT_BOOTSTRAPPED"


def test_a_promotion_in_the_middle_of_a_copy_does_not_end_the_copying_node_for_good(
    make_node: r.MakeNode,
) -> None:
    """What it has copied so far is of a history that was given up."""
    nodes = a, b, c = g.make_group(make_node)
    g.start(nodes)
    h.fill(a, range(20))
    r.level(a, b, c)
    b.stop()
    h.fill(a, range(100, 105))
    r.level(a, c)
    c.stop()
    (c.data_dir / "COPYING").touch()
    a.kill()
    b.start()
    g.promote(b, force=True, accept_loss=True)
    kept = h.fill(b, range(200, 203))
    c.start()
    r.level(b, c)
    assert set(kept) <= set(h.browse(c))
    assert len(h.browse(c)) == 23


def test_a_node_whose_data_directory_was_copied_with_its_name_is_not_taken_for_the_other(
    make_node: r.MakeNode,
) -> None:
    """By force it would lead beside the first, and neither would ever look at the other."""
    nodes = a, b = g.make_group(make_node, ("a", "b"))
    g.start(nodes)
    b.stop()
    own = (b.data_dir / "node_id").read_text()
    (b.data_dir / "node_id").write_text((a.data_dir / "node_id").read_text())
    b.start()
    for node in nodes:
        until(lambda node=node: "one name" in str(r.health(node).reasons), 30, "a warning")  # type: ignore[misc]
    assert g.refusal(b, force=True, accept_loss=True) == "NO_GROUP"
    b.stop()
    (b.data_dir / "node_id").write_text(own)
    b.start()
    h.fill(a, range(10))
    assert not g.promote(b).may_lack
    r.level(b, a)


def test_a_primary_that_was_stopped_past_its_lease_acknowledges_nothing_that_the_group_lacks(
    make_node: r.MakeNode,
) -> None:
    nodes = a, b, c = g.make_group(
        make_node, replication__min_acks=1, replication__lease_ms=1_000, server__readers=0
    )
    g.start(nodes)
    done, acknowledged = threading.Event(), list[int]()

    channel = grpc.insecure_channel(f"127.0.0.1:{a.port}")
    stub = rpc.MemoryServiceStub(channel)

    def write(first: int) -> None:
        for number in range(first, first + 100_000):
            if done.is_set():
                return
            try:
                request = pb.WriteRequest(namespace=h.namespace(), items=[h.memory(number)])
                stub.Write(request, timeout=h.CALL_S)
            except grpc.RpcError:
                continue
            acknowledged.append(number)

    threads = [threading.Thread(target=write, args=(n * 1_000_000,)) for n in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(acknowledged) > 50, 60, "some writes")
    a.signal(signal.SIGSTOP)
    try:
        led = {"NOT_THE_FURTHEST": c}.get(_forced(b), b)
        if led is c:
            assert _forced(c) == ""
        for number in range(9_000_000, 9_000_005):
            g.write_somewhere([led], number)
            acknowledged.append(number)
    finally:
        a.signal(signal.SIGCONT)
    # It follows, or ends to begin anew.
    until(lambda: _given_way(a), 60, "the former primary to give way")
    done.set()
    for thread in threads:
        thread.join()
    channel.close()
    contents = {hit.content for hit in h.browse(led).values()}
    assert {h.memory(n).memory.content for n in acknowledged} <= contents


def _given_way(node: h.Node) -> bool:
    assert node.process is not None
    if node.process.poll() is not None:
        return True
    try:
        return g.role(node) == pb.ROLE_REPLICA
    except grpc.RpcError:
        node.disconnect()
        return False


def _forced(node: h.Node) -> str:
    """Has a node lead by force; the reason where it must not, or another does now."""
    try:
        g.promote(node, force=True)
    except grpc.RpcError as error:
        return r.reason_of(error)[1]
    return ""


def test_a_primary_whose_disk_is_slow_to_note_the_hand_over_does_not_say_that_it_goes_on(
    make_node: r.MakeNode, tmp_path: Path
) -> None:
    """The replica would give up, and the primary then follow one that does not lead."""
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(small_disk(tmp_path, "ext4", 64))
        except OSError as error:
            pytest.fail(f"no file system of its own: {error}")
        nodes = a, b = g.make_group(make_node, ("a", "b"))
        a.data_dir = disk / "data"
        a.configure(storage__data_dir=str(a.data_dir))
        stack.callback(a.close)
        g.start(nodes)
        h.fill(a, range(10))
        r.level(a, b)
        told: list[str] = []
        promoting = threading.Thread(target=lambda: told.append(_promoted(b)))
        with stalled(disk):
            promoting.start()
            time.sleep(11)
        promoting.join()
        g.write_somewhere(nodes, 100, 20)
        assert sorted(g.role(node) for node in nodes) == [pb.ROLE_PRIMARY, pb.ROLE_REPLICA], told


def _promoted(node: h.Node) -> str:
    """Promotes a node in good order; the reason where that failed."""
    try:
        g.promote(node)
    except grpc.RpcError as error:
        return r.reason_of(error)[1]
    return ""
