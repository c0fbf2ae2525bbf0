"""The node's checks of itself, at intervals, in a thread that touches neither store nor disk:
what hangs must not hang the one who looks for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from memsvc.service.degradation import Degradation, Signs
from memsvc.service.disk_waits import STALLED_S, waits_for_disk
from memsvc.store.writer import Writer

log = logging.getLogger(__name__)


class Checkup:
    """Feeds a Degradation. ``damaged_files`` and ``lags`` are asked at each check, and must
    answer from memory; ``interval_ms`` may change while it runs."""

    def __init__(
        self,
        degradation: Degradation,
        writer: Writer,
        damaged_files: Callable[[], int],
        lags: Callable[[], bool],
        interval_ms: Callable[[], int],
    ) -> None:
        self._degradation = degradation
        self._writer = writer
        self._damaged_files = damaged_files
        self._lags = lags
        self._interval_ms = interval_ms
        self._unreadable = False
        self._upkeep_id: int | None = None
        self._upkeep_seen = time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memsvc-checks", daemon=True)

    def start(self) -> None:
        """Begins to check."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    # -- what others tell --------------------------------------------------------------

    def upkeep_lives(self) -> None:
        """A sign of life of the thread of upkeep, from within it."""
        self._upkeep_id = threading.get_native_id()
        self._upkeep_seen = time.monotonic()

    def read(self, sound: bool) -> None:
        """Whether the store could be read. It counts as unreadable until upkeep could do its
        round."""
        self._unreadable = not sound

    # -- what is known -----------------------------------------------------------------

    @property
    def upkeep_silent_s(self) -> float:
        """Seconds since the last sign of life of upkeep."""
        return time.monotonic() - self._upkeep_seen

    @property
    def stalled(self) -> bool:
        """Whether a change, or upkeep, waits for a disk that does not answer."""
        if self._writer.busy_s > STALLED_S and waits_for_disk(self._writer.native_id):
            return True
        return self.upkeep_silent_s > STALLED_S and waits_for_disk(self._upkeep_id)

    @property
    def unreadable(self) -> bool:
        """Whether the database gives errors instead of what is in it."""
        return self._unreadable

    def check(self) -> None:
        """One check, now."""
        signs = Signs(self._unreadable, self._damaged_files(), self._lags(), self.stalled)
        self._degradation.check(signs.finding())

    def _run(self) -> None:
        while not self._stopping.wait(self._interval_ms() / 1_000):
            try:
                self.check()
            except Exception:
                log.exception("a check of the node failed; the next one follows")
