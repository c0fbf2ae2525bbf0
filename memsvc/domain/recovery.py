"""When something that was bad is trusted again."""

from __future__ import annotations

from typing import Final

GOOD_CHECKS: Final = 10
"""Good checks in a row after which something is trusted again."""


class Recovery:
    """Whether something is fit: it is out at the first bad check, and in again only after ten
    good ones in a row, so that it does not flap. What was never in comes in with its first
    good check.
    """

    __slots__ = ("_good", "_was_in", "fit")

    def __init__(self) -> None:
        self.fit = False
        """Whether it is in."""
        self._was_in = False
        self._good = 0

    def check(self, good: bool) -> bool:
        """Takes the result of one check; returns whether it is fit now."""
        if not good:
            self.fit, self._good = False, 0
            return False
        self._good += 1
        if not self.fit and (not self._was_in or self._good >= GOOD_CHECKS):
            self.fit = self._was_in = True
        return self.fit
