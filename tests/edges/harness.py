"""Running servers around the fake use cases (fakes.py), for tests of the edges."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np

from memsvc.http.app import AppOptions, HttpApp
from memsvc.http.server import HttpOptions, HttpServer
from memsvc.rpc.server import RpcOptions, RpcServer
from memsvc.rpc.serving import NAMES
from memsvc.service.access import Access, Gate
from memsvc.service.api import Control
from memsvc.service.limits import CallPool, RateLimiter
from memsvc.service.metrics import Metrics
from tests.edges.fakes import FakeAdmin, FakeApi, FakeTokens

TOKEN = "ms_test_token"


@dataclass
class Edge:
    """What a test holds of a running node."""

    api: FakeApi
    admin: FakeAdmin
    gate: Gate
    pool: CallPool
    metrics: Metrics


def make_edge(
    tokens: FakeTokens | None = None,
    *,
    rate: float = 0.0,
    workers: int = 4,
    max_calls: int = 64,
) -> Edge:
    """A gate over fakes; without ``tokens`` everyone may call."""
    api, admin, metrics = FakeApi(), FakeAdmin(), Metrics()
    gate = Gate(api, access=Access(tokens), limiter=RateLimiter(rate), metrics=metrics, admin=admin)
    return Edge(api, admin, gate, CallPool(workers, max_calls), metrics)


ALL_SERVED = dict.fromkeys(NAMES, True)
"""What the standard health service says of a node that is ready."""


@contextmanager
def rpc_server(edge: Edge, **options: Any) -> Iterator[RpcServer]:
    """A gRPC server on a free port of this machine."""
    settings: dict[str, Any] = {"listen": "127.0.0.1:0", **options}
    server = RpcServer(edge.gate, edge.pool, RpcOptions(**settings))
    server.start()
    server.tell(ALL_SERVED)
    try:
        yield server
    finally:
        server.stop(1.0)
        edge.pool.close(1.0)


@contextmanager
def channel(port: int, **options: Any) -> Iterator[grpc.Channel]:
    """A connection of its own."""
    extra = [("grpc.use_local_subchannel_pool", 1), *options.items()]
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=extra) as opened:
        yield opened


def vector(*numbers: float) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """A float32 vector."""
    return np.array(numbers, dtype=np.float32)


def hold() -> tuple[Callable[[Control], None], threading.Event, threading.Event]:
    """A ``during`` that waits: (it, set when a call is in it, set to let calls go)."""
    inside, release = threading.Event(), threading.Event()

    def wait(control: Control) -> None:
        inside.set()
        while not release.wait(0.005):
            control.check()

    return wait, inside, release


@contextmanager
def http_server(edge: Edge, **options: Any) -> Iterator[HttpServer]:
    """An HTTP server on a free port of this machine."""
    app = HttpApp(edge.gate, edge.pool, AppOptions(**options))
    server = HttpServer(app.app, HttpOptions(port=0))
    server.start()
    try:
        yield server
    finally:
        app.draining = True
        server.stop(1.0)
        edge.pool.close(1.0)
