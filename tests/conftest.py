"""What holds for all tests."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# A loaded machine is no fault of an example.
settings.register_profile("memsvc", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("memsvc")

LONGEST = (
    "tests/hermes/",
    "tests/scenarios/",
    "tests/integrations/",
    "tests/cli/",
    "tests/hostile/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of processes, which mostly wait, begin; the short ones fill the gaps at the end."""
    items.sort(key=lambda item: item.nodeid.startswith("tests/unit/"))
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))
