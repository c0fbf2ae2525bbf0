"""The servicers without a network, as grpcio-testing drives them."""

from __future__ import annotations

from typing import Any

import grpc
import grpc_testing

from memsvc.domain.errors import invalid
from memsvc.rpc.servicers import MemoryServicer
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2
from tests.edges.fakes import EVERYTHING, FakeTokens
from tests.edges.harness import TOKEN, Edge, make_edge

SERVICE = pb.DESCRIPTOR.services_by_name["MemoryService"]
NS = types_pb2.Namespace(tenant="t", agent="a")


def call(edge: Edge, name: str, request: Any, token: str = "") -> tuple[Any, Any, Any]:
    """Answer, code and message."""
    servers = {SERVICE: MemoryServicer(edge.gate)}
    server = grpc_testing.server_from_dictionary(servers, grpc_testing.strict_real_time())
    metadata = (("x-memory-token", token),) if token else ()
    method = SERVICE.methods_by_name[name]
    rpc = server.invoke_unary_unary(method, metadata, request, 5)
    answer, _, code, details = rpc.termination()
    return answer, code, details


def test_servicer_works_without_an_interceptor_and_still_asks_for_the_token() -> None:
    edge = make_edge(FakeTokens(ms_test_token=EVERYTHING))
    request = pb.QueryRequest(namespace=NS, text="x")
    answer, code, _ = call(edge, "Query", request, TOKEN)
    found = pb.QueryResponse.FromString(answer)
    assert code is grpc.StatusCode.OK and len(found.items) == 2
    _, code, _ = call(edge, "Query", request)
    assert code is grpc.StatusCode.UNAUTHENTICATED
    answer, _, _ = call(edge, "Health", pb.HealthRequest())
    assert answer.ready and not answer.HasField("store")
    answer, _, _ = call(edge, "Health", pb.HealthRequest(), TOKEN)
    assert answer.HasField("store")


def test_refusal_without_an_interceptor_has_its_code_and_message() -> None:
    edge = make_edge()
    edge.api.fail = invalid("ids", "too many")
    _, code, details = call(edge, "Forget", pb.ForgetRequest(namespace=NS, ids=["m"]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT and details == "ids: too many"
    edge.api.fail = RuntimeError("secret")
    _, code, details = call(edge, "Forget", pb.ForgetRequest(namespace=NS, ids=["m"]))
    assert code is grpc.StatusCode.INTERNAL and "secret" not in details
