"""Whether a node takes changes: it leads, is about to hand over, or follows another."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from memsvc.domain.errors import FailedPrecondition, Unavailable
from memsvc.domain.replication import MAX_SKEW_MS, Standing
from memsvc.domain.types import Degraded
from memsvc.service.degradation import STALE
from memsvc.service.feed import Feed
from memsvc.service.recalls import Recalls
from memsvc.store import feed
from memsvc.store.store import Store
from memsvc.store.writer import Writer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Primary:
    """What a replica knows of its primary: where clients reach it, how far behind it this
    node is, what is wrong ("" = nothing), and how far this clock is ahead of the primary's."""

    address: str = ""
    lag_positions: int = 0
    lag_ms: int = 0
    trouble: str = ""
    skew_ms: int = 0


class Leading:
    """The part of a node that may change while it serves.

    The store itself refuses to append where the node does not lead, whatever asks for it;
    ``guard`` tells callers sooner, and where to go.
    """

    def __init__(self, store: Store, writer: Writer, own_feed: Feed) -> None:
        self._store = store
        self._writer = writer
        self._feed = own_feed
        self._lock = threading.Lock()
        self._handing_over = False
        own_feed.leads = not store.follower
        self.primary: Callable[[], Primary] = Primary
        """On a replica: what is known of the one it follows."""
        self.on_changed: list[Callable[[], None]] = []
        """Told when the node has begun to lead, or to follow."""
        self.warning = ""
        """What people should know about the group; "" = nothing."""
        self.advice = ""
        """What people should do where the group has no primary; "" = nothing."""
        self.send_recalls: Callable[[Recalls], object] | None = None
        """On a replica: takes recalls that were counted here to the primary."""

    @property
    def follows(self) -> bool:
        """Whether the entries of the log come from another node."""
        return not self._feed.leads

    @property
    def appends(self) -> bool:
        """Whether this node may put entries into the log now."""
        return not (self.follows or self._handing_over)

    @property
    def level(self) -> bool:
        """Whether this node, a replica, has heard its primary, has all it has, and has its time."""
        primary = self.primary()
        heard = self.follows and bool(primary.address) and not primary.trouble
        return heard and not (self.skewed or primary.lag_positions or primary.lag_ms)

    @property
    def troubles(self) -> list[str]:
        """What people should know about it."""
        own = clock = ""
        if self.follows:
            primary = self.primary()
            own = primary.trouble
            if self.skewed:
                seconds, side = abs(primary.skew_ms) / 1_000, "ahead of"
                if primary.skew_ms < 0:
                    side = "behind"
                clock = (
                    f"the clock is {seconds:.1f} s {side} the primary's: what has expired or is "
                    "recent would be told wrongly. Set both by NTP"
                )
        elif not self._feed.acks.lease:
            own = "changes are refused: fewer replicas are heard of than replication.min_acks"
        found = (self.warning, own, clock, self._feed.stranger, self.advice)
        return [text for text in found if text]

    @property
    def skewed(self) -> bool:
        """Whether this clock and the primary's differ by more than MAX_SKEW_MS. Which of them is
        wrong nobody can tell; the primary's counts."""
        return self.follows and abs(self.primary().skew_ms) > MAX_SKEW_MS

    def facts(self, position: int) -> dict[str, object]:
        """For people: whom it follows, or who follows it; ``position`` is where its log ends."""
        if self.follows:
            primary = self.primary()
            return {
                "leads": False,
                "primary": primary.address,
                "lag_positions": primary.lag_positions,
                "lag_ms": primary.lag_ms,
                "clock_ahead_ms": primary.skew_ms,
            }
        acks = self._feed.acks
        return {
            "leads": True,
            "confirmed_by": acks.settings.wanted,
            "replicas": [
                {
                    "node_id": follower.node_id,
                    "listen": follower.listen,
                    "position": follower.applied,
                    "lag_positions": max(0, position - follower.applied),
                    "silent_ms": acks.silent_ms(follower),
                }
                for follower in acks.followers
            ],
        }

    def mark(self) -> Degraded:
        """What answers are marked with: they are stale where another may be primary by now."""
        if self.follows or self._feed.acks.lease:
            return Degraded()
        return STALE

    def guard(self) -> None:
        """Raises what a caller is told who wants to change something, where that is not to be."""
        if self.follows:
            address = self.primary().address
            raise FailedPrecondition(
                "this node is a replica: it takes no changes",
                reason="NOT_PRIMARY",
                hint=f"send it to the primary{f' at {address}' if address else ''}",
                metadata={"primary": address} if address else {},
            )
        if self._handing_over:
            raise Unavailable(
                "another node is about to be primary",
                reason="HANDING_OVER",
                hint="try again; if it is refused then, ask the node that the refusal names",
                retry_after_ms=100,
            )
        self._feed.acks.guard()

    def take_recalls(self, batch: Recalls) -> None:
        """Puts recalls into the log, wherever that is."""
        if self.send_recalls is not None:
            self.send_recalls(batch)
        else:
            self._writer.run(batch)

    # -- changing ----------------------------------------------------------------------

    def freeze(self) -> Standing:
        """Appends nothing more, and tells where the log ends. Readers and followers go on. Where
        the writer cannot say so, what it was before is as it was."""
        with self._lock:
            before = self._handing_over, self._store.follower
            self._handing_over = self._store.follower = True
            try:
                # A transaction that had begun may still append; this one comes after it.
                self._writer.run(lambda _txn: None)
                return self._standing()
            except BaseException:
                self._handing_over, self._store.follower = before
                raise

    def resume(self) -> None:
        """Leads on after ``freeze``."""
        with self._lock:
            if not self.follows:
                self._store.follower = False
            self._handing_over = False

    def follow(self) -> None:
        """Leads no longer, after ``freeze``: its followers are sent away."""
        with self._lock:
            self._feed.leads = False
            self._handing_over = False
        self._changed()

    def lead(self, epoch: int) -> Standing:
        """Begins an epoch and takes changes. The caller has seen to it that nobody else does."""
        with self._lock:
            self._writer.run(lambda txn: txn.begin_epoch(epoch, "promoted"))
            self._store.follower = self._handing_over = False
            self.primary, self.send_recalls = Primary, None
            self._feed.leads = True
            standing = self._standing()
        self._changed()
        return standing

    def _changed(self) -> None:
        for told in self.on_changed:
            try:
                told()
            except Exception:
                # The role has changed: whoever goes on with it must not be kept from that.
                log.exception("a change of role was not taken in everywhere")

    def _standing(self) -> Standing:
        with self._store.read() as snapshot:
            return feed.standing(snapshot)
