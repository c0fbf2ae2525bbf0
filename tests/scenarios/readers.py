"""Nodes with reader processes: connections of one's own, and which process has each."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Sequence
from typing import Any

import grpc
import psutil

from memsvc.admin.v1 import admin_service_pb2_grpc as admin_rpc
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc as rpc
from tests.scenarios import harness as h
from tests.waiting import until


class Channel:
    """A channel of its own to the port of a node, by some address of it. A connection that ends
    between two calls is replaced without a word."""

    def __init__(self, node: h.Node, host: str = "127.0.0.1") -> None:
        self.host = host
        self.channel = grpc.insecure_channel(
            f"{host}:{node.port}",
            [
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_retries", 0),
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 200),
            ],
        )
        self.stub: Any = rpc.MemoryServiceStub(self.channel)
        self.admin: Any = admin_rpc.AdminServiceStub(self.channel)
        self.stub.Health(pb.HealthRequest(), timeout=h.CALL_S, wait_for_ready=True)

    def write(self, numbers: Sequence[int], **more: Any) -> list[str]:
        """Writes memories by number; their ids."""
        items = [h.memory(n) for n in numbers]
        request = pb.WriteRequest(namespace=h.namespace(), items=items)
        return [r.id for r in self.stub.Write(request, timeout=h.CALL_S, **more).results]

    def query(self, number: int, **more: Any) -> pb.QueryResponse:
        """The memory with a number, by its own vector."""
        metadata = more.pop("metadata", None)
        more.setdefault("top_k", 1)
        request = pb.QueryRequest(namespace=h.namespace(), vector=h.wire(h.vector(number)), **more)
        answer: pb.QueryResponse = self.stub.Query(request, timeout=h.CALL_S, metadata=metadata)
        return answer

    def close(self) -> None:
        """Ends it."""
        self.channel.close()


class Connection(Channel):
    """A channel whose local port is known: ``port``. Nobody else of this process may connect to
    the node meanwhile."""

    def __init__(self, node: h.Node) -> None:
        before = _ports(node.port)
        super().__init__(node)
        (self.port,) = _ports(node.port) - before


def _ports(server: int) -> set[int]:
    return {
        c.laddr.port
        for c in psutil.Process(os.getpid()).net_connections("tcp")
        if c.raddr and c.raddr.port == server and c.status == psutil.CONN_ESTABLISHED
    }


def readers(node: h.Node) -> list[psutil.Process]:
    """The reader processes that there are."""
    found = []
    for child in psutil.Process(node.pid).children(recursive=True):
        try:
            if "memsvc.readers.process" in child.cmdline():
                found.append(child)
        except psutil.Error:
            pass
    return found


def connected(reader: psutil.Process) -> set[int]:
    """Ports of the clients of a reader."""
    return {
        c.raddr.port
        for c in reader.net_connections("tcp")
        if c.raddr and c.status == psutil.CONN_ESTABLISHED
    }


def hosts_of(reader: psutil.Process) -> set[str]:
    """Addresses by which clients reach a reader that listens on all of them."""
    return {
        c.laddr.ip.removeprefix("::ffff:")
        for c in reader.net_connections("tcp")
        if c.raddr and c.status == psutil.CONN_ESTABLISHED
    }


def to_each_reader(node: h.Node, most: int = 40) -> list[Connection]:
    """One connection to each reader of a node."""
    every = readers(node)
    found: dict[int, Connection] = {}
    for _ in range(most):
        connection = Connection(node)
        owner = next(r.pid for r in every if connection.port in connected(r))
        if owner in found:
            connection.close()
        else:
            found[owner] = connection
        if len(found) == len(every):
            return list(found.values())
    raise AssertionError(f"{most} connections reached only {len(found)} readers")


def metrics(node: h.Node) -> dict[str, float]:
    """The samples of /metrics by name and labels as they are written."""
    with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/metrics", timeout=10) as got:
        lines = got.read().decode().splitlines()
    pairs = [line.rpartition(" ") for line in lines if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in pairs}


def until_readers(node: h.Node, count: int) -> None:
    """Waits until so many readers serve."""
    until(lambda: metrics(node).get("memsvc_readers") == count, 60, f"{count} readers serve")
