"""Which partitions have erased rows that their segment files may still hold, and since when.

Looked up now and then, not every second: an erasure that comes after a look is younger than
the look, so until then what was found decides which are due.
"""

from __future__ import annotations

import logging
from typing import Final

from memsvc.service.derived import HOUR_MS
from memsvc.store.store import Store

log = logging.getLogger(__name__)

LOOK_EVERY_MS: Final = 30_000


class Erasures:
    """The oldest erasure of each partition, as of the last look. Times are UTC ms."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._oldest: dict[int, int] = {}
        self._count = 0
        self._looked = 0
        self.overdue = ""
        """What people should know of erasures that are overdue; "" = none is."""

    def look(self, now: int, delay_ms: int) -> None:
        """Looks again when it is time for it, or when some have been struck off."""
        with self._store.read() as snapshot:
            count = snapshot.count("erasures")
        fell, self._count = count < self._count, count
        if count and not fell and 0 <= now - self._looked < min(LOOK_EVERY_MS, delay_ms):
            return
        self._looked = now
        self._oldest = self._find() if count else {}

    def _find(self) -> dict[int, int]:
        found: dict[int, int] = {}
        after = 0
        while True:
            # A snapshot for each: a long list must not hold old pages.
            with self._store.read() as snapshot:
                one = snapshot.next_erasure(after)
            if one is None:
                return found
            after = one[0]
            found[after] = one[1]

    def due(self, until: int) -> list[int]:
        """Partitions with an erasure of that time or older, oldest first."""
        due = [(time, number) for number, time in self._oldest.items() if time <= until]
        return [number for _, number in sorted(due)]

    @property
    def oldest(self) -> int:
        """Time of the oldest, 0 = none."""
        return min(self._oldest.values(), default=0)

    def check_overdue(self, now: int, dirty: int, hours: float) -> None:
        """Notices erased memories that are still in files after the ``hours`` that are promised.
        ``dirty`` is the time of the oldest that the database file holds, 0 = none."""
        oldest = min((at for at in (self.oldest, dirty) if at), default=now)
        where = "segment files" if oldest == self.oldest else "the database file"
        before, self.overdue = self.overdue, ""
        if now - oldest > hours * HOUR_MS:
            self.overdue = (
                f"erasure is overdue: {where} hold what was erased {(now - oldest) / HOUR_MS:.1f} "
                f"hours ago, lifecycle.purge_within_hours is {hours:g}"
            )
        if self.overdue and not before:
            log.error("%s; the log tells why builds or compaction failed", self.overdue)
        elif before and not self.overdue:
            log.warning("no erasure is overdue any more")
