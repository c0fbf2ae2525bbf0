"""A node: store, writer, views, maintenance and the calls, put together.

The one place that reads the clock and draws randomness; everything below is given them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from memsvc.config import Settings
from memsvc.domain.errors import FailedPrecondition
from memsvc.domain.log import Record
from memsvc.domain.replication import Standing
from memsvc.domain.types import DegradedLevel, HealthAnswer
from memsvc.segments.costs import measure_costs
from memsvc.service.acks import Acks
from memsvc.service.api import Control
from memsvc.service.bootstraps import Bootstraps
from memsvc.service.builder import Builder
from memsvc.service.checkup import Checkup
from memsvc.service.degradation import Degradation
from memsvc.service.derived import (
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
from memsvc.service.disk_guard import guard_disk
from memsvc.service.dropped_files import DroppedFiles
from memsvc.service.erasures import Erasures
from memsvc.service.feed import Feed
from memsvc.service.forced_level import force_level, kept_level
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
from memsvc.service.search.cold_pages import ColdPages
from memsvc.service.search.costs import CostBook
from memsvc.service.search.registry import Views
from memsvc.service.search.searcher import Searcher
from memsvc.service.segment_builds import with_reloaded
from memsvc.service.snapshots.keeping import Snapshots, snapshot_settings
from memsvc.service.startup import check_generation, check_index, warn_of_generation
from memsvc.service.telling import Telling
from memsvc.service.upkeep import Upkeep
from memsvc.store import feed
from memsvc.store.store import Store
from memsvc.store.write_txn import WriteTxn
from memsvc.store.writer import Writer

log = logging.getLogger(__name__)

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
        self._stopped = False
        self.certificate_until: Callable[[], int] = lambda: 0
        """UTC ms of the end of the certificate that clients are shown; 0 = there is none."""
        self._ready = True
        self._generations_changed = False
        with ExitStack() as undo:
            self._open(settings, random, builders, follows, asks_first, undo)
            self.maintenance.start()
            self.rebuilds.begin()
            undo.pop_all()
        if upkeep:
            self.upkeep.start()
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
            purge_delay_ms=self.purge_delay_ms,
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
            purge_delay_ms=self.purge_delay_ms,
            on_built=self.metrics.built,
        )
        undo.callback(self.rebuilds.stop)
        self.snapshots = Snapshots(
            self.store,
            snapshot_settings(settings, follows),
            clock=self.clock,
            builders=builders,
            on_taken=self.metrics.snapshot,
            may_judge=lambda: self.leading.level,
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
        self.dropped_files = DroppedFiles(
            self.store, self.writer, self.views, self.maintenance.builds
        )
        self.generation_admin = GenerationAdmin(
            self.store,
            self.writer,
            self.generations,
            self.maintenance.builds,
            self.rebuilds,
            self.dropped_files,
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
        self.upkeep = Upkeep(self)
        self.telling = Telling(self)
        self.metrics.bind(self.telling.readings)

    # -- life --------------------------------------------------------------------------

    def apply(self, settings: Settings) -> None:
        """Takes the settings that may change while running. Raises FailedPrecondition for
        a place of snapshots that is none; then nothing is changed."""
        self.snapshots.apply(snapshot_settings(settings, self.leading.follows))
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
        self.upkeep.reschedule(settings)

    def stop(self) -> None:
        """Finishes queued writes, flushes recalls, ends builders, closes the store."""
        if self._stopped:
            return
        self._stopped = True
        self._ready = False
        self.checkup.stop()
        self.upkeep.stop()
        self.rebuilds.stop()
        self.snapshots.stop()
        self.bootstraps.stop()
        self.maintenance.stop()
        try:
            self.upkeep.flush_recalls()
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

    def purge_delay_ms(self) -> int:
        """How long what is erased may stay in files before they are rewritten."""
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

    # -- changes and upkeep ------------------------------------------------------------

    def _guard_changes(self) -> None:
        self.leading.guard()
        guard_disk(stalled=self.checkup.stalled, displaced=self.displaced)

    def confirm(self, control: Control) -> None:
        """Waits until the replicas that are to have each write have what is committed now."""
        self.feed.acks.confirm(self.progress.position, control)

    def tick(self) -> None:
        """One round of upkeep, now."""
        self.upkeep.tick()

    def sweep(self) -> None:
        """Expires, truncates and forgets what is due."""
        self.upkeep.sweep()

    @property
    def displaced(self) -> bool:
        """Whether the data directory was no longer there when upkeep last looked."""
        return self.upkeep.displaced

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
        if not self.writer.alive or not self.upkeep.alive:
            return False
        most = HELD_UP_S if self.maintenance.compacting else SILENT_S
        return self.checkup.upkeep_silent_s < most or self.checkup.stalled

    def force_level(self, level: DegradedLevel | None, reason: str) -> None:
        """Forces a level, or gives control back to the checks (None). It holds until it is
        given back, across restarts too. Raises Unavailable when it is in force but could not
        be written down."""
        force_level(
            self.degradation, self.store.data_dir, level, reason, stalled=self.checkup.stalled
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
