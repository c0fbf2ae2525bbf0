"""Memory that requests leave behind goes back to the system.

Each thread of a server takes memory from one of many arenas of the C library, which keep what
they once had: after a while of large messages a server of 100 MB held a gigabyte of nothing.
Two arenas are enough, since Python runs one thread at a time; large blocks are mapped one by
one, so that they go back when they are freed; some megabytes stay for the next message; and what
is left is given back now and then. Where the C library is not glibc, nothing of this is done.
"""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Final

ARENAS: Final = 2
MAPPED_BYTES: Final = 1 << 20
"""Blocks from this size on are mapped. By itself glibc raises the bound, up to 32 MB, with
each mapped block that is freed."""

KEPT_BYTES: Final = 16 << 20
"""Free bytes at the end of an arena that are kept. With the 128 KB of glibc each message of some
hundred KB gives its pages back and takes them again: copying 1 GB in messages of 512 KB took 3.0
s of processor time in the sender, and takes 1.4."""

LEAST_GROWTH: Final = 1 << 20
"""Growth in bytes, if not a part in 64, from which giving back is worth its time."""

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8


def tune() -> bool:
    """Sets the bounds; before threads are started. What the environment says wins. False
    where there is nothing to set."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        return False
    if "MALLOC_ARENA_MAX" not in os.environ:
        libc.mallopt(_M_ARENA_MAX, ARENAS)
    if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
        libc.mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES)
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    return True


def settle() -> None:
    """To be called once, when everything is loaded. What was loaded is no longer looked at by
    the collector of cycles: 67,000 objects, for which it stopped the process for 40 ms now and
    then, and only after a quarter of their number had gathered."""
    gc.collect()
    gc.freeze()


def give_back() -> bool:
    """Gives free pages back to the system, without holding up Python: 5 ms for a small heap,
    100 ms for a gigabyte in pieces. False where that cannot be done."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        return False
    libc.malloc_trim(ctypes.c_size_t(0))
    return True


def private_bytes() -> int:
    """Resident memory that is no file's; 0 where the system does not tell."""
    try:
        _size, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * resource.getpagesize()


class Returner:
    """Gives memory back when the process has grown since the last time."""

    def __init__(self, private: Callable[[], int] = private_bytes) -> None:
        self._private = private
        self._least = private()

    def tick(self) -> bool:
        """To be called now and then; whether something was given back."""
        now = self._private()
        if now <= self._least + max(LEAST_GROWTH, self._least // 64):
            self._least = min(self._least, now)
            return False
        gc.collect()
        given = give_back()
        self._least = self._private()
        return given
