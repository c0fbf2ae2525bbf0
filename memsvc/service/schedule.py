"""When scheduled maintenance is due."""

from __future__ import annotations

from datetime import datetime

from cronsim import CronSim


class Schedule:
    """Fires once for each time of a cron expression (UTC); never for an empty one."""

    def __init__(self, expression: str, now: datetime) -> None:
        self._times = CronSim(expression, now) if expression else None
        self._next = next(self._times) if self._times else None

    def due(self, now: datetime) -> bool:
        """Whether a time has come since the last question."""
        if self._times is None or self._next is None or now < self._next:
            return False
        while self._next is not None and self._next <= now:
            self._next = next(self._times, None)
        return True
