"""Which partitions have erased rows that their segment files may still hold, and since when.

Looked up now and then, not every second: an erasure that comes after a look is younger than
the look, so until then what was found decides which are due.
"""

from __future__ import annotations

from typing import Final

from memsvc.store.store import Store

LOOK_EVERY_MS: Final = 30_000


class Erasures:
    """The oldest erasure of each partition, as of the last look. Times are UTC ms."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._oldest: dict[int, int] = {}
        self._count = 0
        self._looked = 0

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
