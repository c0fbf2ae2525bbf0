"""Real nodes for the tests of integrations."""

from tests.scenarios.conftest import make_node, pytest_runtest_makereport  # noqa: F401
