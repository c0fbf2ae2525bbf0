"""What a reader knows of its node from the store alone, or asks it for."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from memsvc.domain.errors import StoreUnreadable, Unavailable
from memsvc.domain.log import Generation
from memsvc.service.api import Control
from memsvc.service.generations import Generations
from memsvc.service.querying import Progress
from memsvc.store.store import Store

_LOOK_S: Final = 0.01


class FollowingGenerations(Generations):
    """The embedding generations as they stand in the store now: another process adds them."""

    @property
    def serving(self) -> tuple[Generation, ...]:
        """See Generations."""
        self.refresh()
        return super().serving

    def named(self, embedding: str) -> Generation:
        """See Generations. While the store cannot be read, as they stood last."""
        with suppress(StoreUnreadable):
            self.refresh()
        return super().named(embedding)


class FollowingProgress(Progress):
    """Waits for a position that another process commits. ``settle`` has that process commit
    what it has acknowledged, and says whether it did within so many seconds; it is not asked when
    the position is there already."""

    def __init__(self, store: Store, settle: Callable[[float], bool]) -> None:
        super().__init__(0)
        self._store = store
        self._settle = settle

    @property
    def position(self) -> int:
        """See Progress."""
        with self._store.read() as snapshot:
            return snapshot.position

    def wait_for(self, position: int, control: Control) -> bool:
        """See Progress. At least one look, however little time is left. Raises Unavailable where
        the other process does not say whether there is such a position."""
        if self._is_there(position):
            return True
        settled = self._settle(control.remaining())
        while not self._is_there(position):
            if control.remaining() <= 0 or control.cancelled():
                if not settled:
                    raise _not_told()
                return False
            time.sleep(_LOOK_S)
        return True

    def _is_there(self, position: int) -> bool:
        with self._store.read() as snapshot:
            return snapshot.position >= position


def _not_told() -> Unavailable:
    return Unavailable(
        "the process that writes does not answer: whether it has the position is not known",
        reason="WRITER_UNAVAILABLE",
        hint="ask again; the node is restarted when it goes on like that",
        retry_after_ms=1_000,
    )
