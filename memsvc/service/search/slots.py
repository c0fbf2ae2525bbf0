"""How many queries search at once.

More than there are cores only get in each other's way: they wait for the interpreter at every
step, and take the caches from each other. Measured on two cores with seven parts to search: two
threads answered 304 queries a second, four 274, eight 219, sixteen 171, and so a node that had
fallen behind fell further behind.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

_LOOK_S: Final = 0.1
"""How often whoever waits looks whether its caller is still there."""


class OutOfTime(Exception):
    """query.timeout_ms has passed: the answer will be empty and marked."""


@dataclass(slots=True, eq=False)
class _Waiting:
    """Who waits for a place, and what tells that it is there."""

    who: Hashable
    turn: threading.Event = field(default_factory=threading.Event)


class Slots:
    """``count`` places, of which nobody has more than ``each``. A place goes to whoever has
    fewest, among equals in the order in which they were asked for: so the costly queries of one
    agent do not keep another waiting until its time is up. ``who`` None has no bound."""

    def __init__(self, count: int, each: int | None = None) -> None:
        self._count = count
        self._each = count if each is None else each
        self._taken = 0
        self._held: Counter[Hashable] = Counter()
        self._waiting: list[_Waiting] = []
        self._lock = threading.Lock()

    @property
    def taken(self) -> int:
        """Places that are in use."""
        return self._taken

    @property
    def waiting(self) -> int:
        """How many wait for one."""
        return len(self._waiting)

    def enter(self, check: Callable[[], float], who: Hashable = None) -> None:
        """Takes a place, when there is one. ``check`` gives the seconds left; what it raises
        ends the waiting."""
        with self._lock:
            if self._taken < self._count and self._may(who):
                self._take(who)
                return
            mine = _Waiting(who)
            self._waiting.append(mine)
        try:
            while not mine.turn.wait(min(check(), _LOOK_S)):
                pass
        except BaseException:
            with self._lock:
                given = mine.turn.is_set()
                if not given:
                    self._waiting.remove(mine)
            if given:
                self.leave(who)
            raise

    def leave(self, who: Hashable = None) -> None:
        """Gives back a place of ``who``, and what is free to those who wait."""
        with self._lock:
            self._taken -= 1
            self._held[who] -= 1
            if not self._held[who]:
                del self._held[who]
            while self._taken < self._count:
                able = [waiting for waiting in self._waiting if self._may(waiting.who)]
                if not able:
                    return
                # The first of equals, which came first.
                chosen = min(able, key=lambda waiting: self._held[waiting.who])
                self._waiting.remove(chosen)
                self._take(chosen.who)
                chosen.turn.set()

    def _may(self, who: Hashable) -> bool:
        return who is None or self._held[who] < self._each

    def _take(self, who: Hashable) -> None:
        self._taken += 1
        self._held[who] += 1
