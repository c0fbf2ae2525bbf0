"""Real nodes for the tests of the client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.client.ingesting import MODEL
from tests.scenarios.conftest import make_node, pytest_runtest_makereport  # noqa: F401
from tests.scenarios.harness import Node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One for all tests that leave it as it is; each has an agent of its own."""
    node = Node(tmp_path_factory.mktemp("shared"), **MODEL).start()
    yield node
    node.close()


@pytest.fixture
def space(request: pytest.FixtureRequest) -> str:
    return f"acme/{request.node.name}"
