"""A running gRPC server: what callers must and must not get from it."""

from __future__ import annotations

import grpc
import pytest
from grpc_status import rpc_status

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.domain.errors import MemsvcError, ResourceExhausted
from memsvc.domain.types import Degraded, DegradedLevel
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2
from tests.edges.fakes import hit_id
from tests.edges.harness import Edge, channel, make_edge, rpc_server
from tests.edges.rpc_client import FORGET, NS, QUERY, WRITE, Client, auth, code, failure, info


def test_the_four_calls_answer(edge: Edge, client: Client) -> None:
    assert client.memory.Write(WRITE).results[0].outcome == pb.OUTCOME_CREATED
    assert client.memory.Query(QUERY).items[1].id == hit_id(1)
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
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
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
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert info(error).reason == "WRITE_QUEUE_FULL"
    assert 'reason="WRITE_QUEUE_FULL"' in edge.metrics.exposition().decode()


def test_a_bug_tells_an_incident_and_nothing_internal(edge: Edge, client: Client) -> None:
    edge.api.fail = RuntimeError("secret path")
    error = failure(lambda: client.memory.Write(WRITE))
    assert error.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in str(error) and len(info(error).metadata["incident"]) == 16


def test_thousand_violations_do_not_hide_the_error(edge: Edge, client: Client) -> None:
    items = [pb.WriteItem() for _ in range(1_000)]
    error = failure(lambda: client.memory.Write(pb.WriteRequest(namespace=NS, items=items)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
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
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert info(error).reason == reason
        assert dict(error.trailing_metadata())["x-request-id"]
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


def test_health_answers_without_a_token_but_tells_less(guarded: tuple[Edge, Client]) -> None:
    _, client = guarded
    assert not client.memory.Health(pb.HealthRequest()).HasField("store")
    assert not client.memory.Health(pb.HealthRequest(), metadata=auth("no")).HasField("load")
    assert client.memory.Health(pb.HealthRequest(), metadata=auth()).store.memories == 10


def test_rate_limit_of_one_namespace_leaves_the_others_alone() -> None:
    edge = make_edge(rate=1.0)
    with rpc_server(edge) as server, channel(server.port) as opened:
        client = Client(opened)
        client.memory.Query(QUERY)
        error = failure(lambda: client.memory.Query(QUERY))
        assert info(error).reason == "RATE_LIMITED"
        other = pb.QueryRequest(namespace=types_pb2.Namespace(tenant="acme", agent="other"))
        client.memory.Query(other)


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
