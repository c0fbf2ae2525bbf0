"""Deadlines, limits, readiness and the end of a running gRPC server."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2

from memsvc.domain.errors import DeadlineExceeded
from memsvc.rpc import server as rpc
from memsvc.rpc.server import RpcOptions, RpcServer
from memsvc.rpc.serving import NOTHING
from memsvc.service.limits import Timeouts
from memsvc.service.listening import ListenError
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc
from tests.edges.fakes import EVERYTHING, FakeTokens
from tests.edges.harness import ALL_SERVED, Edge, channel, hold, make_edge, rpc_server
from tests.edges.rpc_client import NS, QUERY, WRITE, Client, auth, code, failure, info
from tests.waiting import until


def test_caller_who_sends_no_message_holds_no_thread() -> None:
    edge = make_edge(FakeTokens(ms_test_token=EVERYTHING), workers=2)
    with rpc_server(edge) as server, channel(server.port) as opened:
        silent = opened.stream_unary("/memsvc.v1.MemoryService/Query")
        blocked = threading.Event()

        def nothing() -> Iterator[bytes]:
            blocked.wait(5)
            yield b""

        waiting = [silent.future(nothing(), timeout=5) for _ in range(10)]
        try:
            stub = memory_service_pb2_grpc.MemoryServiceStub(opened)
            assert stub.Query(QUERY, metadata=auth(), timeout=2).items
            assert {call.code() for call in waiting} == {grpc.StatusCode.UNAUTHENTICATED}
        finally:
            blocked.set()


def test_health_answers_while_every_worker_is_busy() -> None:
    edge = make_edge(workers=2, max_calls=2)
    edge.api.during, inside, release = hold()
    with rpc_server(edge) as server, channel(server.port) as opened:
        client = Client(opened)
        calls = [client.memory.Query.future(QUERY, timeout=10) for _ in range(2)]
        assert inside.wait(5)
        until(lambda: edge.pool.pending == 2, 5, "both calls in the pool")
        assert client.memory.Health(pb.HealthRequest(), timeout=2).ready
        check = client.health.Check(health_pb2.HealthCheckRequest(), timeout=2)
        assert check.status == health_pb2.HealthCheckResponse.SERVING
        # And one call more than may wait is told so at once, with a delay.
        error = failure(lambda: client.memory.Query(QUERY, timeout=5))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert info(error).reason == "TOO_MANY_CALLS"
        release.set()
        assert all(call.result().items for call in calls)
        assert client.memory.Query(QUERY, timeout=5).items


def test_deadline_that_has_passed_does_no_work(edge: Edge, client: Client) -> None:
    assert code(lambda: client.memory.Write(WRITE, timeout=-1)) is (
        grpc.StatusCode.DEADLINE_EXCEEDED
    )
    # Whatever came of it came before this call. (A deadline ahead, however near, may be kept.)
    assert client.memory.Query(QUERY, timeout=5).items
    until(lambda: edge.pool.pending == 0, 5, "an empty pool")
    assert [type(a).__name__ for a in edge.api.asked] == ["QueryRequest"]


def test_call_that_waited_past_its_deadline_is_not_started() -> None:
    edge = make_edge(workers=1)
    edge.api.during, inside, release = hold()
    with rpc_server(edge) as server, channel(server.port) as opened:
        client = Client(opened)
        first = client.memory.Query.future(QUERY, timeout=10)
        assert inside.wait(5)
        assert code(lambda: client.memory.Write(WRITE, timeout=0.1)) is (
            grpc.StatusCode.DEADLINE_EXCEEDED
        )
        release.set()
        assert first.result().items
        edge.api.during = None
        assert client.memory.Query(QUERY, timeout=5).items
        assert [type(a).__name__ for a in edge.api.asked] == ["QueryRequest"] * 2


def test_server_bounds_a_call_whose_client_set_no_deadline() -> None:
    edge = make_edge()
    edge.api.during, _, _ = hold()
    timeouts = Timeouts(read_ms=50, write_ms=80)
    with rpc_server(edge, timeouts=lambda: timeouts) as server, channel(server.port) as opened:
        client = Client(opened)
        for call in (
            lambda: client.memory.Query(QUERY),
            lambda: client.memory.Write(WRITE, timeout=60),
        ):
            error = failure(call)
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            assert info(error).reason == "DEADLINE_EXCEEDED"


def test_write_refused_by_the_use_case_as_late_is_told_so(edge: Edge, client: Client) -> None:
    edge.api.fail = DeadlineExceeded("not applied")
    assert code(lambda: client.memory.Write(WRITE)) is grpc.StatusCode.DEADLINE_EXCEEDED


def test_work_stops_when_the_caller_goes_away(edge: Edge, client: Client) -> None:
    edge.api.during, inside, _ = hold()
    call = client.memory.Query.future(QUERY)
    assert inside.wait(5)
    call.cancel()
    until(lambda: edge.pool.pending == 0, 5, "the end of the work")
    assert edge.api.controls[0].cancelled()
    text = edge.metrics.exposition().decode()
    assert 'memsvc_call_duration_seconds_count{call="Query",code="CANCELLED"} 1.0' in text


def test_too_large_a_message_is_refused_before_anything_is_applied(edge: Edge) -> None:
    with rpc_server(edge, max_message_bytes=100_000) as server, channel(server.port) as opened:
        big = pb.WriteRequest(
            namespace=NS, items=[pb.WriteItem(memory=pb.Memory(content="x" * 200_000))]
        )
        client = Client(opened)
        assert code(lambda: client.memory.Write(big)) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert edge.api.asked == []
        assert client.memory.Query(QUERY).items


def test_connections_past_the_limit_are_turned_away() -> None:
    edge = make_edge()
    with rpc_server(edge, max_connections=2) as server:
        opened = [
            grpc.insecure_channel(
                f"127.0.0.1:{server.port}", options=[("grpc.use_local_subchannel_pool", 1)]
            )
            for _ in range(3)
        ]
        try:
            for one in opened[:2]:
                assert Client(one).memory.Query(QUERY, timeout=5).items
            third = Client(opened[2])
            assert code(lambda: third.memory.Query(QUERY, timeout=5)) is (
                grpc.StatusCode.UNAVAILABLE
            )
            opened[0].close()
            assert third.memory.Query(QUERY, timeout=10, wait_for_ready=True).items
        finally:
            for one in opened:
                one.close()


def test_second_server_on_the_port_says_what_is_wrong() -> None:
    edge = make_edge()
    with rpc_server(edge) as server:
        second = RpcServer(edge.gate, edge.pool, RpcOptions(listen=f"127.0.0.1:{server.port}"))
        with pytest.raises(ListenError, match=r"server\.listen.*taken"):
            second.start()


def test_calls_that_run_finish_when_the_server_stops() -> None:
    edge = make_edge()
    edge.api.during, inside, release = hold()
    server = RpcServer(edge.gate, edge.pool, RpcOptions(listen="127.0.0.1:0"))
    port = server.start()
    server.tell(ALL_SERVED)
    with channel(port) as opened:
        client = Client(opened)
        running = client.memory.Write.future(WRITE)
        assert inside.wait(5)
        results: list[bool] = []
        stopping = threading.Thread(target=lambda: results.append(server.stop(5)))
        stopping.start()
        until(
            lambda: (
                code(lambda: client.memory.Query(QUERY, timeout=0.5)) is grpc.StatusCode.UNAVAILABLE
            ),
            4,
            "refusal of new calls",
        )
        release.set()
        assert running.result(5).results
        stopping.join(5)
    assert results == [True]


def test_calls_that_do_not_end_are_broken_off_in_time() -> None:
    edge = make_edge()
    edge.api.during, inside, _ = hold()
    server = RpcServer(edge.gate, edge.pool, RpcOptions(listen="127.0.0.1:0"))
    port = server.start()
    with channel(port) as opened:
        running = Client(opened).memory.Write.future(WRITE)
        assert inside.wait(5)
        server.stop(0.3)
        assert running.exception() is not None
    # The handler noticed it and left its thread.
    assert edge.pool.close(2) == 0


def test_standard_health_follows_readiness_and_the_end() -> None:
    edge = make_edge()
    with rpc_server(edge) as server, channel(server.port) as opened:
        client = Client(opened)

        def status(service: str) -> int:
            return client.health.Check(health_pb2.HealthCheckRequest(service=service)).status

        serving, not_serving = 1, 2
        for service in (
            "",
            "memsvc.v1.MemoryService",
            "memsvc.v1.MemoryService.Write",
            "memsvc.admin.v1.AdminService",
        ):
            assert status(service) == serving
        server.tell(NOTHING)
        assert status("") == not_serving
        server.tell(ALL_SERVED)
        server.drain()
        server.tell(ALL_SERVED)
        assert status("memsvc.v1.MemoryService") == not_serving
        # A load balancer may be slow: calls are still served.
        assert client.memory.Query(QUERY).items


def test_node_that_stops_being_ready_is_taken_out_of_rotation() -> None:
    edge = make_edge()
    with rpc_server(edge) as server, channel(server.port) as opened:
        health = Client(opened).health

        def is_serving() -> bool:
            return health.Check(health_pb2.HealthCheckRequest()).status == 1

        server.follow_health(0.02)
        until(is_serving, 5, "SERVING")
        edge.api.ready = False
        until(lambda: not is_serving(), 5, "NOT_SERVING")
        edge.api.ready = True
        until(is_serving, 5, "SERVING again")
        server.drain()
        until(lambda: not _follows_health(), 5, "the end of the thread that follows")
        assert not is_serving()


def _follows_health() -> bool:
    return any(thread.name == "memsvc-readiness" for thread in threading.enumerate())


def test_the_connection_of_a_reader_is_not_replaced_for_its_age(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It carries the calls of all clients: an export that began shortly before would be broken
    off, as that of a client is whose own connection is that old."""
    monkeypatch.setattr(rpc, "AGE_MS", 100)
    monkeypatch.setattr(rpc, "AGE_GRACE_MS", 100)
    behind, before = make_edge(), make_edge()
    behind.api.during, _, release = hold()
    before.api.during, _, release_too = hold()
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,  # a short path, as sockets need
        rpc_server(behind, listen=f"unix:{folder}/node.sock"),
        rpc_server(before) as direct,
        grpc.insecure_channel(f"unix:{folder}/node.sock") as inner,
        channel(direct.port) as outer,
    ):
        passed_on = Client(inner).memory.Query.future(QUERY, timeout=30)
        own = Client(outer).memory.Query.future(QUERY, timeout=30)
        assert own.exception(timeout=30).code() is grpc.StatusCode.UNAVAILABLE
        release.set()
        release_too.set()
        assert passed_on.result(timeout=30).items
