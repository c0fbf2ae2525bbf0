"""What is kept on the agent's side for a while. Both are safe to use from several threads and read
a monotonic clock that is given, in seconds."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

V = TypeVar("V")
MAX_SESSIONS: Final = 1_000
"""Sessions whose last turns are kept; the one that was quiet longest goes first."""
USER: Final = "user"


class ExpiringLru(Generic[V]):
    """At most ``size`` values by key, each for ``seconds`` after it was put; the one that was
    used longest ago goes first."""

    def __init__(self, size: int, seconds: float, clock: Callable[[], float]) -> None:
        self._size = size
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._values: OrderedDict[str, tuple[float, V]] = OrderedDict()
        self.drops = 0
        """How often values were dropped."""

    def get(self, key: str) -> V | None:
        """The value, or None when there is none or its time is over."""
        with self._lock:
            entry = self._values.get(key)
            if entry is None:
                return None
            if self._clock() >= entry[0]:
                del self._values[key]
                return None
            self._values.move_to_end(key)
            return entry[1]

    def put(self, key: str, value: V, drops: int | None = None) -> None:
        """Keeps a value; its time begins anew. Not so if values were dropped since ``drops`` was
        read: then it may be one of them."""
        with self._lock:
            if drops is not None and drops != self.drops:
                return
            self._values[key] = (self._clock() + self._seconds, value)
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)

    def drop(self, keys: Iterable[str] | None = None) -> None:
        """Drops some values; None = all."""
        with self._lock:
            self.drops += 1
            if keys is None:
                self._values.clear()
                return
            for key in keys:
                self._values.pop(key, None)


@dataclass(frozen=True, slots=True)
class RecentTurn:
    """A turn of a conversation that was noted lately. ``number`` counts the turns of this process
    and names it; ``ts`` is UTC ms."""

    number: int
    role: str
    text: str
    ts: int
    noted: float


class RecentTurns:
    """The last turns of each session, ``size`` of them, each for ``seconds``."""

    def __init__(self, size: int, seconds: float, clock: Callable[[], float]) -> None:
        self._size = size
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._count = 0
        self._sessions: OrderedDict[str, deque[RecentTurn]] = OrderedDict()

    def note(self, session: str, role: str, text: str, ts: int) -> None:
        """A turn was spoken. One that was noted last already, with the same words, is not noted
        twice: an input is seen when it is asked about and when it is remembered."""
        if not text.strip() or self._size == 0:
            return
        with self._lock:
            turns = self._sessions.setdefault(session, deque(maxlen=self._size))
            self._sessions.move_to_end(session)
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
            now = self._clock()
            if turns and (turns[-1].role, turns[-1].text) == (role, text):
                return
            self._count += 1
            turns.append(RecentTurn(self._count, role, text, ts, now))

    def of(self, session: str) -> list[RecentTurn]:
        """The turns of a session whose time is not over, oldest first."""
        since = self._clock() - self._seconds
        with self._lock:
            return [turn for turn in self._sessions.get(session, ()) if turn.noted > since]

    def numbered(self, number: int) -> RecentTurn | None:
        """A turn by its number; None when it is gone."""
        since = self._clock() - self._seconds
        with self._lock:
            for turns in self._sessions.values():
                for turn in turns:
                    if turn.number == number and turn.noted > since:
                        return turn
        return None

    def clear(self, session: str | None = None) -> None:
        """Drops the turns of a session; None = of all."""
        with self._lock:
            if session is None:
                self._sessions.clear()
            else:
                self._sessions.pop(session, None)


def user_texts(turns: Iterable[RecentTurn], count: int) -> list[str]:
    """What the user said in the last ``count`` of their turns, oldest first."""
    said = [turn.text for turn in turns if turn.role == USER]
    return said[-count:] if count else []
