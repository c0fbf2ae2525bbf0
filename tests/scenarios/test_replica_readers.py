"""Readers of a replica: positions, refusals and recalls, whichever process answers."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import grpc
import pytest

from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import groups as g
from tests.scenarios import harness as h
from tests.scenarios import readers as r
from tests.scenarios import replication as rep
from tests.waiting import until

MakeNode = Callable[..., h.Node]


def test_a_position_of_the_primary_is_waited_for_on_every_reader_of_a_replica(
    make_node: MakeNode,
) -> None:
    primary = rep.make_primary(make_node, storage__wal_sync="every_1000ms").start()
    h.fill(primary, range(10))
    replica = rep.make_replica(
        make_node, primary, server__readers=2, storage__wal_sync="every_1000ms"
    ).start()
    connections = r.to_each_reader(replica)
    for number in range(100, 112):
        request = pb.WriteRequest(namespace=h.namespace(), items=[h.memory(number)])
        written = primary.stub().Write(request, timeout=h.CALL_S)
        for connection in connections:
            answer = connection.query(number, min_position=written.position)
            assert [hit.id for hit in answer.items] == [written.results[0].id]
    for connection in connections:
        with pytest.raises(grpc.RpcError) as refused:
            connection.write([1])
        code, reason, more = rep.reason_of(refused.value)
        assert (code, reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NOT_PRIMARY")
        assert more["primary"], "where the primary is"
        told = connection.stub.Health(pb.HealthRequest(), timeout=h.CALL_S)
        assert told.role == pb.ROLE_REPLICA


def test_readers_of_a_replica_say_that_a_position_was_not_reached(make_node: MakeNode) -> None:
    primary = rep.make_primary(make_node).start()
    h.fill(primary, range(10))
    with rep.Proxy(rep.feed_address(primary)) as proxy:
        replica = rep.make_replica(make_node, primary, via=proxy.address, server__readers=2).start()
        connections = r.to_each_reader(replica)
        proxy.cut()
        request = pb.WriteRequest(namespace=h.namespace(), items=[h.memory(50)])
        written = primary.stub().Write(request, timeout=h.CALL_S)
        for connection in connections:
            with pytest.raises(grpc.RpcError) as refused:
                asked = pb.QueryRequest(
                    namespace=h.namespace(),
                    vector=h.wire(h.vector(50)),
                    min_position=written.position,
                )
                connection.stub.Query(asked, timeout=0.5)
            assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert connection.query(1).items, "what it has it answers"
        waiting: list[pb.QueryResponse] = []
        threads = [
            threading.Thread(
                target=lambda c=c: waiting.append(c.query(50, min_position=written.position))
            )
            for c in connections
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.2)
        proxy.heal()
        for thread in threads:
            thread.join(h.CALL_S)
        assert [a.items[0].id for a in waiting] == [written.results[0].id] * 2


def test_recalls_that_readers_of_a_replica_count_reach_the_primary(make_node: MakeNode) -> None:
    primary = rep.make_primary(make_node).start()
    (id_,) = h.fill(primary, [1])
    replica = rep.make_replica(make_node, primary, server__readers=2).start()
    for connection in r.to_each_reader(replica):
        for _ in range(3):
            connection.query(1, rank=pb.Rank())

    def counted() -> bool:
        request = pb.QueryRequest(namespace=h.namespace(), ids=[id_])
        (hit,) = primary.stub().Query(request, timeout=10).items
        return bool(hit.recall_count == 6)

    until(counted, 30, "six recalls")


def test_readers_of_a_node_that_is_stopped_do_not_pass_for_those_of_a_primary(
    make_node: MakeNode,
) -> None:
    """It is past its lease, another may lead, and it can tell its readers nothing."""
    nodes = a, b = g.make_group(
        make_node,
        ("a", "b"),
        server__readers=1,
        replication__min_acks=1,
        replication__lease_ms=1_000,
        replication__max_lag_ms=1_000,
    )
    g.start(nodes)
    g.write_somewhere([a], 1)
    rep.level(a, b)
    for node, reason in ((a, "STALE"), (b, "REPLICA_LAGGING")):
        (connection,) = r.to_each_reader(node)
        until(lambda c=connection: not c.query(1).degraded.level, 30, "an answer without a mark")  # type: ignore[misc]
        node.signal(signal.SIGSTOP)
        try:
            until(
                lambda c=connection, r=reason: c.query(1).degraded.reason == r,  # type: ignore[misc]
                8,
                reason,
            )
        finally:
            node.signal(signal.SIGCONT)
        until(lambda c=connection: not c.query(1).degraded.level, 30, "the mark to go")  # type: ignore[misc]


def test_a_reader_of_the_node_that_led_before_calls_no_position_of_the_next_one_lost(
    make_node: MakeNode,
) -> None:
    """It is told of the change before the next one leads: it waits for the position, as a replica
    does."""
    nodes = g.make_group(make_node, ("a", "b"), server__readers=1)
    g.start(nodes)
    channels = [r.Channel(node) for node in nodes]
    leads = 0
    for number in range(4):
        before, leads = channels[leads], 1 - leads
        assert g.promote(nodes[leads]).position
        request = pb.WriteRequest(namespace=h.namespace(), items=[h.memory(number)])
        written = channels[leads].stub.Write(request, timeout=h.CALL_S)
        answer = before.query(number, min_position=written.position)
        assert [hit.id for hit in answer.items] == [written.results[0].id]
