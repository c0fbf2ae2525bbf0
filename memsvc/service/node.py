"""A node: store, writer, views, maintenance and the calls, put together.

The one place that reads the clock and draws randomness; everything below is given them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from memsvc.config import Settings
from memsvc.domain.errors import FailedPrecondition, StoreUnreadable, Unavailable
from memsvc.domain.log import Record
from memsvc.domain.replication import Standing
from memsvc.domain.types import (
    DegradedLevel,
    HealthAnswer,
)
from memsvc.segments.costs import measure_costs
from memsvc.service import allocator, sweeper
from memsvc.service.acks import Acks
from memsvc.service.api import Control
from memsvc.service.bootstraps import Bootstraps
from memsvc.service.builder import Builder
from memsvc.service.checkup import Checkup
from memsvc.service.degradation import Degradation
from memsvc.service.derived import (
    DAY_MS,
    HOUR_MS,
    ack_settings,
    call_settings,
    index_settings,
    indexed,
    own_log_wait_s,
    rebuild_settings,
    search_settings,
    tail_budget,
)
from memsvc.service.dropped_files import DroppedFiles
from memsvc.service.erasures import Erasures
from memsvc.service.feed import Feed
from memsvc.service.forced_level import keep_level, kept_level
from memsvc.service.generation_admin import GenerationAdmin
from memsvc.service.generations import Generations, start_generation
from memsvc.service.leading import Leading
from memsvc.service.maintenance import Maintenance
from memsvc.service.memory import MemoryService
from memsvc.service.metrics import Metrics
from memsvc.service.querying import Progress
from memsvc.service.rebuild import Rebuilds
from memsvc.service.recalls import RecallBuffer
from memsvc.service.reserve import DiskReserve
from memsvc.service.schedule import Schedule
from memsvc.service.search.cold_pages import ColdPages
from memsvc.service.search.costs import CostBook
from memsvc.service.search.registry import Views
from memsvc.service.search.searcher import Searcher
from memsvc.service.segment_builds import with_reloaded
from memsvc.service.snapshots.keeping import Snapshots, snapshot_settings
from memsvc.service.startup import check_generation, check_index, warn_of_generation
from memsvc.service.telling import Telling
from memsvc.store import feed
from memsvc.store.store import Store
from memsvc.store.write_txn import WriteTxn
from memsvc.store.writer import Writer

log = logging.getLogger(__name__)

RECALL_FLUSH_S = 5.0
GIVE_BACK_EVERY_S = 20.0
SILENT_S = 60.0
"""Longest time between two signs of life of upkeep; a slow disk takes seconds."""
HELD_UP_S = 600.0
"""The same while the database file is compacted."""


def system_clock() -> int:
    """UTC milliseconds."""
    return time.time_ns() // 1_000_000


class Node:
    """An open node. ``clock`` gives UTC ms and ``random(n)`` n bytes; tests give their own,
    and ``builders`` when segments are to be built without a process. ``follows``: the log is
    another node's, as long as ``leading`` is not told otherwise; ``asks_first``: nothing is
    appended before it is told to resume.

    Raises FailedPrecondition when the settings do not fit the store or the directory is in
    use. ``memory`` has the calls, ``health()`` tells how the node is.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], int] = system_clock,
        random: Callable[[int], bytes] = os.urandom,
        metrics: Metrics | None = None,
        upkeep: bool = True,
        builders: Callable[[Path], Builder] = Builder,
        follows: bool = False,
        asks_first: bool = False,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.metrics = metrics or Metrics()
        check_index(settings)
        self._stopping = threading.Event()
        self._stopped = False
        self.displaced = False
        """Whether the data directory was no longer there when upkeep last looked."""
        self.certificate_until = 0
        """UTC ms of the end of the certificate that clients are shown; 0 = there is none."""
        self._ready = True
        self._generations_changed = False
        with ExitStack() as undo:
            self._open(settings, random, builders, follows, asks_first, undo)
            self.maintenance.start()
            self.rebuilds.begin()
            undo.pop_all()
        self._ticker = threading.Thread(target=self._tick_loop, name="memsvc-upkeep", daemon=True)
        if upkeep:
            self._ticker.start()
            self.snapshots.start()
            self.checkup.start()

    def _open(
        self,
        settings: Settings,
        random: Callable[[int], bytes],
        builders: Callable[[Path], Builder],
        follows: bool,
        asks_first: bool,
        undo: ExitStack,
    ) -> None:
        """``undo`` closes again what was opened, when the rest of the start fails."""
        self.store = Store(settings.storage.data_dir, new_id=lambda: random(16), follower=follows)
        undo.callback(self.store.close)
        with self.store.read() as snapshot:
            position = snapshot.position
        self.progress = Progress(position)
        self.reserve = DiskReserve(settings.storage.data_dir, settings.storage.reserve_bytes)
        self.reserve.check()
        self.writer = Writer(
            self.store,
            self.clock,
            queue_max=settings.storage.write_queue_max,
            # What a replica has not on disk it would have to ask for again.
            lazy=settings.storage.wal_sync == "every_1000ms" and not follows,
            on_commit=self._committed,
            on_full=self.reserve.give_up,
        )
        undo.callback(self.writer.stop)
        with self.store.read() as snapshot:
            known = snapshot.generations()
        if not known and follows:
            raise FailedPrecondition(
                "the store is empty: a replica begins with the log of its primary",
                reason="NOT_BOOTSTRAPPED",
            )
        if not known:
            entry = start_generation(settings.index.embedding, settings.index.dimension)
            self.writer.run(lambda txn: txn.append(entry))
        self.generations = Generations(self.store)
        check_generation(settings, self.generations.serving)
        self.degradation = Degradation(self.metrics.moved)
        forced = kept_level(settings.storage.data_dir)
        if forced is not None:
            log.warning("level %d is forced since before the start", forced.level)
            self.degradation.force(forced.level, forced.reason)
        self.recalls = RecallBuffer()
        self.views = Views(self.store, tail_budget(settings), indexed(settings))
        self.maintenance = Maintenance(
            self.store,
            self.writer,
            self.views,
            index_settings(settings),
            clock=self.clock,
            purge_delay_ms=self._purge_delay_ms,
            on_built=self.metrics.built,
            builders=builders,
        )
        undo.callback(self.maintenance.stop)
        self.rebuilds = Rebuilds(
            self.store,
            self.maintenance.builds,
            builders(settings.storage.data_dir),
            rebuild_settings(settings),
            clock=self.clock,
            purge_delay_ms=self._purge_delay_ms,
            on_built=self.metrics.built,
        )
        undo.callback(self.rebuilds.stop)
        self.snapshots = Snapshots(
            self.store,
            snapshot_settings(settings, follows),
            clock=self.clock,
            builders=builders,
            on_taken=self.metrics.snapshot,
        )
        self.erasures = Erasures(self.store)
        self.views.on_damage = self.maintenance.on_damage
        self.costs = measure_costs()
        self.searcher = Searcher(self.views, search_settings(settings), CostBook(self.costs))
        self.searcher.on_searched = self.metrics.searched
        self.searcher.on_cache = self.metrics.cached
        self.cold_pages = ColdPages(self.views, settings.storage.cold_budget_bytes)
        self.memory = MemoryService(
            self.store,
            self.writer,
            self.searcher,
            self.generations,
            self.degradation,
            self.recalls,
            self.progress,
            call_settings(settings),
            clock=self.clock,
            random=random,
            guard_writes=self.reserve.guard,
            guard_changes=self._guard_changes,
            confirm=self.confirm,
            own_log_wait_s=lambda: None if self.leading.follows else own_log_wait_s(settings),
        )
        self._dropped_files = DroppedFiles(
            self.store, self.writer, self.views, self.maintenance.builds
        )
        self.generation_admin = GenerationAdmin(
            self.store,
            self.writer,
            self.generations,
            self.maintenance.builds,
            self.rebuilds,
            self._dropped_files,
            settings=lambda: self.settings,
            clock=self.clock,
            guard=self._guard_changes,
            changing=self._changing_generations,
            confirm=lambda: self.confirm(Control()),
        )
        acks = Acks(ack_settings(settings))
        self.feed = Feed(self.store, self.writer, self.progress, acks, self.clock)
        self.leading = Leading(self.store, self.writer, self.feed)
        if asks_first:
            self.leading.freeze()
        self.leading.on_changed.append(self._role_changed)
        self.degradation.follows = lambda: self.leading.follows
        self.degradation.mark = self.leading.mark
        self.checkup = Checkup(
            self.degradation,
            self.writer,
            damaged_files=lambda: self.maintenance.damaged_files,
            lags=self._lags,
            interval_ms=lambda: self.settings.node.check_interval_ms,
        )
        self.memory.on_unreadable = lambda: self.checkup.read(sound=False)
        self.bootstraps = Bootstraps(self.store)
        self._schedule = Schedule(settings.lifecycle.compact_cron, self._now())
        self.telling = Telling(self)
        self.metrics.bind(self.telling.readings)

    # -- life --------------------------------------------------------------------------

    def apply(self, settings: Settings) -> None:
        """Takes the settings that may change while running."""
        self.settings = settings
        warn_of_generation(settings, self.generations.serving)
        self.memory.settings = call_settings(settings)
        self.searcher.settings = search_settings(settings)
        self.views.budget = tail_budget(settings)
        self.cold_pages.budget = settings.storage.cold_budget_bytes
        self.writer.queue_max = settings.storage.write_queue_max
        builds, fresh = self.maintenance.builds, index_settings(settings)
        builds.settings, before = with_reloaded(builds.settings, fresh), builds.settings
        self.rebuilds.settings = rebuild_settings(settings)
        if builds.settings.graph != before.graph:
            self.rebuilds.settings_changed()
        self.snapshots.apply(snapshot_settings(settings, self.leading.follows))
        self._schedule = Schedule(settings.lifecycle.compact_cron, self._now())

    def stop(self) -> None:
        """Finishes queued writes, flushes recalls, ends builders, closes the store."""
        if self._stopped:
            return
        self._stopped = True
        self._ready = False
        self._stopping.set()
        self.checkup.stop()
        if self._ticker.is_alive():
            self._ticker.join()
        self.rebuilds.stop()
        self.snapshots.stop()
        self.bootstraps.stop()
        self.maintenance.stop()
        try:
            self._flush_recalls()
        except Exception:
            log.exception("recalls were not flushed")
        self.writer.stop()
        self.searcher.close()
        self.views.clear()
        self.store.close()

    def _role_changed(self) -> None:
        if not self.leading.follows:
            self.degradation.caught_up()
        self.snapshots.apply(snapshot_settings(self.settings, self.leading.follows))

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self.clock() / 1_000, UTC)

    def _purge_delay_ms(self) -> int:
        # Half of what is promised: the rest is for rewriting segments and database.
        return int(self.settings.lifecycle.purge_within_hours * HOUR_MS / 2)

    def _committed(self, position: int, seconds: float, items: int, tails: dict[int, int]) -> None:
        if self._generations_changed:
            # Before anybody is told of the position: what it may name is known by then.
            self._generations_changed = False
            self.generations.refresh()
        self.progress.reached(position)
        if items:
            self.metrics.committed(seconds, items)
        for partition, rows in tails.items():
            self.maintenance.grown(partition, rows)

    def _changing_generations(self) -> None:
        """Told inside a transaction that changes which embeddings there are."""
        self._generations_changed = True

    # -- upkeep ------------------------------------------------------------------------

    def _tick_loop(self) -> None:
        next_recalls = next_return = time.monotonic()
        returner = allocator.Returner()
        while not self._stopping.wait(1.0):
            try:
                self.checkup.upkeep_lives()
                self.tick()
                self.checkup.read(sound=True)
                if time.monotonic() >= next_recalls:
                    next_recalls = time.monotonic() + RECALL_FLUSH_S
                    self._flush_recalls()
                if time.monotonic() >= next_return:
                    next_return = time.monotonic() + GIVE_BACK_EVERY_S
                    returner.tick()
            except StoreUnreadable as error:
                self.checkup.read(sound=False)
                log.error("upkeep: %s", error)
            except Exception:
                log.exception("upkeep failed; it is tried again in a second")

    def _gone(self) -> bool:
        """Whether the data directory is no longer there."""
        gone = not self.store.in_place
        if gone and not self.displaced:
            log.error("%s was moved or deleted: changes are refused", self.store.data_dir)
        self.displaced = gone
        return gone

    def _guard_changes(self) -> None:
        self.leading.guard()
        if self.checkup.stalled:
            raise Unavailable(
                "the disk of the data directory does not answer; nothing was applied",
                reason="DISK_STALLED",
                hint="reads go on from memory; changes are taken again once the disk answers",
                retry_after_ms=1_000,
            )
        if self.displaced:
            raise Unavailable(
                "the data directory is no longer there",
                reason="DATA_DIR_GONE",
                hint="it was moved or deleted under the running node: put it back, or start anew",
                retry_after_ms=5_000,
            )

    def confirm(self, control: Control) -> None:
        """Waits until the replicas that are to have each write have what is committed now."""
        self.feed.acks.confirm(self.progress.position, control)

    def tick(self) -> None:
        """One round of upkeep: disk, expiry, truncation, erasure, files, schedule."""
        if self._gone():
            return
        self.reserve.check()
        self.store.reader_check()
        self.bootstraps.tick(3_600 * self.settings.lifecycle.purge_within_hours)
        self.cold_pages.tick()
        self.searcher.cache.drop_old()
        self.sweep()
        now, delay = self.clock(), self._purge_delay_ms()
        self.erasures.look(now, delay)
        with self.store.read() as snapshot:
            dirty = snapshot.dirty_since
        self.maintenance.builds.reclaim()
        self.maintenance.damages.glance()
        self._dropped_files.tick()
        waiting = self.erasures.due(now - delay)
        for partition in waiting:
            self.maintenance.look_at(partition)
        # While one is under way, what is dirty may be what it is about to leave out.
        may_compact = not (self.reserve.full or self.maintenance.compacting)
        if dirty and dirty <= now - delay and may_compact:
            self.maintenance.compact_soon(waiting)
        self.erasures.check_overdue(now, dirty, self.settings.lifecycle.purge_within_hours)
        if self._schedule.due(self._now()):
            self.maintenance.ask(seal_min_rows=0, merge_all=True, purge=bool(dirty))

    def sweep(self) -> None:
        """Expires, truncates and forgets what is due."""
        now = self.clock()
        steps = sweeper.due_steps(
            self.store,
            now,
            expired_before=now - self._purge_delay_ms(),
            replaced_before=now - self.settings.storage.log_retention_days * DAY_MS,
            # Or it is about to be, or not yet known whose the log is.
            follows=not self.leading.appends,
        )
        for step in steps:
            more = True
            while more and not self._stopping.is_set():
                more = self.writer.run(step)
                self.checkup.upkeep_lives()

    # -- following another node ---------------------------------------------------------

    def standing(self) -> Standing:
        """Where the log stands."""
        with self.store.read() as snapshot:
            return feed.standing(snapshot)

    def follow(self, records: list[Record]) -> None:
        """Applies entries of the primary, in one transaction; on disk when it returns. Raises
        Diverged."""

        def apply(txn: WriteTxn) -> None:
            for record in records:
                txn.follow(record.entry, record.digest)
                if record.entry.generation is not None:
                    self._changing_generations()

        self.writer.run(apply)

    def _flush_recalls(self) -> None:
        if not (self.leading.follows or self.leading.appends):
            return  # about to hand over; then they go to the new primary
        for batch in self.recalls.batches():
            self.leading.take_recalls(batch)

    # -- telling -----------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the node takes calls."""
        return self._ready

    @property
    def alive(self) -> bool:
        """Whether the threads that everything depends on do their work. Waits for nothing:
        not even while the database file is about to be replaced, which a long read can
        hold up, together with every other call. A node whose disk has stalled is alive: a
        restart would only lose what it has in memory."""
        if not self.writer.alive or not self._ticker.is_alive():
            return False
        most = HELD_UP_S if self.maintenance.compacting else SILENT_S
        return self.checkup.upkeep_silent_s < most or self.checkup.stalled

    def force_level(self, level: DegradedLevel | None, reason: str) -> None:
        """Forces a level, or gives control back to the checks (None). It holds until it is
        given back, across restarts too. Raises Unavailable when it is in force but could not
        be written down."""
        self.degradation.force(level, reason)
        stalled = self.checkup.stalled
        try:
            if not stalled:
                keep_level(self.store.data_dir, self.degradation.by_hand)
                return
            cause = "the disk does not answer"
        except OSError as error:
            cause = str(error)
        raise Unavailable(
            f"the level is in force, but could not be written down: {cause}",
            reason="LEVEL_NOT_KEPT",
            hint="it ends with the process; repeat it once the disk is well",
            retry_after_ms=5_000,
        )

    def _lags(self) -> bool:
        limit = self.settings.replication.max_lag_ms
        return self.leading.follows and 0 < limit < self.leading.primary().lag_ms

    def drain(self) -> None:
        """Says that the node is about to stop."""
        self._ready = False

    def health(self) -> HealthAnswer:
        """How the node is. Never raises; waits for nothing but the database file to be replaced."""
        return self.telling.health()
