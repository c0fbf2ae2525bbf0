"""The cores of the machine, and how many processes share them."""

from __future__ import annotations

import os
from typing import Final

from memsvc.config import Settings

READERS_FROM_CORES: Final = 3
"""Fewer cores have no readers of their own accord. Two readers on two cores answer nearly twice
the queries, but a small node feels what they cost: some 60 MB each, a start that takes twice as
long, and writes that go through one more process."""
READERS_MOST: Final = 16
"""More are a decision to be made: each has its own connections, views and memory."""


def usable_cores() -> int:
    """Cores that this process may use, fewer than there are in many a container."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def readers_for(cores: int) -> int:
    """Reader processes of a node with so many cores: one for each but one, which is left to
    writing, HTTP and builders."""
    return min(READERS_MOST, cores - 1) if cores >= READERS_FROM_CORES else 0


def readers_of(settings: Settings) -> int:
    """Reader processes of a node with these settings, on this machine."""
    given = settings.server.readers
    return readers_for(usable_cores()) if given == "auto" else given
