"""memsvc: the long-term memory of AI agents, outside their process.

``memsvc.open(directory)`` gives the calls of the service in-process; ``memsvc serve``
runs it for agents in any language.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memsvc.version import __version__

if TYPE_CHECKING:
    from memsvc.embedded import Embedded, open

__all__ = ["Embedded", "__version__", "open"]


def __getattr__(name: str) -> object:
    # Lazy: stubs and client must be importable without loading LMDB and usearch.
    if name in {"Embedded", "open"}:
        from memsvc import embedded

        return getattr(embedded, name)
    raise AttributeError(f"module 'memsvc' has no attribute {name!r}")
