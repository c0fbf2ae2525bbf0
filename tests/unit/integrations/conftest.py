"""What tests of integrations start from: the same as those of the client beneath."""

from __future__ import annotations

from tests.unit.client.conftest import running

__all__ = ["running"]
