"""What callers see of a gRPC server that has more calls than it may."""

from __future__ import annotations

import threading
import time
from collections import Counter

import grpc

from tests.edges.harness import channel, make_edge, rpc_server
from tests.edges.rpc_client import QUERY, Client

SECONDS = 2.0
CALLERS = 90
"""Calls at a time over one connection: fewer than a hundred, so that it takes all of them."""


def test_flood_over_one_connection_is_told_to_come_back_and_not_cut_off() -> None:
    edge = make_edge(workers=2, max_calls=4)
    edge.api.during = lambda _control: time.sleep(0.005)
    codes: Counter[grpc.StatusCode] = Counter()
    others: Counter[str | None] = Counter()
    with rpc_server(edge, max_connections=4) as server, channel(server.port) as opened:
        client = Client(opened)
        end = time.monotonic() + SECONDS

        def call() -> None:
            while time.monotonic() < end:
                try:
                    client.memory.Query(QUERY, timeout=10)
                    codes[grpc.StatusCode.OK] += 1
                except grpc.RpcError as error:
                    codes[error.code()] += 1
                    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                        others[error.details()] += 1

        threads = [threading.Thread(target=call) for _ in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert set(codes) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}, (
        codes,
        others,
    )
