"""How long to wait before something that failed is tried again."""

from __future__ import annotations

from typing import Final

_MOST_DOUBLINGS: Final = 64
"""2.0 ** 1024 is no float any more: without a bound whoever fails through a night would raise."""


def backoff_s(failures: int, first_s: float, longest_s: float) -> float:
    """Seconds to wait after so many failures in a row (1, 2, ...): ``first_s`` after the first,
    twice as long after each further one, at most ``longest_s``."""
    return min(longest_s, first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
