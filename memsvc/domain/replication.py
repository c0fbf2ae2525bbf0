"""How two logs stand to each other, and how much of one may be on its way to another."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final


class Verdict(IntEnum):
    """What a follower should do; numbers as in the proto."""

    FOLLOW = 1
    FORKED = 2
    AHEAD = 3
    TOO_OLD = 4
    NOT_PRIMARY = 5


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a log stands: ``store_id`` 32 hex digits ("" = no store yet), epoch, position and
    running digest (16 bytes) of its last entry."""

    store_id: str = ""
    epoch: int = 0
    position: int = 0
    digest: bytes = b""


def judge(primary: Standing, follower: Standing, same: bool) -> tuple[Verdict, str]:
    """Whether a follower's log is a beginning of the primary's, and why not.

    ``same`` tells whether the primary's digest at the follower's position (where it has one) is
    the follower's: the digest covers everything before, so equal digests mean equal logs.
    """
    if not follower.store_id:
        return Verdict.FOLLOW, "begins"
    if follower.store_id != primary.store_id:
        return (
            Verdict.FORKED,
            f"the follower holds store {follower.store_id[:8]}, this is {primary.store_id[:8]}",
        )
    if follower.position == 0:
        return Verdict.FOLLOW, "begins"
    if follower.epoch > primary.epoch:
        return (
            Verdict.AHEAD,
            f"the follower is in epoch {follower.epoch}, this node in epoch {primary.epoch}",
        )
    if follower.position > primary.position:
        if follower.epoch == primary.epoch:
            return (
                Verdict.AHEAD,
                f"the follower is at {follower.position}, this node at {primary.position}",
            )
        return (
            Verdict.FORKED,
            f"what the follower has behind {primary.position} is of the abandoned epoch "
            f"{follower.epoch}",
        )
    if not same:
        return (
            Verdict.FORKED,
            f"up to position {follower.position} the logs differ",
        )
    return Verdict.FOLLOW, "goes on"


@dataclass(slots=True)
class Window:
    """Bytes in flight to one follower, at most about ``most``: what was sent counts until it
    is acknowledged."""

    most: int
    in_flight: int = 0
    _sent: deque[tuple[int, int]] = field(default_factory=deque)

    @property
    def open(self) -> bool:
        """Whether more may be sent. One message always may, however large."""
        return self.in_flight < self.most

    def sent(self, position: int, size: int) -> None:
        """Entries up to a position went out, of so many bytes."""
        self._sent.append((position, size))
        self.in_flight += size

    def acknowledged(self, position: int) -> None:
        """Everything up to a position has been applied."""
        while self._sent and self._sent[0][0] <= position:
            self.in_flight -= self._sent.popleft()[1]


_MOST_TOLD = 256


@dataclass(slots=True)
class Lag:
    """How far a follower is behind, by what its primary says. Times are UTC ms of the
    follower's own clock. ``level_at`` is the last time at which the primary had nothing more
    than the follower has now; it begins as the time of the last entry that is there."""

    applied: int
    level_at: int
    primary: int = 0
    heard_at: int = 0
    _ahead: deque[tuple[int, int]] = field(default_factory=deque)
    """Positions of the primary that were told and not yet applied, and when. While much is
    written the newest of them is never applied, and older ones tell how far behind it is."""
    _apart_ms: int = 0
    """Least time between two of them."""

    def heard(self, primary: int, now_ms: int) -> None:
        """The primary told its position."""
        self.primary, self.heard_at = primary, now_ms
        if not self._ahead or now_ms - self._ahead[-1][1] >= self._apart_ms:
            self._ahead.append((primary, now_ms))
        if len(self._ahead) > _MOST_TOLD:
            # The further behind, the rougher the figure may be.
            self._ahead = deque(list(self._ahead)[::2])
            self._apart_ms = max(1, 2 * self._apart_ms)
        self._look()

    def reached(self, applied: int) -> None:
        """Entries up to a position were applied."""
        self.applied = max(applied, self.applied)
        self._look()

    def _look(self) -> None:
        while self._ahead and self._ahead[0][0] <= self.applied:
            self.level_at = max(self.level_at, self._ahead.popleft()[1])
        if self.heard_at and self.applied >= self.primary:
            self.level_at, self._apart_ms = max(self.level_at, self.heard_at), 0
            self._ahead.clear()

    @property
    def positions(self) -> int:
        """Entries that are missing, as far as is known."""
        return max(0, self.primary - self.applied)

    def milliseconds(self, now_ms: int, silent_ms: int) -> int:
        """For how long the node has not been level with its primary; 0 when it is, and the
        primary was heard of within ``silent_ms``."""
        if self.heard_at and self.applied >= self.primary and now_ms - self.heard_at <= silent_ms:
            return 0
        # The last entry may bear a time that this clock has not reached.
        return max(1, now_ms - self.level_at)


MAX_SKEW_MS: Final = 2_000
"""Two clocks may differ by so much before something is done about it."""
_SAMPLES: Final = 50
_ENOUGH: Final = 10


@dataclass(slots=True)
class Skew:
    """By how much the clock of a follower differs from its primary's, from the times that come
    with signs of life. What is late on its way only seems to say that the own clock is ahead, so
    the quickest of the last fifty counts (ten seconds of them); fewer than ten say nothing."""

    _differences: deque[int] = field(default_factory=lambda: deque(maxlen=_SAMPLES))

    def heard(self, theirs: int, mine: int) -> None:
        """A message with their time arrived, not behind others; UTC ms."""
        self._differences.append(mine - theirs)

    def forget(self) -> None:
        """The connection ended: what is heard next may have waited."""
        self._differences.clear()

    @property
    def milliseconds(self) -> int:
        """How far the own clock is ahead, negative = behind."""
        found = tuple(self._differences)  # once: another thread may forget them
        return min(found) if len(found) >= _ENOUGH else 0
