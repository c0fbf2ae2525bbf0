"""What maintenance has to do: partitions to look at by lane, what was asked for, and when the
database file has its turn. Decides the order of work; does none of it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

LANES: Final = ("seal", "merge")
COMPACT: Final = 0
"""Stands for the database file where a partition's number is given; those begin at 1."""
_LOOK_S: Final = 1.0
"""Longest wait between two looks at what is due."""


@dataclass(slots=True)
class Wish:
    """Maintenance that was asked for: by an operator, the schedule, or erasure. ``asked``
    counts the times, so that what was asked for meanwhile is not taken for done."""

    seal_min_rows: int = 0
    merge_all: bool = False
    purge: bool = False
    asked: int = 0


@dataclass(slots=True)
class _Lane:
    """Partitions that wait, first come first, and those to be tried again, by when."""

    due: OrderedDict[int, None] = field(default_factory=OrderedDict)
    later: dict[int, float] = field(default_factory=dict)

    def holds(self, number: int) -> bool:
        return number in self.due or number in self.later

    def __len__(self) -> int:
        return len(self.due) + len(self.later)


@dataclass(slots=True)
class _Turn:
    """The turn of the database file: it comes when every partition of ``before`` has been
    tried once. What fails is tried again after it, so that it cannot hold up erasure."""

    wanted: bool = False
    not_before: float = 0.0
    before: OrderedDict[int, None] = field(default_factory=OrderedDict)
    tried: set[int] = field(default_factory=set)


class WorkQueue:
    """Shared by the lanes and whoever has work for them. Times are time.monotonic()."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._lanes = {name: _Lane() for name in LANES}
        self._wishes: dict[int, Wish] = {}
        self._turn = _Turn()
        self._stopping = False
        self.compacting = False
        """Whether the database file is being compacted now."""
        self.running = 0
        """Jobs that run."""

    # -- adding ------------------------------------------------------------------------

    def add(self, number: int, *lanes: str) -> None:
        """A partition is to be looked at. One that failed keeps its pause."""
        with self._changed:
            for lane in lanes or LANES:
                if not self._lanes[lane].holds(number):
                    self._lanes[lane].due[number] = None
            self._changed.notify_all()

    def ask(
        self, numbers: Iterable[int], *, seal_min_rows: int, merge_all: bool, purge: bool
    ) -> None:
        """Something was asked for of partitions, which are looked at."""
        with self._changed:
            for number in numbers:
                wish = self._wishes.setdefault(number, Wish())
                wish.seal_min_rows = seal_min_rows or wish.seal_min_rows
                wish.merge_all = wish.merge_all or merge_all
                wish.purge = wish.purge or purge
                wish.asked += 1
                self.add(number)

    def compact(self, erasing: Iterable[int]) -> None:
        """The database file is to be compacted once ``erasing`` have been rid of erased
        rows, or that has been tried. Waits for each at most once, however often asked."""
        with self._changed:
            turn = self._turn
            turn.wanted = True
            merge = self._lanes["merge"]
            for number in erasing:
                if number in turn.tried or number in merge.later:
                    continue
                self.add(number, "merge")
                turn.before[number] = None
            self._changed.notify_all()

    # -- taking ------------------------------------------------------------------------

    def take(self, lane: str) -> int | None:
        """Waits for work: a partition, COMPACT, or None at the end. Call ``finished``."""
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                found = self._next(lane, now)
                if found is not None:
                    self.running += 1
                    return found
                until = [*self._lanes[lane].later.values(), now + _LOOK_S]
                if self._turn.wanted and self._turn.not_before > now:
                    until.append(self._turn.not_before)
                self._changed.wait(max(0.0, min(until) - now))
        return None

    def _next(self, lane: str, now: float) -> int | None:
        turn, waiting = self._turn, self._lanes[lane]
        for number in [n for n, at in waiting.later.items() if at <= now]:
            del waiting.later[number]
            waiting.due[number] = None
        if lane == "merge" and turn.wanted and turn.not_before <= now:
            if not turn.before:
                self._turn = _Turn()
                self.compacting = True
                return COMPACT
            # What it waits for goes first: the queue may be long.
            first = next(iter(turn.before))
            if first in waiting.due:
                del waiting.due[first]
                return first
        return waiting.due.popitem(last=False)[0] if waiting.due else None

    def finished(self, lane: str, number: int, again_s: float | None = None) -> None:
        """Work is done; ``again_s`` when it failed: pause until it is tried again. Nobody
        sleeps through the pause, and other work goes on."""
        with self._changed:
            self.running -= 1
            at = None if again_s is None else time.monotonic() + again_s
            if number == COMPACT:
                self.compacting = False
                if at is not None:
                    self._turn.wanted = True
                    self._turn.not_before = at
            else:
                if at is not None:
                    self._lanes[lane].due.pop(number, None)
                    self._lanes[lane].later[number] = at
                if lane == "merge" and self._turn.wanted:
                    self._turn.before.pop(number, None)
                    self._turn.tried.add(number)
            self._changed.notify_all()

    # -- what was asked for ------------------------------------------------------------

    def wish(self, number: int) -> tuple[Wish, bool]:
        """What is asked of a partition now, and whether its tail may yet be sealed."""
        with self._changed:
            wish = replace(self._wishes.get(number, Wish()))
            return wish, bool(wish.seal_min_rows) or self._lanes["seal"].holds(number)

    def fulfilled(self, lane: str, number: int, asked: int, sealing: bool) -> None:
        """Strikes off what was asked for; ``asked`` and ``sealing`` as they were before the
        lane looked and found nothing left to do."""
        with self._changed:
            wish = self._wishes.get(number)
            if wish is None or wish.asked != asked:
                return
            if lane == "seal":
                wish.seal_min_rows = 0
                if wish.merge_all:
                    # What has been sealed is to be merged too.
                    self.add(number, "merge")
            elif not (wish.merge_all and sealing):
                wish.merge_all = wish.purge = False
            if not (wish.seal_min_rows or wish.merge_all or wish.purge):
                self._wishes.pop(number, None)

    # -- telling -----------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Jobs that wait, or that are to be tried again."""
        return sum(map(len, self._lanes.values())) + int(self._turn.wanted)

    def wait_idle(self, seconds: float) -> bool:
        """Whether everything was done within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self.waiting or self.running), seconds)

    def stop(self) -> None:
        """Wakes the lanes, which end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
