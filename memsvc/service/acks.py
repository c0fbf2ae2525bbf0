"""Replicas that confirm writes: which there are, what they have, when they were last heard of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from memsvc.domain.errors import DeadlineExceeded, Unavailable
from memsvc.service.api import Control


@dataclass(slots=True)
class Following:
    """A follower whose stream is open: its name, the position that is on its disk, its
    replication.listen where that is one of the group ("" elsewhere), and the monotonic time of
    its last acknowledgement."""

    node_id: str
    applied: int
    listen: str = ""
    heard: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True)
class AckSettings:
    """``wanted`` replicas confirm each write within ``timeout_s``, and were heard of within
    ``lease_s``. Only ``nodes`` count."""

    wanted: int = 0
    nodes: tuple[str, ...] = ()
    timeout_s: float = 2.0
    lease_s: float = 3.0


class Acks:
    """The followers of a primary. ``clock`` is monotonic, in seconds."""

    def __init__(self, settings: AckSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._clock = clock
        self._followers: list[Following] = []
        self._changed = threading.Condition()

    @property
    def followers(self) -> list[Following]:
        """Those whose streams are open."""
        with self._changed:
            return list(self._followers)

    def silent_ms(self, following: Following) -> int:
        """Time since a follower was heard of."""
        return int(1_000 * (self._clock() - following.heard))

    def enter(self, node_id: str, applied: int, listen: str) -> Following:
        """A stream was opened."""
        member = listen if listen in self.settings.nodes else ""
        following = Following(node_id, applied, member, self._clock())
        with self._changed:
            self._followers.append(following)
            self._changed.notify_all()
        return following

    def leave(self, following: Following) -> None:
        """It was closed."""
        with self._changed:
            self._followers.remove(following)

    def acknowledged(self, following: Following, position: int) -> None:
        """A follower has everything up to a position on its disk."""
        with self._changed:
            following.applied = max(following.applied, position)
            following.heard = self._clock()
            self._changed.notify_all()

    def confirm(self, position: int, control: Control) -> None:
        """Returns when as many replicas as wanted have a position. Raises Unavailable or
        DeadlineExceeded when they do not in time."""
        if not self.settings.wanted:
            return
        until = self._clock() + self.settings.timeout_s
        with self._changed:
            while self._having(position) < self.settings.wanted:
                left = min(control.remaining(), until - self._clock())
                if left <= 0 or control.cancelled():
                    raise self._unconfirmed(control)
                self._changed.wait(min(left, 0.1))

    def _unconfirmed(self, control: Control) -> DeadlineExceeded | Unavailable:
        text = (
            f"stored here, but not confirmed by {self.settings.wanted} replicas: it may be lost "
            "with this node"
        )
        hint = "send it again with the same request_id: it is applied once"
        if control.remaining() <= 0:
            return DeadlineExceeded(text, reason="NOT_REPLICATED", hint=hint)
        return Unavailable(text, reason="NOT_REPLICATED", hint=hint, retry_after_ms=500)

    def _having(self, position: int) -> int:
        return len({f.listen for f in self._followers if f.listen and f.applied >= position})

    @property
    def lease(self) -> bool:
        """Whether as many replicas as wanted were heard of lately: else another node may be
        primary by now."""
        if not self.settings.wanted:
            return True
        since = self._clock() - self.settings.lease_s
        with self._changed:
            heard = {f.listen for f in self._followers if f.listen and f.heard >= since}
        return len(heard) >= self.settings.wanted

    def guard(self) -> None:
        """Raises Unavailable when changes must not be taken."""
        if not self.lease:
            raise Unavailable(
                f"fewer than {self.settings.wanted} replicas are heard of",
                reason="NOT_ENOUGH_REPLICAS",
                hint="replication.min_acks wants them to have each write; see Health of the nodes",
                retry_after_ms=1_000,
            )
