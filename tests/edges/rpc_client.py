"""What the tests of the gRPC server call it with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2_grpc
from grpc_status import rpc_status

from memsvc.admin.v1 import admin_service_pb2_grpc
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc, types_pb2
from tests.edges.harness import (
    TOKEN,
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
        return call(data, timeout=5, **options)


def failure(call: Callable[[], object]) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


def code(call: Callable[[], object]) -> grpc.StatusCode:
    return failure(call).code()


def info(error: Any) -> error_details_pb2.ErrorInfo:
    found = error_details_pb2.ErrorInfo()
    for packed in rpc_status.from_call(error).details:
        if packed.Is(found.DESCRIPTOR):
            packed.Unpack(found)
    return found


def auth(token: str = TOKEN) -> tuple[tuple[str, str], ...]:
    return (("x-memory-token", token),)
