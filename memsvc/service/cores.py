"""The cores that a node may use, and how many processes share them."""

from __future__ import annotations

import math
import os
from typing import Final

from memsvc.config import Settings
from memsvc.service.control_group import core_limit

READERS_MOST: Final = 16
"""More are a decision to be made: each has its own connections, views and memory."""


def usable_cores() -> int:
    """Cores that this process may use, fewer than there are in many a container: by affinity,
    and by the limit of its control group, rounded up."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return max(1, math.ceil(min(cores, core_limit())))


def readers_for(cores: int) -> int:
    """Reader processes of a node with so many cores: one for each but one, which is left to
    writing, HTTP and builders. One on two cores answers fewer queries at most than none, but these
    do not wait for the interpreter while it writes: see docs/benchmarks.md. It takes some 60 MB."""
    return min(READERS_MOST, cores - 1)


def readers_of(settings: Settings) -> int:
    """Reader processes of a node with these settings, on this machine."""
    given = settings.server.readers
    return readers_for(usable_cores()) if given == "auto" else given
