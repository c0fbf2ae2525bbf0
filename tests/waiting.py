"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    true: Callable[[], bool],
    seconds: float = 60.0,
    what: str | Callable[[], str] = "",
    every: float = 0.05,
) -> None:
    """Returns once something is true; fails when it does not come to be in time.

    ``what`` is told by the failure; a callable, for example a log's text, is called then.
    """
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() >= end:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {seconds} s in vain for: {told}")
        time.sleep(every)
