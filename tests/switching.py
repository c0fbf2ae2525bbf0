"""Threads that take turns far more often than usual, so that races show."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def switching_every(seconds: float) -> Iterator[None]:
    """The interpreter goes from thread to thread after so long."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
