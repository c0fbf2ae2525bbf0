"""A generator that sends the same query again, or takes refusals for answers, flatters a server."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from benchmarks.asking import query_request
from benchmarks.drivers.load import QUERY, GrpcLoad

ANSWER = b"x" * 40_000
"""More than a frame."""
Behaviour = Callable[[bytes, grpc.ServicerContext], bytes]


@contextmanager
def serving(behaviour: Behaviour) -> Iterator[str]:
    handler = grpc.unary_unary_rpc_method_handler(behaviour)
    service, method = QUERY[1:].split("/")
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


@pytest.fixture
def load(tmp_path: Path) -> GrpcLoad:
    vectors = np.random.default_rng(1).standard_normal((50, 1536), np.float32)
    return GrpcLoad(tmp_path, [query_request("acme/bot", v) for v in vectors], len(ANSWER))


def test_all_queries_are_sent_in_turn_over_all_connections(load: GrpcLoad) -> None:
    seen: Counter[bytes] = Counter()
    peers: set[str] = set()
    lock = threading.Lock()

    def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
        with lock:
            seen[request] += 1
            peers.add(context.peer())
        return ANSWER

    with serving(answer) as address:
        rate = load.run(address, 5, 0.1, 1.0)
    assert rate > 0
    assert (len(seen), len(peers)) == (50, 5)
    assert max(seen.values()) - min(seen.values()) <= 1
    vectors = np.random.default_rng(1).standard_normal((50, 1536), np.float32)
    assert set(seen) == {query_request("acme/bot", v).SerializeToString() for v in vectors}


def test_refusals_and_short_answers_are_not_counted(load: GrpcLoad) -> None:
    def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "not now")
        raise AssertionError

    with serving(refuse) as address, pytest.raises(RuntimeError, match="calls failed"):
        load.run(address, 2, 0.1, 0.3)
    short = b"x" * 30_000
    with (
        serving(lambda _request, _context: short) as address,
        pytest.raises(RuntimeError, match="shortest answer had 30"),
    ):
        load.run(address, 2, 0.1, 0.3)


def test_a_server_that_is_not_there_is_told(load: GrpcLoad) -> None:
    with pytest.raises(RuntimeError, match="cannot connect"):
        load.run("127.0.0.1:1", 1, 0.1, 0.1)
