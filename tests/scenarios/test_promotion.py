"""Another node becomes primary; each test is named after what it prevents."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress

import grpc
import pytest

from memsvc.domain.group import EPOCHS_APART
from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import groups as g
from tests.scenarios import harness as h
from tests.scenarios import replication as r
from tests.scenarios.network import Switch
from tests.waiting import until


@pytest.fixture
def switch() -> Iterator[Switch]:
    """A network whose cables can be pulled."""
    with Switch() as made:
        yield made


def test_a_switch_over_loses_no_write_and_fails_no_read(make_node: r.MakeNode) -> None:
    nodes = a, b, c = g.make_group(make_node)
    g.start(nodes)
    h.fill(a, range(100))
    r.level(a, b, c)
    done = threading.Event()
    written: list[int] = []
    failed: list[object] = []

    def write() -> None:
        number = 1000
        while not done.is_set():
            g.write_somewhere([b, a], number)
            written.append(number)
            number += 1

    def read(node: h.Node) -> None:
        while not done.is_set():
            try:
                if not h.by_vector(node, 7).items:
                    failed.append("nothing found")
            except grpc.RpcError as error:
                failed.append(error)

    threads = [threading.Thread(target=write)]
    threads += [threading.Thread(target=read, args=(node,)) for node in nodes]
    for thread in threads:
        thread.start()
    until(lambda: len(written) > 20, 60, "some writes")
    made = g.promote(b)
    assert (made.epoch, made.may_lack, list(made.silent)) == (EPOCHS_APART, False, [])
    before = len(written)
    until(lambda: len(written) > before + 20, 60, "writes to go on")
    done.set()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [g.role(node) for node in nodes] == [pb.ROLE_REPLICA, pb.ROLE_PRIMARY, pb.ROLE_REPLICA]
    r.level(b, a, c)
    for node in nodes:
        contents = {hit.content for hit in h.browse(node).values()}
        wanted = {h.memory(n).memory.content for n in [*range(100), *written]}
        assert contents == wanted
    # A refused caller is told the new one.
    with pytest.raises(grpc.RpcError) as refused:
        h.fill(c, range(2000, 2001))
    assert r.reason_of(refused.value)[2]["primary"] == f"127.0.0.1:{b.port}"
    assert [node.stop() for node in nodes] == [0, 0, 0]
    assert r.digest(a) == r.digest(b) == r.digest(c)
    # And roles are remembered, whatever the configuration says.
    b.start()
    a.start()
    assert (g.role(a), g.role(b)) == (pb.ROLE_REPLICA, pb.ROLE_PRIMARY)
    h.fill(b, range(3000, 3010))
    r.level(b, a)


def test_a_primary_that_was_cut_off_and_replaced_gives_its_surplus_out_and_follows(
    make_node: r.MakeNode, switch: Switch
) -> None:
    nodes = a, b, c = g.make_group(make_node, switch=switch)
    g.start(nodes)
    h.fill(a, range(50))
    r.level(a, b, c)
    switch.cut("a")
    # Without min_acks it cannot know that nobody has this.
    lost = h.fill(a, range(500, 505))
    assert g.refusal(b) == "PRIMARY_SILENT"
    assert g.refusal(b, force=True) == "MAY_LACK_WRITES"
    made = g.promote(b, force=True, accept_loss=True)
    assert made.may_lack
    assert made.former == a.settings["replication.listen"]
    assert list(made.silent) == [made.former]
    kept = h.fill(b, range(600, 620))
    switch.heal("a")
    g.await_role(a, pb.ROLE_REPLICA)
    assert a.process is not None
    assert a.process.wait(60) == 75  # for its supervisor: begin anew
    a.start()
    r.level(b, a, c)
    for node in nodes:
        found = h.browse(node)
        assert set(kept) <= set(found)
        assert not set(lost) & set(found)
    memories = next((a.data_dir / "surplus").glob("*.memories.jsonl"))
    assert memories.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line)["id"] for line in memories.read_text().splitlines()] == lost
    entries = next((a.data_dir / "surplus").glob("*.entries.jsonl")).read_text()
    assert all(id_ in entries for id_ in lost)


def test_what_was_acknowledged_with_min_acks_survives_a_forced_promotion(
    make_node: r.MakeNode, switch: Switch
) -> None:
    nodes = a, b, c = g.make_group(
        make_node, switch=switch, replication__min_acks=1, replication__lease_ms=1_000
    )
    g.start(nodes)
    acknowledged = list(range(30))
    for number in acknowledged:
        g.write_somewhere([a], number)
    switch.cut("a")
    unconfirmed = []
    for number in range(500, 503):
        with pytest.raises(grpc.RpcError) as refused:
            h.write(a, [h.memory(number)])
        code, reason, _ = r.reason_of(refused.value)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert reason in ("NOT_REPLICATED", "NOT_ENOUGH_REPLICAS")
        unconfirmed.append(number)
    until(lambda: "changes are refused" in str(r.health(a).reasons), 30, "the lease to end")
    # One of two replicas may have what was acknowledged, so both are asked; one may then go on.
    made = None
    for node in (b, c):
        try:
            made = g.promote(node, force=True)
            break
        except grpc.RpcError as error:
            assert r.reason_of(error)[1] == "NOT_THE_FURTHEST"
    assert made is not None and not made.may_lack
    new, other = (b, c) if g.role(b) == pb.ROLE_PRIMARY else (c, b)
    g.write_somewhere([new], 600)
    switch.heal("a")
    g.await_role(a, pb.ROLE_REPLICA)
    r.level(new, other)
    for node in (new, other):
        contents = {hit.content for hit in h.browse(node).values()}
        assert contents == {h.memory(n).memory.content for n in [*acknowledged, 600]}


def test_a_replica_that_may_lack_an_acknowledged_write_is_not_promoted(
    make_node: r.MakeNode, switch: Switch
) -> None:
    nodes = a, b, c = g.make_group(make_node, switch=switch, replication__min_acks=1)
    g.start(nodes)
    switch.cut("c")
    for number in range(20):
        g.write_somewhere([a], number)
    a.kill()
    switch.cut("b")
    switch.heal("c")
    # c alone: what b has acknowledged is not here.
    assert g.refusal(c, force=True) == "MAY_LACK_WRITES"
    switch.heal("b")
    until(lambda: g.refusal(c, force=True) == "NOT_THE_FURTHEST", 30, "b to be asked")
    made = g.promote(b, force=True)
    assert not made.may_lack
    r.level(b, c)
    assert len(h.browse(c)) == 20


def test_a_switch_over_is_finished_or_given_up_after_a_crash(make_node: r.MakeNode) -> None:
    # However long a round takes: a read is not to be marked for that.
    nodes = a, b = g.make_group(make_node, ("a", "b"), replication__max_lag_ms=0)
    g.start(nodes)
    h.fill(a, range(20))
    for round_ in range(4):
        old, new = (a, b) if g.role(a) == pb.ROLE_PRIMARY else (b, a)
        failed = threading.Event()

        def promote(node: h.Node = new, flag: threading.Event = failed) -> None:
            try:
                g.promote(node)
            except grpc.RpcError:
                flag.set()

        thread = threading.Thread(target=promote)
        thread.start()
        threading.Event().wait(0.01 * round_)
        (new if round_ % 2 else old).kill()
        thread.join()
        (new if round_ % 2 else old).start(wait=False)
        taken = g.write_somewhere(nodes, 100 + round_)
        other = b if taken is a else a
        g.await_role(other, pb.ROLE_REPLICA)
        r.level(taken, other)
        assert len(h.browse(other)) == 21 + round_


def test_a_switch_over_that_nobody_answers_for_does_not_keep_a_replica_from_being_forced(
    make_node: r.MakeNode,
) -> None:
    nodes = a, b = g.make_group(make_node, ("a", "b"))
    g.start(nodes)
    h.fill(a, range(20))
    r.level(a, b)
    # As a crash leaves it when the primary was asked to hand over, and is then lost.
    a.kill()
    b.kill()
    path = b.data_dir / "ROLE"
    path.write_text(json.dumps({**json.loads(path.read_text()), "promoting": 2}))
    b.start()
    made = g.promote(b, force=True, accept_loss=True)
    assert made.epoch > 2
    h.fill(b, range(100, 105))
    assert len(h.browse(b)) == 25


def test_a_promotion_that_a_crash_broke_off_is_not_finished_beside_a_later_primary(
    make_node: r.MakeNode,
) -> None:
    nodes = a, b, c = g.make_group(make_node)
    g.start(nodes)
    h.fill(a, range(20))
    r.level(a, b, c)
    b.kill()
    # As a crash leaves it between writing down that it leads, and doing so.
    path = b.data_dir / "ROLE"
    path.write_text(json.dumps({**json.loads(path.read_text()), "leads": True, "fence": 2}))
    g.promote(c)
    b.start()
    assert (g.role(b), g.role(c)) == (pb.ROLE_REPLICA, pb.ROLE_PRIMARY)
    # It goes on where it was: nothing of its own to give up, nothing to copy.
    r.level(c, a, b)
    assert not (b.data_dir / "surplus").exists()
    assert len(h.browse(b)) == 20


def test_a_position_of_a_new_epoch_is_waited_for_by_a_replica_that_has_not_heard_of_it(
    make_node: r.MakeNode,
) -> None:
    nodes = a, b, c = g.make_group(make_node)
    g.start(nodes)
    h.fill(a, range(10))
    g.promote(b)
    for number in range(100, 120):
        position = h.write(b, [h.memory(number)]).position
        for node in (a, c):
            assert h.by_vector(node, number, min_position=position).items[0].content in (
                "",
                h.memory(number).memory.content,
            )


def test_a_node_that_lost_its_disk_does_not_begin_a_store_of_its_own_beside_the_group(
    make_node: r.MakeNode,
) -> None:
    nodes = a, b = g.make_group(make_node, ("a", "b"))
    g.start(nodes)
    h.fill(a, range(20))
    g.promote(b)
    r.level(b, a)
    # By its settings it is the primary.
    a.kill()
    shutil.rmtree(a.data_dir)
    a.start()
    assert (g.role(a), g.role(b)) == (pb.ROLE_REPLICA, pb.ROLE_PRIMARY)
    assert len(h.browse(a)) == 20
    # Nor when nobody could tell it so at first.
    a.kill()
    b.kill()
    shutil.rmtree(a.data_dir)
    a.start()
    assert g.role(a) == pb.ROLE_PRIMARY
    b.start()
    assert a.process is not None
    assert a.process.wait(60) == 75
    a.start()
    assert g.role(a) == pb.ROLE_REPLICA
    assert len(h.browse(a)) == 20


def test_a_forced_promotion_beside_a_primary_that_writes_does_not_leave_nobody_in_charge(
    make_node: r.MakeNode,
) -> None:
    nodes = a, b, _ = g.make_group(make_node)
    g.start(nodes)
    done = threading.Event()
    written: list[int] = []

    def write() -> None:
        while not done.is_set():
            g.write_somewhere(nodes, len(written))
            written.append(len(written))

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        before = len(written)
        for node in (b, a):
            with suppress(grpc.RpcError):
                g.promote(node, force=True)
        until(lambda before=before: len(written) > before + 5, 60, "writes to go on")  # type: ignore[misc]
    done.set()
    for thread in threads:
        thread.join()
    assert sorted(g.role(node) for node in nodes) == [
        pb.ROLE_PRIMARY,
        pb.ROLE_REPLICA,
        pb.ROLE_REPLICA,
    ]
