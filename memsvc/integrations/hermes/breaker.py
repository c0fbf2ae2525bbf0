"""Not asking a service again and again that does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

FAILURES: Final = 5
PAUSE_SECONDS: Final = 60.0


class Breaker:
    """After FAILURES failures in a row nothing is tried for PAUSE_SECONDS; then one attempt
    decides. A service that hangs would else cost each turn the whole time limit. Safe to use from
    several threads. ``clock`` gives seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0

    def allows(self) -> bool:
        """Whether to try."""
        with self._lock:
            if self._failures < FAILURES:
                return True
            if self._clock() < self._until:
                return False
            self._until = self._clock() + PAUSE_SECONDS  # others wait for what this one finds
            return True

    def succeeded(self) -> None:
        """It answered."""
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        """It did not."""
        with self._lock:
            self._failures += 1
            if self._failures >= FAILURES:
                self._until = self._clock() + PAUSE_SECONDS
