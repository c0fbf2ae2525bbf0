"""What a refused request held is freed at once, not when the collector of cycles comes by:
an error, its traceback and the future it travelled in like to hold each other, and with them
a body of 16 MB."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import numpy as np
import pytest

from memsvc.domain.errors import MemsvcError, invalid
from memsvc.domain.types import ForgetRequest, Namespace, NewMemory, Touch, WriteRequest
from memsvc.service.api import Control
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc as rpc
from memsvc.v1 import types_pb2 as types
from tests.edges.harness import Edge, channel, http_server, rpc_server
from tests.semantics.harness import DIMENSION, REVIEWER, World
from tests.waiting import until

SPACE = Namespace("acme", "bot")


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Held:
    """Stands for what the frames of a call hold."""


def refuse_while_holding(edge: Edge) -> list[weakref.ref[Held]]:
    held: list[weakref.ref[Held]] = []

    def during(_control: Control) -> None:
        local = Held()
        held.append(weakref.ref(local))
        raise invalid("text", "no")

    edge.api.during = during
    return held


def test_refusal_over_http_holds_no_frames(edge: Edge) -> None:
    held = refuse_while_holding(edge)
    with http_server(edge) as server:
        answer = httpx.post(
            f"http://127.0.0.1:{server.port}/v1/memory/query",
            json={"namespace": ["acme", "bot"], "text": "x"},
        )
        assert answer.status_code == 400
        until(lambda: held[0]() is None, 10, "the frames of the call")


def test_refusal_over_grpc_holds_no_frames(edge: Edge) -> None:
    held = refuse_while_holding(edge)
    with rpc_server(edge) as server, channel(server.port) as opened:
        with pytest.raises(grpc.RpcError):
            rpc.MemoryServiceStub(opened).Query(
                pb.QueryRequest(namespace=types.Namespace(tenant="acme", agent="bot"), text="x")
            )
        until(lambda: held[0]() is None, 10, "the frames of the call")


def test_refused_write_holds_nothing_of_its_request(tmp_path: Path) -> None:
    world = World(tmp_path / "data")
    try:
        vector = np.ones(DIMENSION, np.float32)
        gone = weakref.ref(vector)
        items = (NewMemory("x", vector=vector), Touch("00000000-0000-7000-8000-000000000000"))
        request = WriteRequest(SPACE, items)
        with pytest.raises(MemsvcError):
            world.node.memory.write(REVIEWER, request, Control())
        del vector, items, request
        until(lambda: gone() is None, 10, "the vector of the refused request")
    finally:
        world.close()


def test_refused_forget_holds_nothing_of_its_request(tmp_path: Path) -> None:
    world = World(tmp_path / "data")

    class Id(str):
        pass

    try:
        for number in range(2):
            id_text = Id(f"00000000-0000-7000-8000-00000000000{number}")
            gone = weakref.ref(id_text)
            request = ForgetRequest(
                SPACE, ids=(id_text,), request_id="r", fingerprint=b"%d" % number
            )
            if number:
                with pytest.raises(MemsvcError):
                    world.node.memory.forget(REVIEWER, request, Control())
            else:
                world.node.memory.forget(REVIEWER, request, Control())
            del id_text, request
            until(lambda: gone() is None, 10, "the ids of the request")  # noqa: B023
    finally:
        world.close()
