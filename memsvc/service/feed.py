"""What a primary gives its followers: where it stands, and the log behind a position."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from itertools import takewhile
from typing import Final

from memsvc.domain.log import Record
from memsvc.domain.replication import Standing, Verdict, judge
from memsvc.service.acks import Acks
from memsvc.service.api import Control
from memsvc.service.querying import Progress
from memsvc.service.recalls import Recalls
from memsvc.store import feed
from memsvc.store.store import Store
from memsvc.store.writer import Writer

log = logging.getLogger(__name__)

STRANGER_S: Final = 30.0
"""So long a node that was turned away is spoken of."""


class Feed:
    """The log of a node for others, and who of them has what. ``clock`` gives UTC ms."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        progress: Progress,
        acks: Acks,
        clock: Callable[[], int],
    ) -> None:
        self._store = store
        self._writer = writer
        self._progress = progress
        self.acks = acks
        self.leads = True
        """Whether this node is the primary; nobody is fed by one that is not."""
        self.clock = clock
        self._stranger: tuple[str, float] | None = None

    @property
    def stranger(self) -> str:
        """What people should know of a node that asked lately without the secret between the
        nodes; "" = nothing."""
        if self._stranger is None or time.monotonic() - self._stranger[1] > STRANGER_S:
            return ""
        return f"{self._stranger[0]} asks with another secret than replication.token_file has here"

    def refused(self, host: str) -> None:
        """A node of that address was turned away, for want of the secret."""
        known = self.stranger
        self._stranger = host, time.monotonic()
        if self.stranger != known:
            log.warning("%s: it was refused", self.stranger)

    def judge(self, follower: Standing, log_format: int) -> tuple[Verdict, str, Standing]:
        """What a follower should do, why, and where this node stands."""
        with self._store.read() as snapshot:
            mine = feed.standing(snapshot)
            same = feed.agrees(snapshot, follower)
            needed = feed.log_format(snapshot)
        if log_format < needed:
            reason = f"entries have format {needed}, the follower knows {log_format}"
            return Verdict.TOO_OLD, reason, mine
        verdict, reason = judge(mine, follower, same)
        return verdict, reason, mine

    @property
    def log_format(self) -> int:
        """The lowest format that a follower has to know."""
        with self._store.read() as snapshot:
            return feed.log_format(snapshot)

    def records(self, after: int, most_bytes: int) -> list[Record]:
        """Entries behind a position that fit ``most_bytes``; one at least when there is one.
        Raises PayloadMismatch."""
        left = most_bytes

        def fits(record: Record) -> bool:
            nonlocal left
            first = left == most_bytes
            left -= record.size
            return first or left >= 0

        with self._store.read() as snapshot:
            return list(takewhile(fits, feed.records(snapshot, after)))

    def take_recalls(self, batch: Recalls) -> None:
        """Puts recalls that a follower has counted into the log, once."""
        self._writer.run(batch)

    @property
    def position(self) -> int:
        """Position of the last entry."""
        with self._store.read() as snapshot:
            return snapshot.position

    def wait(self, after: int, seconds: float, cancelled: Callable[[], bool]) -> bool:
        """Whether there are entries behind a position, now or within the time."""
        return self._progress.wait_for(after + 1, Control(time.monotonic() + seconds, cancelled))

    @property
    def behind(self) -> int:
        """Entries that the slowest follower has not acknowledged; 0 without any."""
        applied = [following.applied for following in self.acks.followers]
        return max(0, self.position - min(applied)) if applied else 0
