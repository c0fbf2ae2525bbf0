"""A client that knows nothing but the address, as tools like grpcurl do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.edges.harness import Edge, channel, make_edge, rpc_server

FILLED: dict[str, dict[str, Any]] = {
    "Write": {
        "namespace": {"tenant": "t", "agent": "a"},
        "items": [{"memory": {"content": "x", "vector": {"values": [1.0, 2.0]}}}],
    },
    "Query": {"namespace": {"tenant": "t", "agent": "a"}, "text": "x"},
    "Forget": {"namespace": {"tenant": "t", "agent": "a"}, "ids": ["m"]},
    "ExportTenant": {"tenant": "t"},
    "EraseTenant": {"tenant": "t", "confirm": "t"},
}


def ask(opened: grpc.Channel, **request: str) -> Any:
    stub = reflection_pb2_grpc.ServerReflectionStub(opened)
    message = reflection_pb2.ServerReflectionRequest(**request)
    return next(iter(stub.ServerReflectionInfo(iter([message]), timeout=5)))


def load(opened: grpc.Channel, service: str) -> descriptor_pool.DescriptorPool:
    answer = ask(opened, file_containing_symbol=service).file_descriptor_response
    files = {}
    for data in answer.file_descriptor_proto:
        proto = descriptor_pb2.FileDescriptorProto.FromString(data)
        files[proto.name] = proto
    pool = descriptor_pool.DescriptorPool()

    def add(name: str) -> None:
        if name not in files:
            more = ask(opened, file_by_filename=name).file_descriptor_response
            files[name] = descriptor_pb2.FileDescriptorProto.FromString(
                more.file_descriptor_proto[0]
            )
        for dependency in files[name].dependency:
            add(dependency)
        pool.Add(files[name])

    for name in list(files):
        add(name)
    return pool


def call_all(opened: grpc.Channel, service: str) -> Iterator[str]:
    described = load(opened, service).FindServiceByName(service)
    for method in described.methods:
        request_kind: Any = message_factory.GetMessageClass(method.input_type)
        answer_kind: Any = message_factory.GetMessageClass(method.output_type)
        path = f"/{service}/{method.name}"
        request = request_kind(**FILLED.get(method.name, {}))
        kinds = (request_kind.SerializeToString, answer_kind.FromString)
        if method.server_streaming:
            answers = list(opened.unary_stream(path, *kinds)(request, timeout=5))
            assert answers
        else:
            opened.unary_unary(path, *kinds)(request, timeout=5)
        yield method.name


def test_every_method_can_be_called_from_reflection_alone() -> None:
    edge: Edge = make_edge()
    with rpc_server(edge) as server, channel(server.port) as opened:
        listed = ask(opened, list_services="").list_services_response
        services = {service.name for service in listed.service}
        assert services == {
            "memsvc.v1.MemoryService",
            "memsvc.admin.v1.AdminService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1alpha.ServerReflection",
        }
        called = set(call_all(opened, "memsvc.v1.MemoryService"))
        assert called == {"Write", "Query", "Forget", "Health"}
        assert len(set(call_all(opened, "memsvc.admin.v1.AdminService"))) == 17


def test_open_reflection_streams_do_not_stop_the_service() -> None:
    edge = make_edge(workers=2)
    with rpc_server(edge) as server, channel(server.port) as opened:
        stub = reflection_pb2_grpc.ServerReflectionStub(opened)
        streams = []
        for _ in range(13):

            def forever() -> Iterator[reflection_pb2.ServerReflectionRequest]:
                yield reflection_pb2.ServerReflectionRequest(list_services="")
                import threading

                threading.Event().wait(3)

            streams.append(stub.ServerReflectionInfo(forever()))
        try:
            names = list(call_all_without_reflection(opened))
            assert names == ["Query", "Health"]
        finally:
            for stream in streams:
                stream.cancel()


def call_all_without_reflection(opened: grpc.Channel) -> Iterator[str]:
    from memsvc.v1 import memory_service_pb2 as pb
    from memsvc.v1 import memory_service_pb2_grpc, types_pb2

    stub = memory_service_pb2_grpc.MemoryServiceStub(opened)
    namespace = types_pb2.Namespace(tenant="t", agent="a")
    stub.Query(pb.QueryRequest(namespace=namespace, text="x"), timeout=3)
    yield "Query"
    stub.Health(pb.HealthRequest(), timeout=3)
    yield "Health"
