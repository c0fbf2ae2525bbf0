"""When requests are due in an open-loop load: decided beforehand, whatever the answers do.

A closed loop asks less while the service is slow and so hides its slowness. Here a request
that starts late because others were slow counts from when it was due.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

ARRIVALS = ("poisson", "fixed")


def arrivals(rate: float, seconds: float, kind: str, seed: int) -> NDArray[np.float64]:
    """Offsets in seconds from the start, ascending, all below ``seconds``."""
    if rate <= 0 or seconds <= 0:
        return np.empty(0)
    if kind == "fixed":
        return np.arange(int(np.ceil(rate * seconds - 1e-9))) / rate
    if kind != "poisson":
        raise ValueError(f"arrivals are {' or '.join(ARRIVALS)}, not {kind!r}")
    rng = np.random.default_rng(seed)
    found = np.empty(0)
    last = 0.0
    while last < seconds:
        gaps = rng.exponential(1 / rate, int(rate * seconds) + 16)
        found = np.concatenate((found, last + np.cumsum(gaps)))
        last = float(found[-1])
    return found[found < seconds]


def keep_to(
    offsets: NDArray[np.float64],
    start: float,
    send: Callable[[int, float], None],
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Calls ``send(number, due)`` at each due time (``clock`` seconds), never before it."""
    for number, offset in enumerate(offsets.tolist()):
        due = start + offset
        while (left := due - clock()) > 0:
            sleep(left)
        send(number, due)
