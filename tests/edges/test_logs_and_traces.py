"""What is written about calls, and what must never be."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from memsvc.rpc.server import RpcOptions, RpcServer
from memsvc.service import logs, traces
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc, types_pb2
from tests.edges.fakes import EVERYTHING, FakeTokens
from tests.edges.harness import TOKEN, channel, http_server, make_edge, rpc_server

SECRET = "the user is allergic to penicillin"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    written = io.StringIO()
    logs.configure("debug", "json", written)
    yield written
    root.handlers, root.level = before


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_one_access_line_for_each_call_over_both_protocols(stream: io.StringIO) -> None:
    edge = make_edge(FakeTokens(ms_test_token=EVERYTHING))
    namespace = types_pb2.Namespace(tenant="tenant-x", agent="agent-x")
    request = pb.WriteRequest(
        namespace=namespace, items=[pb.WriteItem(memory=pb.Memory(content=SECRET))]
    )
    metadata = (("x-memory-token", TOKEN), ("x-request-id", "r-1"))
    with rpc_server(edge) as server, channel(server.port) as opened:
        stub = memory_service_pb2_grpc.MemoryServiceStub(opened)
        stub.Write(request, metadata=metadata)
    edge = make_edge(FakeTokens(ms_test_token=EVERYTHING))
    with http_server(edge) as http:
        url = f"http://127.0.0.1:{http.port}/v1/memory"
        headers = {"X-Memory-Token": TOKEN, "X-Request-Id": "r-2"}
        body = {"namespace": ["tenant-x", "agent-x"], "text": SECRET}
        httpx.post(f"{url}/query", json=body, headers=headers)
        httpx.post(f"{url}/query", json=body, headers={"X-Memory-Token": "ms_wrong"})
    access = [line for line in lines(stream) if line["logger"] == logs.ACCESS_LOGGER]
    found = [(a["call"], a["code"], a["token"], a["protocol"]) for a in access]
    assert found == [
        ("Write", "OK", "root", "grpc"),
        ("Query", "OK", "root", "http"),
        ("Query", "UNAUTHENTICATED", "", "http"),
    ]
    assert access[0]["request_id"] == "r-1" and access[1]["request_id"] == "r-2"
    assert all(a["ms"] > 0 for a in access)
    text = stream.getvalue()
    for hidden in (SECRET, TOKEN, "ms_wrong", "tenant-x", "agent-x"):
        assert hidden not in text


def test_traceback_of_a_bug_does_not_quote_what_it_worked_on(stream: io.StringIO) -> None:
    edge = make_edge()
    edge.api.fail = ValueError(f"cannot decode '{SECRET}' at 3")
    with http_server(edge) as http:
        url = f"http://127.0.0.1:{http.port}/v1/memory/query"
        answer = httpx.post(url, json={"namespace": ["t", "a"]}).json()
    (entry,) = [line for line in lines(stream) if line["logger"] == "memsvc.errors"]
    assert answer["metadata"]["incident"] in entry["message"]
    assert "ValueError" in entry["traceback"] and "fakes.py" in entry["traceback"]
    assert SECRET not in stream.getvalue()


def test_message_cannot_forge_a_second_line() -> None:
    for style in ("json", "text"):
        written = io.StringIO()
        handler = logging.StreamHandler(written)
        handler.setFormatter(logs.JsonFormatter() if style == "json" else logs.TextFormatter())
        logger = logging.Logger("x")
        logger.addHandler(handler)
        logger.info("one\ntwo\x1b[31m", extra={"fields": {"call": "Query"}})
        text = written.getvalue()
        assert text.count("\n") == 1 and "\x1b" not in text and "Query" in text


def test_level_changes_while_running(stream: io.StringIO) -> None:
    logs.set_level("error")
    logs.access(request_id="r", call="Query", code="OK", seconds=0.1, token="", protocol="grpc")
    assert stream.getvalue() == ""
    logs.set_level("info")
    assert logging.getLogger("uvicorn").level == logging.WARNING


def test_no_endpoint_means_no_traces_and_no_import() -> None:
    tracing = traces.start("", "1")
    assert isinstance(tracing, traces.NoTracing)
    with tracing.span("x", {}) as span:
        span.set("a", 1)
    tracing.close()


def test_span_joins_the_callers_trace_and_carries_no_content() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    tracing = traces.OtelTracing(exporter, "1")
    edge = make_edge(FakeTokens(ms_test_token=EVERYTHING))
    trace = "0af7651916cd43dd8448eb211c80319c"
    metadata = (("x-memory-token", TOKEN), ("traceparent", f"00-{trace}-b7ad6b7169203331-01"))
    namespace = types_pb2.Namespace(tenant="tenant-x", agent="agent-x")
    query = pb.QueryRequest(namespace=namespace, text=SECRET)
    server = RpcServer(edge.gate, edge.pool, RpcOptions(listen="127.0.0.1:0"), tracing)
    with channel(server.start()) as opened:
        stub = memory_service_pb2_grpc.MemoryServiceStub(opened)
        stub.Query(query, metadata=metadata)
        edge.api.fail = ValueError(SECRET)
        with pytest.raises(grpc.RpcError):
            stub.Query(query, metadata=metadata)
    server.stop(1.0)
    edge.pool.close(1.0)
    tracing.close()
    spans = exporter.get_finished_spans()
    assert [span.attributes["rpc.response.status_code"] for span in spans] == ["OK", "INTERNAL"]
    assert {f"{span.context.trace_id:032x}" for span in spans} == {trace}
    text = "".join(span.to_json() for span in spans)
    for hidden in (SECRET, TOKEN, "tenant-x", "agent-x"):
        assert hidden not in text
