"""Rate limits that several processes of one node keep together.

The buckets stand in a small file that all of them map, so a namespace has one bucket whichever
process takes its call. A record lock of the system guards each set of buckets; it goes away
with the process that held it, however that ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from memsvc.service.limits import RateLimiter

SETS: Final = 2_048
WAYS: Final = 8
"""Buckets of a set. A namespace has its place in one set; of those that share it, the one seen
longest ago makes room, and starts with a full bucket when it returns."""
_BUCKET: Final = struct.Struct("<16sdd")
"""Hash of the namespace, tokens, when they were counted (seconds, monotonic: the same clock in
all processes of a machine)."""
_SET_BYTES: Final = WAYS * _BUCKET.size
FILE_BYTES: Final = SETS * _SET_BYTES


class SharedRateLimiter(RateLimiter):
    """A RateLimiter whose buckets are in ``file``, which is made when it is not there. Every
    process must be given the same limits."""

    def __init__(
        self,
        file: Path,
        rate: float = 0.0,
        burst: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(rate, burst, clock=clock)
        # Open for good: closing a descriptor of the file drops every lock of the process.
        self._fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if hasattr(os, "posix_fallocate"):
            # With room on the disk: a mapped page that finds none ends the process.
            os.posix_fallocate(self._fd, 0, FILE_BYTES)
        else:
            os.ftruncate(self._fd, FILE_BYTES)
        self._map = mmap.mmap(self._fd, FILE_BYTES)

    def _draw(self, tenant: str, agent: str, rate: float, burst: float) -> float:
        name = hashlib.blake2b(f"{tenant}/{agent}".encode(), digest_size=16).digest()
        number = int.from_bytes(name[:4], "little") % SETS
        # The caller holds a lock of this process; this one keeps the others out.
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, number)
        try:
            return self._draw_from(number * _SET_BYTES, name, rate, burst)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, number)

    def _draw_from(self, start: int, name: bytes, rate: float, burst: float) -> float:
        now = self._clock()
        held: float
        counted: float
        oldest, oldest_at = start, float("inf")
        for offset in range(start, start + _SET_BYTES, _BUCKET.size):
            found, held, counted = _BUCKET.unpack_from(self._map, offset)
            if found == name:
                break
            if counted < oldest_at:
                oldest, oldest_at = offset, counted
        else:
            offset, held, counted = oldest, burst, now
        tokens: float = min(burst, held + max(0.0, now - counted) * rate)
        _BUCKET.pack_into(self._map, offset, name, tokens - 1.0 if tokens >= 1.0 else tokens, now)
        return tokens
