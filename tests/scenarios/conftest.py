"""Fixtures of the scenario tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.harness import Node, tell

MakeNode = Callable[..., Node]
REPORT_OF_CALL = pytest.StashKey[pytest.TestReport]()


@pytest.fixture
def make_node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeNode]:
    """Makes nodes (not started); ends them, and prints their logs when the test failed."""
    made: list[Node] = []

    def make(name: str = "node", **settings: Any) -> Node:
        node = Node(tmp_path / name, **settings)
        made.append(node)
        return node

    yield make
    for node in made:
        node.close()
    report = request.node.stash.get(REPORT_OF_CALL, None)
    if report is None or report.failed:
        for node in made:
            tell(f"--- log of {node.folder.name} ---\n{node.log_tail(150)}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Lets fixtures know how the test went."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "call":
        item.stash[REPORT_OF_CALL] = report
