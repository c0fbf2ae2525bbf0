"""Real nodes for the tests of the client."""

from tests.scenarios.conftest import make_node, pytest_runtest_makereport  # noqa: F401
