"""Fixtures of the hostile tests."""

from __future__ import annotations

import pytest

from tests.edges.harness import Edge, make_edge


@pytest.fixture
def edge() -> Edge:
    """A gate over fakes."""
    return make_edge()
