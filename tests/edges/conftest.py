"""A running gRPC server for the tests that need nothing special of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.edges.fakes import EVERYTHING, FakePrincipal, FakeTokens
from tests.edges.harness import Edge, channel, make_edge, rpc_server
from tests.edges.rpc_client import Client


@pytest.fixture
def edge() -> Edge:
    return make_edge()


@pytest.fixture
def client(edge: Edge) -> Iterator[Client]:
    with rpc_server(edge) as server, channel(server.port) as opened:
        yield Client(opened)


@pytest.fixture
def guarded() -> Iterator[tuple[Edge, Client]]:
    reader = FakePrincipal("reader", ("acme", "bot"), frozenset({"read"}))
    edge = make_edge(FakeTokens(ms_test_token=EVERYTHING, ms_reader=reader))
    with rpc_server(edge) as server, channel(server.port) as opened:
        yield edge, Client(opened)
