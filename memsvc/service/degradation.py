"""The ladder: how far the node is below its full service, by hand or by its own checks.

A pure state machine. The level is the worst of the last ten checks, one a second: a bad one
lowers the node at once, and it comes back, or up to a better level, only after ten good checks
in a row, so that it does not flap. A level forced by hand holds until it is given back.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from memsvc.domain.recovery import GOOD_CHECKS
from memsvc.domain.types import Degraded, DegradedLevel, Mode

log = logging.getLogger(__name__)

GOOD: Final = Degraded()
DISK_STALLED: Final = Degraded(DegradedLevel.TIMEOUT, "DISK_STALLED")
REPLICA_LAGGING: Final = Degraded(DegradedLevel.FALLBACK, "REPLICA_LAGGING")
STALE: Final = Degraded(DegradedLevel.FALLBACK, "STALE")
SEGMENT_DAMAGED: Final = Degraded(DegradedLevel.NO_VECTORS, "SEGMENT_DAMAGED")
NO_QUERY_TEXT: Final = Degraded(DegradedLevel.NO_VECTORS, "NO_QUERY_TEXT")
STORE_UNREADABLE: Final = Degraded(DegradedLevel.NO_MEMORY, "STORE_UNREADABLE")


@dataclass(frozen=True, slots=True)
class Signs:
    """What one check has seen. ``lags``: a replica that is too far behind its primary, or no
    longer follows it. ``stalled``: a change waits for the disk."""

    unreadable: bool = False
    damaged_files: int = 0
    lags: bool = False
    stalled: bool = False

    def finding(self) -> Degraded:
        """The worst of it; level NONE = good."""
        if self.unreadable:
            return STORE_UNREADABLE
        if self.damaged_files:
            return SEGMENT_DAMAGED
        if self.lags:
            return REPLICA_LAGGING
        return DISK_STALLED if self.stalled else GOOD


class Degradation:
    """The level in force, forced or found. Safe to use from several threads. ``on_moved`` is
    told of each level that comes into force."""

    def __init__(self, on_moved: Callable[[Degraded], None] = lambda _now: None) -> None:
        self._on_moved = on_moved
        self._lock = threading.Lock()
        self._forced: Degraded | None = None
        self._checks: deque[Degraded] = deque(maxlen=GOOD_CHECKS)
        self._found = GOOD
        self._lags = False
        self.follows: Callable[[], bool] = lambda: True
        """Whether the node follows another, and may so be behind."""
        self.mark: Callable[[], Degraded] = Degraded
        """What every answer is marked with for a reason outside of this node."""
        self.on_forced: Callable[[], None] = lambda: None
        """Told when a level was forced or given back; when it returns, other processes of the
        node go by it too."""

    @property
    def current(self) -> Degraded:
        """Level and reason of the node."""
        return self._forced or self._found

    @property
    def forced(self) -> bool:
        """Whether a person set the level."""
        return self._forced is not None

    @property
    def by_hand(self) -> Degraded | None:
        """The level that a person set, if one did."""
        return self._forced

    def force(self, level: DegradedLevel | None, reason: str) -> None:
        """Sets a level by hand; None gives control back to the checks."""
        with self._lock:
            before = self.current
            if level is DegradedLevel.NONE:
                self._forced = GOOD
            else:
                self._forced = None if level is None else Degraded(level, reason or "FORCED")
            self._tell(before)
        self.on_forced()

    def check(self, found: Degraded) -> None:
        """Takes the result of one check of the node (level NONE = good)."""
        with self._lock:
            before = self.current
            if found == REPLICA_LAGGING and not self.follows():
                found = GOOD  # it was promoted since that check was begun
            self._checks.append(found)
            self._lags = found == REPLICA_LAGGING
            # Of equal levels the reason that was seen last.
            self._found = max(reversed(self._checks), key=lambda check: check.level)
            self._tell(before)

    def caught_up(self) -> None:
        """The node follows no other any more: how far behind one it was counts for nothing."""
        with self._lock:
            before = self.current
            kept = [check for check in self._checks if check != REPLICA_LAGGING]
            self._checks = deque(kept, maxlen=GOOD_CHECKS)
            self._lags = False
            self._found = max(reversed(self._checks), key=lambda check: check.level, default=GOOD)
            self._tell(before)

    def of_queries(self) -> Degraded:
        """What every answer is marked with: a level set by hand, that of a replica which is
        behind just now, or ``mark``. What else the checks found is not: an answer that a damaged
        file touches, or that ran out of time, marks itself, the others are whole."""
        return self._forced or self.standing()

    def standing(self) -> Degraded:
        """The same, but for what is set by hand: how this node stands among the others."""
        return REPLICA_LAGGING if self._lags else self.mark()

    def forced_empty(self, mode: Mode, has_words: bool) -> Degraded | None:
        """The mark of an answer that must be empty at the forced level; None = search."""
        forced = self._forced
        if forced is None:
            return None
        if forced.level in (DegradedLevel.NO_MEMORY, DegradedLevel.TIMEOUT):
            return forced
        if forced.level is DegradedLevel.NO_VECTORS and mode is Mode.VECTOR and not has_words:
            return NO_QUERY_TEXT
        return None

    def _tell(self, before: Degraded) -> None:
        now = self.current
        if now != before:
            self._on_moved(now)
            log.warning(
                "degradation %d (%s) -> %d (%s)%s",
                before.level,
                before.reason,
                now.level,
                now.reason,
                ", forced" if self.forced else "",
            )
