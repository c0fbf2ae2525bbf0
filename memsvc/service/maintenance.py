"""Sealing, merging, repairing, erasing from files: everything that makes or drops segments.

Two lanes, each with a builder process of its own: ``seal`` (short jobs that keep tails
small) and ``merge`` (everything else). A lane plans from the manifest, has files built, and
swaps them in by one transaction; what a crash leaves is a folder without a manifest entry,
removed at the next start. See DESIGN.md.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from memsvc.domain.manifest import SegmentMeta
from memsvc.domain.merging import Job
from memsvc.domain.wording import counted
from memsvc.segments.errors import Damage
from memsvc.service.builder import Builder, BuilderFailed
from memsvc.service.compaction import CompactionFailed, compact
from memsvc.service.damage import DamagedFile, Damages
from memsvc.service.partition_jobs import CHANGES_MAX, PartitionJobs
from memsvc.service.search.registry import Views
from memsvc.service.segment_builds import Generations, IndexSettings, SegmentBuilds
from memsvc.service.workqueue import COMPACT, LANES, WorkQueue
from memsvc.store.keys import Partition, name_key
from memsvc.store.store import Store
from memsvc.store.write_txn import WriteTxn
from memsvc.store.writer import Writer

log = logging.getLogger(__name__)

SURVEY_BATCH: Final = 2_000
"""Partitions looked through in one snapshot."""
RETRY_S: Final = 5.0
"""Pause after a job failed."""
LOOK_EVERY: Final = 1_000
"""Commits of a partition after which it is looked at."""


class Maintenance:
    """Keeps partitions in order. ``clock`` gives UTC ms; ``purge_delay_ms()`` is how long
    erased rows may stay in files before they are rewritten."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        views: Views,
        settings: IndexSettings,
        *,
        clock: Callable[[], int],
        purge_delay_ms: Callable[[], int],
        on_built: Callable[[bool], None] = lambda _ok: None,
        builders: Callable[[Path], Builder] = Builder,
    ) -> None:
        self._store = store
        self._writer = writer
        self._on_built = on_built
        self._queue = WorkQueue()
        self.damages = Damages(store, views, self.look_at)
        self.builds = SegmentBuilds(store, writer, views, self.damages, settings, clock)
        self._jobs = PartitionJobs(
            store.data_dir, self.builds, self.damages, clock=clock, purge_delay_ms=purge_delay_ms
        )
        self._stopping = False
        self._commits: dict[int, int] = {}
        self._builders = {lane: builders(store.data_dir) for lane in LANES}
        self._threads = [
            threading.Thread(target=self._run, args=(lane,), name=f"memsvc-{lane}", daemon=True)
            for lane in LANES
        ]
        # A hundred thousand partitions take a second to look through; nobody waits for it.
        self._threads.append(
            threading.Thread(target=self._survey, name="memsvc-survey", daemon=True)
        )

    @property
    def settings(self) -> IndexSettings:
        """What segments are built with."""
        return self.builds.settings

    @settings.setter
    def settings(self, settings: IndexSettings) -> None:
        self.builds.settings = settings

    def start(self) -> None:
        """Clears what a crash left, and begins to work."""
        self.builds.remove_orphans()
        for thread in self._threads:
            thread.start()
        self.damages.start()

    def _survey(self) -> None:
        """Finds what a stop or a crash left undone."""
        seal_rows = self.settings.seal_rows
        for number in self._numbers(
            lambda p: p.next_row - p.sealed_row >= seal_rows or p.sealed_row > 1
        ):
            self.look_at(number)

    def _numbers(self, wanted: Callable[[Partition], bool]) -> list[int]:
        """Partitions that satisfy a condition."""
        found: list[int] = []
        start = b""
        while not self._stopping:
            # Some at a time: the list must not hold old pages, nor the store at a stop.
            with self._store.read() as snapshot:
                batch = list(islice(snapshot.partitions(start), SURVEY_BATCH))
            found.extend(p.number for p in batch if wanted(p))
            if len(batch) < SURVEY_BATCH:
                break
            start = name_key(batch[-1].tenant, batch[-1].agent) + b"\0"
        return found

    def stop(self) -> None:
        """Ends at once; unfinished builds are begun again at the next start."""
        self._stopping = True
        self._queue.stop()
        self.damages.stop()
        for builder in self._builders.values():
            builder.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    # -- what there is to do -----------------------------------------------------------

    def look_at(self, partition: int) -> None:
        """A partition changed: see whether it needs anything."""
        self._queue.add(partition)

    def grown(self, partition: int, tail_rows: int) -> None:
        """Told after each commit; cheap unless there may be something to do."""
        commits = self._commits.get(partition, 0) + 1
        self._commits[partition] = commits
        if commits >= LOOK_EVERY:
            # Changes pile up and rows die without the tail ever growing.
            self._commits.pop(partition, None)
            self.look_at(partition)
        if tail_rows >= self.settings.seal_rows:
            self._queue.add(partition, "seal")

    def ask(self, *, seal_min_rows: int, merge_all: bool, purge: bool) -> int:
        """Maintenance by hand or by schedule. Returns the partitions that were queued."""
        numbers = self._numbers(
            lambda p: (
                ((merge_all or purge) and p.sealed_row > 1)
                or (bool(seal_min_rows) and p.next_row - p.sealed_row >= seal_min_rows)
            )
        )
        self._queue.ask(numbers, seal_min_rows=seal_min_rows, merge_all=merge_all, purge=purge)
        if purge:
            self.builds.reclaim(at_once=True)
            self.compact_soon(self._erasing(numbers))
        return len(numbers)

    def _erasing(self, numbers: list[int]) -> list[int]:
        """Those with erased rows that their segments may still hold."""
        with self._store.read() as snapshot:
            if not snapshot.count("erasures"):
                return []
            return [n for n in numbers if next(snapshot.erasures_of(n), None) is not None]

    def compact_soon(self, erasing: Iterable[int] = ()) -> None:
        """Compacts the database file once the segments of ``erasing`` are rid of erased
        rows, or that has been tried; other work does not hold it up."""
        self._queue.compact(erasing)

    def wait_idle(self, seconds: float) -> bool:
        """Whether everything was done within the time."""
        return self._queue.wait_idle(seconds)

    @property
    def waiting(self) -> int:
        """Jobs that wait."""
        return self._queue.waiting

    @property
    def running(self) -> int:
        """Jobs that run."""
        return self._queue.running

    @property
    def compacting(self) -> bool:
        """Whether the database file is being compacted now."""
        return self._queue.compacting

    @property
    def damaged_files(self) -> int:
        """Files set aside and not yet replaced."""
        return self.damages.files

    def on_damage(self, meta: SegmentMeta, damages: tuple[Damage, ...]) -> None:
        """Sets damaged files aside and has the segment built anew."""
        self.damages.found(meta, damages)

    def scrub(self) -> list[DamagedFile]:
        """Reads every segment file whole, at once; returns those that were damaged."""
        return self.damages.scrub()

    # -- the lanes ---------------------------------------------------------------------

    def _run(self, lane: str) -> None:
        while (number := self._queue.take(lane)) is not None:
            what = "the database" if number == COMPACT else f"partition {number}"
            again_s: float | None = RETRY_S
            try:
                if number == COMPACT:
                    self._compact_now()
                else:
                    self._work(lane, number)
                again_s = None
            except (BuilderFailed, CompactionFailed, OSError) as error:
                if not self._stopping:
                    log.warning("%s of %s failed: %s", lane, what, error)
                    self._on_built(False)
            except Exception:
                log.exception("%s of %s failed", lane, what)
            finally:
                self._queue.finished(lane, number, again_s)

    def _work(self, lane: str, number: int) -> None:
        """Does the jobs of a partition until it is in order."""
        while not self._stopping:
            wish, sealing = self._queue.wish(number)
            gone: list[int] = []
            with self._store.read() as snapshot:
                partition = snapshot.partition_number(number)
                if partition is None:
                    return
                if lane == "seal":
                    job = self._jobs.next_seal(snapshot, partition, wish)
                else:
                    metas = snapshot.segments(number)
                    standing = self._jobs.standing(snapshot, partition, metas, wish)
                    job = self._jobs.next_merge(snapshot, number, metas, wish, standing)
                    if standing is not None:
                        # A swap cannot tell where segments of two tiers have the same range.
                        erased = (row for _, row, _, _ in snapshot.erasures_of(number))
                        gone = [row for row in erased if not standing.anywhere(row)]
                generations = tuple((g.number, g.dimension) for g in snapshot.generations())
                crowded = lane == "seal" and (
                    snapshot.count_changes(number, partition.pruned, CHANGES_MAX) >= CHANGES_MAX
                )
            if gone:
                self._strike_erasures(number, gone, partition.manifest)
            if crowded:
                # Segments that are older than the changes keep them (see swap_segments).
                self._prune(number, partition.position)
            if job is None:
                self._queue.fulfilled(lane, number, wish.asked, sealing)
                return
            built = self._build(lane, number, job, generations)
            if built and lane == "seal" and wish.seal_min_rows:
                # The rows of when it was asked for; under steady writes there are always more.
                self._queue.fulfilled(lane, number, wish.asked, sealing)

    def _prune(self, number: int, upto: int) -> None:
        self._writer.run(lambda txn: txn.prune_changes(number, upto))

    def _strike_erasures(self, number: int, rows: list[int], manifest: int) -> None:
        """Strikes off what no segment has, as of a version of the manifest."""

        def decide(txn: WriteTxn) -> None:
            partition = txn.partition_number(number)
            # A segment that came meanwhile may hold them, and has noted it.
            if partition is not None and partition.manifest == manifest:
                txn.strike_erasures(number, rows)

        self._writer.run(decide)

    def _build(self, lane: str, number: int, job: Job, generations: Generations) -> bool:
        """Whether the segment answers now; not when others were replaced meanwhile."""
        started = time.monotonic()
        share = self.settings.build_share if job.calmly else 1.0
        spec = self.builds.spec(number, job, generations, share)
        with self.builds.replacing(number, () if job.grows else job.replaces):
            meta = self.builds.build(
                self._builders[lane],
                spec,
                idle=job.calmly,
                grown_from=job.replaces[0] if job.grows else None,
            )
            if not self.builds.swap(
                number, job.replaces, meta, relies=spec.others, grown=job.grows
            ):
                return False
        self._on_built(True)
        log.info(
            "partition %d: %s: segment %s of %s in %.1f s",
            number,
            job.why,
            meta.name,
            counted(meta.count, "row"),
            time.monotonic() - started,
        )
        if lane == "seal":
            self.look_at(number)
        return True

    def _compact_now(self) -> None:
        with self.builds.manifest:
            compact(self._store, self._writer, self._builders["merge"])
