"""What tests of clients start from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.client.fake import FakeService, Running


@pytest.fixture
def running() -> Iterator[Running]:
    """A service that keeps memories in a list."""
    made = Running(FakeService())
    yield made
    made.stop()
