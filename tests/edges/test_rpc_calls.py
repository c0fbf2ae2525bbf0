"""A running gRPC server: what callers must and must not get from it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.admin.v1 import admin_service_pb2_grpc
from memsvc.domain.errors import DeadlineExceeded, MemsvcError, ResourceExhausted, invalid
from memsvc.domain.types import Degraded, DegradedLevel
from memsvc.rpc.server import RpcOptions, RpcServer
from memsvc.service.limits import Timeouts
from memsvc.service.listening import ListenError
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc, types_pb2
from tests.edges.harness import (
    EVERYTHING,
    TOKEN,
    Edge,
    FakePrincipal,
    FakeTokens,
    channel,
    hold,
    make_edge,
    rpc_server,
)

NS = types_pb2.Namespace(tenant="acme", agent="bot")
QUERY = pb.QueryRequest(namespace=NS, vector=types_pb2.Vector(values=[1, 2]))
WRITE = pb.WriteRequest(namespace=NS, items=[pb.WriteItem(memory=pb.Memory(content="x"))])
FORGET = pb.ForgetRequest(namespace=NS, ids=["m"])


class Client:
    """Stubs over one connection."""

    def __init__(self, opened: grpc.Channel) -> None:
        self.channel = opened
        self.memory = memory_service_pb2_grpc.MemoryServiceStub(opened)
        self.admin = admin_service_pb2_grpc.AdminServiceStub(opened)
        self.health = health_pb2_grpc.HealthStub(opened)

    def raw(self, method: str, data: bytes, **options: Any) -> bytes:
        call = self.channel.unary_unary(f"/memsvc.v1.MemoryService/{method}")
        return call(data, timeout=5, **options)  # type: ignore[no-any-return]


@pytest.fixture
def edge() -> Edge:
    return make_edge()


@pytest.fixture
def client(edge: Edge) -> Iterator[Client]:
    with rpc_server(edge) as server, channel(server.port) as opened:
        yield Client(opened)


@pytest.fixture
def guarded() -> Iterator[tuple[Edge, Client]]:
    reader = FakePrincipal("reader", ("acme", "bot"), frozenset({"read"}))
    edge = make_edge(FakeTokens(ms_test_token=EVERYTHING, ms_reader=reader))
    with rpc_server(edge) as server, channel(server.port) as opened:
        yield edge, Client(opened)


def failure(call: Callable[[], object]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def code(call: Callable[[], object]) -> grpc.StatusCode:
    return failure(call).code()  # type: ignore[attr-defined,no-any-return]


def info(error: Any) -> error_details_pb2.ErrorInfo:
    found = error_details_pb2.ErrorInfo()
    for packed in rpc_status.from_call(error).details:
        if packed.Is(found.DESCRIPTOR):
            packed.Unpack(found)
    return found


def auth(token: str = TOKEN) -> tuple[tuple[str, str], ...]:
    return (("x-memory-token", token),)


def test_the_four_calls_answer(edge: Edge, client: Client) -> None:
    assert client.memory.Write(WRITE).results[0].outcome == pb.OUTCOME_CREATED
    assert client.memory.Query(QUERY).items[1].id == "id-1"
    assert client.memory.Forget(FORGET).matched == 2
    assert client.memory.Health(pb.HealthRequest()).store.memories == 10
    assert [type(asked).__name__ for asked in edge.api.asked] == [
        "WriteRequest",
        "QueryRequest",
        "ForgetRequest",
    ]
    assert edge.api.callers[0].may_review and edge.api.callers[0].may_admin


@pytest.mark.parametrize("method", ["Write", "Query", "Forget", "Health"])
@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff",  # no message at all
        b"\x0a\x04\x0a\x02\xc3\x28",  # tenant is not UTF-8
        b"\x0a\xff\xff\xff\x7f",  # a length past the end
        bytes([0x0A, 0x7F]),
        b"\x0b" * 2_000,  # nested groups
    ],
)
def test_broken_bytes_are_the_callers_error(client: Client, method: str, data: bytes) -> None:
    if method == "Health" and data.startswith(b"\x0a\x04"):
        data = b"\xff"
    error = failure(lambda: client.raw(method, data))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert info(error).reason == "MALFORMED_REQUEST"


def test_unknown_field_is_refused_by_every_call(client: Client) -> None:
    for method in ("Write", "Query", "Forget", "Health"):
        assert code(lambda m=method: client.raw(m, b"\xf8\x3f\x01")) is (
            grpc.StatusCode.INVALID_ARGUMENT
        )


def test_missing_namespace_is_named(client: Client) -> None:
    error = failure(lambda: client.raw("Query", b""))
    status = rpc_status.from_call(error)
    assert status is not None and "namespace.tenant" in status.message


def test_domain_error_arrives_with_all_details(edge: Edge, client: Client) -> None:
    edge.api.fail = ResourceExhausted("full", reason="WRITE_QUEUE_FULL", retry_after_ms=40)
    error = failure(lambda: client.memory.Write(WRITE))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
    assert info(error).reason == "WRITE_QUEUE_FULL"
    assert 'reason="WRITE_QUEUE_FULL"' in edge.metrics.exposition().decode()


def test_a_bug_tells_an_incident_and_nothing_internal(edge: Edge, client: Client) -> None:
    edge.api.fail = RuntimeError("secret path")
    error = failure(lambda: client.memory.Write(WRITE))
    assert error.code() is grpc.StatusCode.INTERNAL  # type: ignore[attr-defined]
    assert "secret" not in str(error) and len(info(error).metadata["incident"]) == 16


def test_thousand_violations_do_not_hide_the_error(edge: Edge, client: Client) -> None:
    items = [pb.WriteItem() for _ in range(1_000)]
    error = failure(lambda: client.memory.Write(pb.WriteRequest(namespace=NS, items=items)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]
    assert edge.api.asked == []


def test_request_id_comes_back_unless_it_could_forge_a_log_line(client: Client) -> None:
    def answered(given: str) -> str:
        _, call = client.memory.Query.with_call(QUERY, metadata=(("x-request-id", given),))
        return dict(call.trailing_metadata())["x-request-id"]

    assert answered("abc-1:2") == "abc-1:2"
    assert answered("two words") != "two words"
    assert answered("x" * 500) != "x" * 500


def test_missing_unknown_and_empty_tokens_are_refused(guarded: tuple[Edge, Client]) -> None:
    edge, client = guarded
    for metadata, reason in (
        ((), "TOKEN_MISSING"),
        (auth(""), "TOKEN_MISSING"),
        (auth("nope"), "TOKEN_INVALID"),
        (auth("x" * 600), "TOKEN_INVALID"),
    ):
        error = failure(lambda m=metadata: client.memory.Query(QUERY, metadata=m))
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
        assert info(error).reason == reason
        assert dict(error.trailing_metadata())["x-request-id"]  # type: ignore[attr-defined]
    assert edge.api.asked == []
    assert client.memory.Query(QUERY, metadata=auth()).items


def test_token_reaches_its_namespace_and_rights_only(guarded: tuple[Edge, Client]) -> None:
    edge, client = guarded
    assert client.memory.Query(QUERY, metadata=auth("ms_reader")).items
    elsewhere = pb.QueryRequest(namespace=types_pb2.Namespace(tenant="acme", agent="bot2"))
    for call in (
        lambda: client.memory.Query(elsewhere, metadata=auth("ms_reader")),
        lambda: client.memory.Write(WRITE, metadata=auth("ms_reader")),
        lambda: client.memory.Forget(FORGET, metadata=auth("ms_reader")),
        lambda: client.admin.Reload(admin_pb.ReloadRequest(), metadata=auth("ms_reader")),
    ):
        assert code(call) is grpc.StatusCode.PERMISSION_DENIED
    assert len(edge.api.asked) == 1
    assert not edge.api.callers[0].may_review and edge.api.callers[0].actor == "reader"


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


def test_health_answers_without_a_token_but_tells_less(guarded: tuple[Edge, Client]) -> None:
    _, client = guarded
    assert not client.memory.Health(pb.HealthRequest()).HasField("store")
    assert not client.memory.Health(pb.HealthRequest(), metadata=auth("no")).HasField("load")
    assert client.memory.Health(pb.HealthRequest(), metadata=auth()).store.memories == 10


def test_health_answers_while_every_worker_is_busy() -> None:
    edge = make_edge(workers=2, max_calls=2)
    edge.api.during, inside, release = hold()
    with rpc_server(edge) as server, channel(server.port) as opened:
        client = Client(opened)
        calls = [client.memory.Query.future(QUERY, timeout=10) for _ in range(2)]
        assert inside.wait(5)
        deadline = time.monotonic() + 5
        while edge.pool.pending < 2 and time.monotonic() < deadline:
            time.sleep(0.005)
        assert client.memory.Health(pb.HealthRequest(), timeout=2).ready
        check = client.health.Check(health_pb2.HealthCheckRequest(), timeout=2)
        assert check.status == health_pb2.HealthCheckResponse.SERVING
        # And one call more than may wait is told so at once, with a delay.
        error = failure(lambda: client.memory.Query(QUERY, timeout=5))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # type: ignore[attr-defined]
        assert info(error).reason == "TOO_MANY_CALLS"
        release.set()
        assert all(call.result().items for call in calls)
        assert client.memory.Query(QUERY, timeout=5).items


def test_deadline_that_has_passed_does_no_work(edge: Edge, client: Client) -> None:
    assert code(lambda: client.memory.Write(WRITE, timeout=-1)) is (
        grpc.StatusCode.DEADLINE_EXCEEDED
    )
    assert code(lambda: client.memory.Write(WRITE, timeout=0.000001)) is (
        grpc.StatusCode.DEADLINE_EXCEEDED
    )
    time.sleep(0.1)
    assert edge.api.asked == []


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
            started = time.monotonic()
            error = failure(call)
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
            assert info(error).reason == "DEADLINE_EXCEEDED"
            assert time.monotonic() - started < 2


def test_write_refused_by_the_use_case_as_late_is_told_so(edge: Edge, client: Client) -> None:
    edge.api.fail = DeadlineExceeded("not applied")
    assert code(lambda: client.memory.Write(WRITE)) is grpc.StatusCode.DEADLINE_EXCEEDED


def test_work_stops_when_the_caller_goes_away(edge: Edge, client: Client) -> None:
    edge.api.during, inside, _ = hold()
    call = client.memory.Query.future(QUERY)
    assert inside.wait(5)
    call.cancel()
    deadline = time.monotonic() + 5
    while edge.pool.pending and time.monotonic() < deadline:
        time.sleep(0.005)
    assert edge.pool.pending == 0
    assert edge.api.controls[0].cancelled()
    text = edge.metrics.exposition().decode()
    assert 'memsvc_call_duration_seconds_count{call="Query",code="CANCELLED"} 1.0' in text


def test_rate_limit_of_one_namespace_leaves_the_others_alone() -> None:
    edge = make_edge(rate=1.0)
    with rpc_server(edge) as server, channel(server.port) as opened:
        client = Client(opened)
        client.memory.Query(QUERY)
        error = failure(lambda: client.memory.Query(QUERY))
        assert info(error).reason == "RATE_LIMITED"
        other = pb.QueryRequest(namespace=types_pb2.Namespace(tenant="acme", agent="other"))
        client.memory.Query(other)


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
    server.set_ready(True)
    with channel(port) as opened:
        client = Client(opened)
        running = client.memory.Write.future(WRITE)
        assert inside.wait(5)
        results: list[bool] = []
        stopping = threading.Thread(target=lambda: results.append(server.stop(5)))
        stopping.start()
        time.sleep(0.1)
        error = failure(lambda: client.memory.Query(QUERY, timeout=5))
        assert error.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
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
        started = time.monotonic()
        server.stop(0.3)
        assert time.monotonic() - started < 3
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
        for service in ("", "memsvc.v1.MemoryService", "memsvc.admin.v1.AdminService"):
            assert status(service) == serving
        server.set_ready(False)
        assert status("") == not_serving
        server.set_ready(True)
        server.drain()
        server.set_ready(True)
        assert status("memsvc.v1.MemoryService") == not_serving
        # A load balancer may be slow: calls are still served.
        assert client.memory.Query(QUERY).items


def test_node_that_stops_being_ready_is_taken_out_of_rotation() -> None:
    edge = make_edge()
    with rpc_server(edge) as server, channel(server.port) as opened:
        health = Client(opened).health

        def becomes(wanted: int) -> bool:
            until = time.monotonic() + 5
            while time.monotonic() < until:
                if health.Check(health_pb2.HealthCheckRequest()).status == wanted:
                    return True
                time.sleep(0.01)
            return False

        server.follow_health(0.02)
        assert becomes(1)
        edge.api.ready = False
        assert becomes(2)
        edge.api.ready = True
        assert becomes(1)
        server.drain()
        time.sleep(0.1)
        assert becomes(2)


def test_administration_translates_every_call(guarded: tuple[Edge, Client]) -> None:
    edge, client = guarded
    admin, token = client.admin, auth()
    listed = admin.ListTenants(admin_pb.ListTenantsRequest(), metadata=token)
    assert (listed.agents[0].tenant, listed.next_page_token) == ("acme", "next")
    exported = list(admin.ExportTenant(admin_pb.ExportTenantRequest(tenant="acme"), metadata=token))
    assert [(e.sent, e.total) for e in exported] == [(1, 2), (2, 2)]
    assert '"köln"' in exported[0].json
    erased = admin.EraseTenant(
        admin_pb.EraseTenantRequest(tenant="acme", agent="bot", confirm="acme/bot"),
        metadata=token,
    )
    assert (erased.erased, erased.position) == (7, "pos-7")
    forced = admin.SetDegraded(admin_pb.SetDegradedRequest(level=3, reason="drill"), metadata=token)
    assert forced.forced and forced.degraded.level == 3
    assert not admin.SetDegraded(admin_pb.SetDegradedRequest(), metadata=token).forced
    assert "partitions" in admin.Inspect(admin_pb.InspectRequest(), metadata=token).json
    assert admin.Maintain(admin_pb.MaintainRequest(purge=True), metadata=token).idle
    assert admin.Reload(admin_pb.ReloadRequest(), metadata=token).needs_restart
    assert edge.admin.asked[2][0] == "root"


@pytest.mark.parametrize(
    ("method", "request_message"),
    [
        ("EraseTenant", admin_pb.EraseTenantRequest(tenant="acme")),
        ("EraseTenant", admin_pb.EraseTenantRequest(tenant="acme", agent="b", confirm="acme")),
        ("EraseTenant", admin_pb.EraseTenantRequest(agent="b", confirm="/b")),
        ("ExportTenant", admin_pb.ExportTenantRequest()),
        ("ExportTenant", admin_pb.ExportTenantRequest(tenant="a/b")),
        ("SetDegraded", admin_pb.SetDegradedRequest(level=5)),
        ("SetDegraded", admin_pb.SetDegradedRequest(reason="x" * 300)),
        ("ListTenants", admin_pb.ListTenantsRequest(page_size=20_000)),
        ("Inspect", admin_pb.InspectRequest(log_tail=2_000)),
    ],
)
def test_administration_refuses_what_could_be_a_mistake(
    edge: Edge, client: Client, method: str, request_message: Any
) -> None:
    def call() -> None:
        answer = getattr(client.admin, method)(request_message)
        if method == "ExportTenant":
            list(answer)

    assert code(call) is grpc.StatusCode.INVALID_ARGUMENT
    assert edge.admin.asked == []


def test_administration_of_one_tenant_stays_there() -> None:
    tokens = FakeTokens(ms_a=FakePrincipal("a", ("acme",), frozenset({"admin"})))
    edge = make_edge(tokens)
    with rpc_server(edge) as server, channel(server.port) as opened:
        admin, token = Client(opened).admin, auth("ms_a")
        assert admin.ListTenants(admin_pb.ListTenantsRequest(tenant="acme"), metadata=token)
        for call in (
            lambda: admin.ListTenants(admin_pb.ListTenantsRequest(), metadata=token),
            lambda: admin.ListTenants(
                admin_pb.ListTenantsRequest(tenant="acme-corp"), metadata=token
            ),
            lambda: list(
                admin.ExportTenant(admin_pb.ExportTenantRequest(tenant="b"), metadata=token)
            ),
            lambda: admin.SetDegraded(admin_pb.SetDegradedRequest(level=4), metadata=token),
            lambda: admin.Inspect(
                admin_pb.InspectRequest(tenant="acme", agent="b", log_tail=1), metadata=token
            ),
            lambda: admin.Maintain(admin_pb.MaintainRequest(), metadata=token),
            lambda: admin.Reload(admin_pb.ReloadRequest(), metadata=token),
        ):
            assert code(call) is grpc.StatusCode.PERMISSION_DENIED


def test_export_that_fails_half_way_says_so(edge: Edge, client: Client) -> None:
    def memories() -> Iterator[dict[str, object]]:
        yield {"id": "1"}
        raise invalid("x", "gone")

    edge.admin.export_tenant = lambda *_: (2, memories())  # type: ignore[method-assign]
    got: list[str] = []

    def call() -> None:
        for part in client.admin.ExportTenant(admin_pb.ExportTenantRequest(tenant="acme")):
            got.append(part.json)

    assert code(call) is grpc.StatusCode.INVALID_ARGUMENT and len(got) == 1
    text = edge.metrics.exposition().decode()
    assert 'call="ExportTenant",code="INVALID_ARGUMENT"' in text


def test_no_metric_carries_a_namespace(edge: Edge, client: Client) -> None:
    secret = types_pb2.Namespace(tenant="tenant-7f3", agent="agent-9c1", session="session-2b8")
    edge.api.degraded = Degraded(DegradedLevel.FALLBACK, "because of tenant-7f3")
    client.memory.Query(pb.QueryRequest(namespace=secret, text="hello"))
    edge.api.fail = MemsvcError("no", reason="agent-9c1")
    failure(lambda: client.memory.Query(pb.QueryRequest(namespace=secret, text="hello")))
    text = edge.metrics.exposition().decode()
    for name in ("tenant-7f3", "agent-9c1", "session-2b8", "hello"):
        assert name not in text


def test_unknown_method_is_unimplemented(client: Client) -> None:
    assert code(lambda: client.raw("Nothing", b"")) is grpc.StatusCode.UNIMPLEMENTED
