"""How many queries search at once.

More than there are cores only get in each other's way: they wait for the interpreter at every
step, and take the caches from each other. Measured on two cores with seven parts to search: two
threads answered 304 queries a second, four 274, eight 219, sixteen 171, and so a node that had
fallen behind fell further behind.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

_LOOK_S: Final = 0.1
"""How often whoever waits looks whether its caller is still there."""


class OutOfTime(Exception):
    """query.timeout_ms has passed: the answer will be empty and marked (S26)."""


class Slots:
    """``count`` places, given in the order in which they were asked for."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken = 0
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """Places that are in use."""
        return self._taken

    @property
    def waiting(self) -> int:
        """How many wait for one."""
        return len(self._waiting)

    def enter(self, check: Callable[[], float]) -> None:
        """Takes a place, when there is one. ``check`` gives the seconds left; what it raises
        ends the waiting."""
        with self._lock:
            if self._taken < self._count:
                self._taken += 1
                return
            turn = threading.Event()
            self._waiting.append(turn)
        try:
            while not turn.wait(min(check(), _LOOK_S)):
                pass
        except BaseException:
            with self._lock:
                given = turn.is_set()
                if not given:
                    self._waiting.remove(turn)
            if given:
                self.leave()
            raise

    def leave(self) -> None:
        """Gives a place to whoever waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._taken -= 1
