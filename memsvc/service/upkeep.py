"""What a node does beside calls, once a second: disk, expiry, truncation, erasure, files, schedule.

A thread of its own, which may wait for the disk; whether it still lives is judged by Checkup.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from memsvc.config import Settings
from memsvc.domain.errors import StoreUnreadable
from memsvc.service import allocator, sweeper
from memsvc.service.derived import DAY_MS
from memsvc.service.schedule import Schedule

if TYPE_CHECKING:
    from memsvc.service.node import Node

log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
RECALL_FLUSH_S: Final = 5.0
GIVE_BACK_EVERY_S: Final = 20.0


class Upkeep:
    """Looks after the parts of a node. ``displaced``: whether the data directory was no longer
    there when it last looked."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.displaced = False
        self._stopping = threading.Event()
        self._schedule = Schedule(node.settings.lifecycle.compact_cron, self._now())
        self._thread = threading.Thread(target=self._run, name="memsvc-upkeep", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends, after what it is at."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def reschedule(self, settings: Settings) -> None:
        """Takes settings that were changed."""
        self._schedule = Schedule(settings.lifecycle.compact_cron, self._now())

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._node.clock() / 1_000, UTC)

    def _run(self) -> None:
        next_recalls = next_return = time.monotonic()
        returner = allocator.Returner()
        while not self._stopping.wait(EVERY_S):
            try:
                self._node.checkup.upkeep_lives()
                self.tick()
                self._node.checkup.read(sound=True)
                if time.monotonic() >= next_recalls:
                    next_recalls = time.monotonic() + RECALL_FLUSH_S
                    self.flush_recalls()
                if time.monotonic() >= next_return:
                    next_return = time.monotonic() + GIVE_BACK_EVERY_S
                    returner.tick()
            except StoreUnreadable as error:
                self._node.checkup.read(sound=False)
                log.error("upkeep: %s", error)
            except Exception:
                log.exception("upkeep failed; it is tried again in a second")

    def _gone(self) -> bool:
        """Whether the data directory is no longer there."""
        gone = not self._node.store.in_place
        if gone and not self.displaced:
            log.error("%s was moved or deleted: changes are refused", self._node.store.data_dir)
        self.displaced = gone
        return gone

    def tick(self) -> None:
        """One round of upkeep: disk, expiry, truncation, erasure, files, schedule."""
        if self._gone():
            return
        node = self._node
        node.reserve.check()
        node.store.reader_check()
        node.bootstraps.tick(3_600 * node.settings.lifecycle.purge_within_hours)
        node.cold_pages.tick()
        node.searcher.cache.drop_old()
        self.sweep()
        now, delay = node.clock(), node.purge_delay_ms()
        node.erasures.look(now, delay)
        with node.store.read() as snapshot:
            dirty = snapshot.dirty_since
        node.maintenance.builds.reclaim()
        node.maintenance.damages.glance()
        node.dropped_files.tick()
        waiting = node.erasures.due(now - delay)
        for partition in waiting:
            node.maintenance.look_at(partition)
        # While one is under way, what is dirty may be what it is about to leave out.
        may_compact = not (node.reserve.full or node.maintenance.compacting)
        if dirty and dirty <= now - delay and may_compact:
            node.maintenance.compact_soon(waiting)
        node.erasures.check_overdue(now, dirty, node.settings.lifecycle.purge_within_hours)
        if self._schedule.due(self._now()):
            node.maintenance.ask(seal_min_rows=0, merge_all=True, purge=bool(dirty))

    def sweep(self) -> None:
        """Expires, truncates and forgets what is due."""
        node = self._node
        now = node.clock()
        steps = sweeper.due_steps(
            node.store,
            now,
            expired_before=now - node.purge_delay_ms(),
            replaced_before=now - node.settings.storage.log_retention_days * DAY_MS,
            # Or it is about to be, or not yet known whose the log is.
            follows=not node.leading.appends,
        )
        for step in steps:
            more = True
            while more and not self._stopping.is_set():
                more = node.writer.run(step)
                node.checkup.upkeep_lives()

    def flush_recalls(self) -> None:
        """Puts recalls that were counted into the log."""
        if not (self._node.leading.follows or self._node.leading.appends):
            return  # about to hand over; then they go to the new primary
        for batch in self._node.recalls.batches():
            self._node.leading.take_recalls(batch)
