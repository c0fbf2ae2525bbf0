"""The cores of the machine, and how many processes share them."""

from __future__ import annotations

import os
from typing import Final

from memsvc.config import Settings

READERS_MOST: Final = 16
"""More are a decision to be made: each has its own connections, views and memory."""


def usable_cores() -> int:
    """Cores that this process may use, fewer than there are in many a container."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def readers_for(cores: int) -> int:
    """Reader processes of a node with so many cores: one for each but one, which is left to
    writing, HTTP and builders. One on two cores answers no more queries than none, but queries do
    not wait there for the interpreter while it writes: see docs/benchmarks.md. It takes some 60
    MB."""
    return min(READERS_MOST, cores - 1)


def readers_of(settings: Settings) -> int:
    """Reader processes of a node with these settings, on this machine."""
    given = settings.server.readers
    return readers_for(usable_cores()) if given == "auto" else given
