"""memsvc as a memory provider of Hermes: what Hermes loads. All of it is in the package memsvc, so
that a folder made by `memsvc hermes install` need not be made anew after an upgrade."""

from __future__ import annotations

import sys
from typing import Any

from agent.memory_provider import MemoryProvider

MISSING = ""
try:
    from memsvc.integrations.hermes.provider import Provider
except ImportError as error:  # as after an update that made Hermes' environment anew
    MISSING = (
        f"the package memsvc cannot be imported ({error}); install it into the environment of "
        f"Hermes: {sys.executable} -m pip install 'memsvc[local]'"
    )


class MissingProvider(MemoryProvider):
    """Stands in while the package is missing, and says so where people look."""

    @property
    def name(self) -> str:
        """As that of the provider."""
        return "memsvc"

    def is_available(self) -> bool:
        """No."""
        return False

    def initialize(self, session_id: str, **told: Any) -> None:
        """Nothing."""

    def get_tool_schemas(self) -> list[dict[str, Any]]:
        """None."""
        return []

    def get_status_config(self, config: Any = None) -> dict[str, str]:
        """What is missing."""
        return {"problem": MISSING}

    def post_setup(self, hermes_home: str, config: dict[str, Any]) -> None:
        """Changes nothing."""
        sys.stdout.write(f"\n  Not set up: {MISSING}\n\n")


def register(context: Any) -> None:
    """Called by Hermes."""
    if MISSING:
        context.register_memory_provider(MissingProvider())
        return

    class MemsvcMemoryProvider(Provider, MemoryProvider):
        """Provider, as a MemoryProvider."""

    context.register_memory_provider(MemsvcMemoryProvider())
