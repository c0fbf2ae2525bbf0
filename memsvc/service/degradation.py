"""How far the node is below its full service: by hand, or by its own checks.

A pure state machine. A bad check lowers the node at once; it comes back only after ten
good checks in a row, one a second, so that it does not flap. A level forced by hand
holds until it is given back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from memsvc.domain.recovery import GOOD_CHECKS
from memsvc.domain.types import Degraded, DegradedLevel, Mode

log = logging.getLogger(__name__)


class Degradation:
    """The level in force, forced or found."""

    def __init__(self) -> None:
        self._forced: Degraded | None = None
        self._found = Degraded()
        self._good = 0
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

    def force(self, level: DegradedLevel | None, reason: str) -> None:
        """Sets a level by hand; None gives control back to the checks."""
        before = self.current
        if level is DegradedLevel.NONE:
            self._forced = Degraded()
        else:
            self._forced = None if level is None else Degraded(level, reason or "FORCED")
        self._log(before)
        self.on_forced()

    @property
    def by_hand(self) -> Degraded | None:
        """The level that a person set, if one did."""
        return self._forced

    def check(self, found: Degraded) -> None:
        """Takes the result of one check of the node (level NONE = good)."""
        before = self.current
        if found.level > DegradedLevel.NONE:
            self._good = 0
            self._found = found
        elif self._found.level > DegradedLevel.NONE:
            self._good += 1
            if self._good >= GOOD_CHECKS:
                self._found = Degraded()
        self._log(before)

    def of_queries(self) -> Degraded:
        """What every answer is marked with. What the checks found is not: an answer that
        a damaged file touches marks itself, the others are whole."""
        return self._forced or self.mark()

    def forced_empty(self, mode: Mode, has_words: bool) -> Degraded | None:
        """The mark of an answer that must be empty at the forced level; None = search."""
        forced = self._forced
        if forced is None:
            return None
        if forced.level in (DegradedLevel.NO_MEMORY, DegradedLevel.TIMEOUT):
            return forced
        if forced.level is DegradedLevel.NO_VECTORS and mode is Mode.VECTOR and not has_words:
            return Degraded(DegradedLevel.NO_VECTORS, "NO_QUERY_TEXT")
        return None

    def _log(self, before: Degraded) -> None:
        now = self.current
        if now != before:
            log.warning(
                "degradation %d (%s) -> %d (%s)%s",
                before.level,
                before.reason,
                now.level,
                now.reason,
                ", forced" if self.forced else "",
            )
