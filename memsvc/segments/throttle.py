"""Keeping a background job to a share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from memsvc.segments.errors import BuildCancelled

_LONGEST_SLEEP: Final = 0.2


class Throttle:
    """``pause`` is called between pieces of work; it sleeps so that at most ``duty`` (above 0
    to 1) of the time is spent working, and raises BuildCancelled when told to stop."""

    def __init__(
        self,
        duty: float,
        cancelled: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rest = 1 / duty - 1
        self._cancelled = cancelled
        self._clock = clock
        self._sleep = sleep
        self._since = clock()

    def pause(self) -> None:
        """Ends a piece of work."""
        owed = (self._clock() - self._since) * self._rest
        while owed > 0 and not self._cancelled():
            # In slices, so that cancelling does not wait for a long sleep.
            piece = min(owed, _LONGEST_SLEEP)
            self._sleep(piece)
            owed -= piece
        if self._cancelled():
            raise BuildCancelled("the build was cancelled")
        self._since = self._clock()
