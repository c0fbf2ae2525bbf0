"""Calls through generated stubs alone that fail, or go where they should not, while nodes come
and go. The service configs are those of docs/howto/load-balancing.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc as rpc
from tests.scenarios import harness as h
from tests.scenarios import replication as r
from tests.scenarios.routing import Callers, Trio
from tests.waiting import until

MakeNode = Callable[..., h.Node]
READS, CHANGES = re.findall(
    r"```json\n(.*?)```",
    (h.REPOSITORY / "docs" / "howto" / "load-balancing.md").read_text(),
    re.DOTALL,
)


@contextmanager
def balanced(config: str, nodes: Sequence[h.Node]) -> Iterator[rpc.MemoryServiceStub]:
    """The stubs over all nodes, with a service config."""
    target = "ipv4:" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)
    options = [
        ("grpc.service_config", config),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 200),
    ]
    with grpc.insecure_channel(target, options) as channel:
        yield rpc.MemoryServiceStub(channel)


def serves(node: h.Node, name: str) -> bool:
    """What a node says under one name."""
    request = health_pb2.HealthCheckRequest(service=name)
    answer = health_pb2_grpc.HealthStub(node.channel()).Check(request, timeout=5)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def until_fit(*nodes: h.Node) -> None:
    """Waits until nodes say that they are fit for reads."""
    for node in nodes:
        until(lambda n=node: serves(n, "memsvc.v1.MemoryService"), 60, "a node to be fit")  # type: ignore[misc]


def test_a_replica_killed_under_reads_fails_no_call_of_plain_stubs(make_node: MakeNode) -> None:
    trio = Trio(make_node)
    h.fill(trio.primary, range(60))
    r.level(trio.primary, *trio.replicas)
    until_fit(*trio.nodes)
    with balanced(READS, trio.nodes) as stub:

        def read(number: int) -> None:
            request = pb.QueryRequest(
                namespace=h.namespace(), vector=h.wire(h.vector(number % 60)), top_k=1
            )
            assert f"word{number % 60}x" in stub.Query(request, timeout=60).items[0].summary

        with Callers(read) as callers:
            callers.more()
            trio.replicas[0].kill()
            callers.more(200)
            trio.replicas[0].start()
            until_fit(trio.replicas[0])
            callers.more()


def test_changes_of_plain_stubs_reach_the_primary_alone_also_after_its_restart(
    make_node: MakeNode,
) -> None:
    trio = Trio(make_node)
    ids: set[str] = set()
    for node in trio.nodes:
        assert serves(node, "memsvc.v1.MemoryService.Write") == (node is trio.primary)
    with balanced(CHANGES, trio.nodes) as stub:

        def write(number: int) -> None:
            item = pb.WriteItem(memory=pb.Memory(content=f"memory {number}"))
            request = pb.WriteRequest(
                namespace=h.namespace(), request_id=f"r{number}", items=[item]
            )
            ids.add(stub.Write(request, timeout=60).results[0].id)

        with Callers(write) as callers:
            callers.more()
            trio.primary.kill()
            trio.primary.start()
            callers.more()
    assert set(h.browse(trio.primary)) == ids, "each was written once"


def test_plain_stubs_leave_a_replica_that_lags(make_node: MakeNode) -> None:
    primary = r.make_primary(make_node).start()
    with r.Proxy(r.feed_address(primary)) as network:
        replica = r.make_replica(
            make_node, primary, via=network.address, replication__max_lag_ms=1_000
        ).start()
        until_fit(primary, replica)
        network.cut()
        h.fill(primary, range(1))
        until(lambda: not serves(replica, "memsvc.v1.MemoryService"), 60, "the lag to be told")
        assert serves(replica, ""), "it lives, and needs no restart"
        with balanced(READS, [primary, replica]) as stub:
            request = pb.QueryRequest(namespace=h.namespace(), mode=pb.MODE_BROWSE)
            for _ in range(20):
                assert len(stub.Query(request, timeout=60).items) == 1
        # A caller that insists is still answered.
        assert not replica.stub().Query(request, timeout=10).items
        network.heal()
        until_fit(replica)
        assert len(replica.stub().Query(request, timeout=10).items) == 1


@pytest.mark.parametrize("readers", [0, 1])
def test_a_primary_says_what_it_serves_with_and_without_reader_processes(
    make_node: MakeNode, readers: int
) -> None:
    primary = r.make_primary(make_node, server__readers=readers).start()
    names = ("", "memsvc.v1.MemoryService", "memsvc.v1.MemoryService.Write",
             "memsvc.admin.v1.AdminService")  # fmt: skip
    until(lambda: all(serves(primary, name) for name in names), 60, "the primary to serve all")
