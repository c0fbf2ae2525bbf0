"""Sealing, merging, repairing, erasing from files: everything that makes or drops segments.

Two lanes, each with a builder process of its own: ``seal`` (short jobs that keep tails
small) and ``merge`` (everything else). A lane plans from the manifest, has files built, and
swaps them in by one transaction; what a crash leaves is a folder without a manifest entry,
removed at the next start. See DESIGN.md.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from memsvc.domain import merging
from memsvc.domain.manifest import SegmentMeta, segment_from_json
from memsvc.domain.merging import Job, Sealed
from memsvc.segments.build import BuildSpec, estimate_bytes
from memsvc.segments.errors import Damage
from memsvc.segments.files import TEMPORARY_SUFFIX
from memsvc.segments.segment import set_aside, verify
from memsvc.service.builder import Builder, BuilderFailed
from memsvc.service.compaction import CompactionFailed, compact
from memsvc.service.search.registry import Views, partition_dir
from memsvc.store.keys import Partition, name_key
from memsvc.store.snapshot import Snapshot
from memsvc.store.store import Store
from memsvc.store.writer import Writer
from memsvc.text.tokenize import ANALYZER_VERSION

log = logging.getLogger(__name__)

SURVEY_BATCH: Final = 2_000
"""Partitions looked through in one snapshot."""
RETRY_S: Final = 5.0
"""Pause after a job failed."""
LOOK_EVERY: Final = 1_000
"""Commits of a partition after which it is looked at."""
CHANGES_MAX: Final = 20_000
"""Changes since a segment was built at which it is written anew, so that opening it stays
quick."""


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """What segments are built with (index.* and storage.seal_rows)."""

    dtype: str
    m: int
    ef_construction: int
    attributes: tuple[str, ...]
    seal_rows: int
    graph_min_rows: int = 10_000


@dataclass(slots=True)
class _Wish:
    """Maintenance that was asked for: by an operator, the schedule, or erasure. ``asked``
    counts the times, so that what was asked for meanwhile is not taken for done."""

    seal_min_rows: int = 0
    merge_all: bool = False
    purge: bool = False
    asked: int = 0


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
        self._views = views
        self.settings = settings
        self._clock = clock
        self._purge_delay_ms = purge_delay_ms
        self._on_built = on_built
        self._lock = threading.Condition()
        self._due: dict[str, deque[int]] = {"seal": deque(), "merge": deque()}
        self._queued: dict[str, set[int]] = {"seal": set(), "merge": set()}
        self._wishes: dict[int, _Wish] = {}
        self._compact = False
        self.compacting = False
        """Whether the database file is being compacted now."""
        self._busy = 0
        self._stopping = False
        self._manifest = threading.Lock()
        self._number = 0
        self._commits: dict[int, int] = {}
        self._damaged: dict[tuple[int, str], set[str]] = {}
        self._builders = {lane: builders(store.data_dir) for lane in self._due}
        self._threads = [
            threading.Thread(target=self._run, args=(lane,), name=f"memsvc-{lane}", daemon=True)
            for lane in self._due
        ]
        # A hundred thousand partitions take a second to look through; nobody waits for it.
        self._threads.append(
            threading.Thread(target=self._survey, name="memsvc-survey", daemon=True)
        )

    def start(self) -> None:
        """Clears what a crash left, and begins to work."""
        self._remove_orphans()
        for thread in self._threads:
            thread.start()

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
        with self._lock:
            self._stopping = True
            self._lock.notify_all()
        for builder in self._builders.values():
            builder.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    # -- what there is to do -----------------------------------------------------------

    def look_at(self, partition: int) -> None:
        """A partition changed: see whether it needs anything."""
        with self._lock:
            for lane, queued in self._queued.items():
                if partition not in queued:
                    queued.add(partition)
                    self._due[lane].append(partition)
            self._lock.notify_all()

    def grown(self, partition: int, tail_rows: int) -> None:
        """Told after each commit; cheap unless there may be something to do."""
        commits = self._commits.get(partition, 0) + 1
        self._commits[partition] = commits
        if commits >= LOOK_EVERY:
            # Changes pile up and rows die without the tail ever growing.
            self._commits.pop(partition, None)
            self.look_at(partition)
        if tail_rows >= self.settings.seal_rows:
            with self._lock:
                if partition not in self._queued["seal"]:
                    self._queued["seal"].add(partition)
                    self._due["seal"].append(partition)
                    self._lock.notify_all()

    def ask(self, *, seal_min_rows: int, merge_all: bool, purge: bool) -> int:
        """Maintenance by hand or by schedule. Returns the partitions that were queued."""
        numbers = self._numbers(
            lambda p: (
                ((merge_all or purge) and p.sealed_row > 1)
                or (bool(seal_min_rows) and p.next_row - p.sealed_row >= seal_min_rows)
            )
        )
        if numbers:
            with self._lock:
                for number in numbers:
                    wish = self._wishes.setdefault(number, _Wish())
                    wish.seal_min_rows = seal_min_rows or wish.seal_min_rows
                    wish.merge_all = wish.merge_all or merge_all
                    wish.purge = wish.purge or purge
                    wish.asked += 1
            for number in numbers:
                self.look_at(number)
        if purge:
            self.compact_soon()
        return len(numbers)

    def compact_soon(self) -> None:
        """Compacts the database file once the segments are rid of erased rows."""
        with self._lock:
            self._compact = True
            self._lock.notify_all()

    def wait_idle(self, seconds: float) -> bool:
        """Whether everything was done within the time."""
        until = time.monotonic() + seconds
        with self._lock:
            while self._pending():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._lock.wait(min(left, 0.1))
        return True

    def _pending(self) -> int:
        return sum(map(len, self._due.values())) + self._busy + self._compact

    @property
    def waiting(self) -> int:
        """Jobs that wait."""
        return sum(map(len, self._due.values())) + int(self._compact)

    @property
    def running(self) -> int:
        """Jobs that run."""
        return self._busy

    @property
    def builder_pids(self) -> list[int]:
        """Processes that build."""
        return [b.pid for b in self._builders.values() if b.pid is not None]

    # -- damage ------------------------------------------------------------------------

    @property
    def damaged_files(self) -> int:
        """Files set aside and not yet replaced."""
        return sum(map(len, self._damaged.values()))

    def on_damage(self, meta: SegmentMeta, damages: tuple[Damage, ...]) -> None:
        """Sets damaged files aside and has the segment built anew."""
        root = partition_dir(self._store.data_dir, meta.partition)
        with self._lock:
            known = self._damaged.setdefault((meta.partition, meta.name), set())
            fresh = [d for d in damages if d.file.name not in known]
            known.update(d.file.name for d in fresh)
        if not self._still_there(meta):
            # Replaced meanwhile: a reader of an older snapshot came upon what is left of it.
            with self._lock:
                self._damaged.pop((meta.partition, meta.name), None)
            return
        for damage in fresh:
            log.error(
                "segment %s: %s: %s; set aside, will be built anew",
                meta.name,
                damage.file.name,
                damage.reason,
            )
            set_aside(root, meta, damage.file)
        if fresh:
            self.look_at(meta.partition)

    def scrub(self) -> int:
        """Reads every segment file whole; returns how many were damaged."""
        with self._store.read() as snapshot:
            metas = list(snapshot.all_segments())
        found = 0
        for meta in metas:
            damages = verify(partition_dir(self._store.data_dir, meta.partition), meta)
            if damages and self._still_there(meta):
                found += len(damages)
                self.on_damage(meta, tuple(damages))
                self._views.drop(meta.partition)
        return found

    def _still_there(self, meta: SegmentMeta) -> bool:
        with self._store.read() as snapshot:
            return any(s.name == meta.name for s in snapshot.segments(meta.partition))

    # -- the lanes ---------------------------------------------------------------------

    def _run(self, lane: str) -> None:
        while True:
            with self._lock:
                while not self._due[lane] and not (lane == "merge" and self._may_compact()):
                    if self._stopping:
                        return
                    self._lock.wait(1.0)
                if self._stopping:
                    return
                partition = self._due[lane].popleft() if self._due[lane] else None
                if partition is not None:
                    self._queued[lane].discard(partition)
                else:
                    self._compact = False
                self._busy += 1
            try:
                if partition is None:
                    self.compacting = True
                    self._compact_now()
                else:
                    self._work(lane, partition)
            except (BuilderFailed, CompactionFailed, OSError) as error:
                if not self._stopping:
                    log.warning("%s of partition %s failed: %s", lane, partition, error)
                    self._on_built(False)
                    self._again(lane, partition)
            except Exception:
                log.exception("%s of partition %s failed", lane, partition)
                self._again(lane, partition)
            finally:
                with self._lock:
                    if partition is None:
                        self.compacting = False
                    self._busy -= 1
                    self._lock.notify_all()

    def _may_compact(self) -> bool:
        # Not while segments wait to be rid of erased rows. Sealing may go on: under steady
        # writes there is always something to seal, and erasure must come all the same.
        return self._compact and not self._due["merge"]

    def _again(self, lane: str, partition: int | None) -> None:
        time.sleep(0 if self._stopping else RETRY_S)
        with self._lock:
            if partition is None:
                self._compact = True
            elif partition not in self._queued[lane]:
                self._queued[lane].add(partition)
                self._due[lane].append(partition)

    def _work(self, lane: str, number: int) -> None:
        """Does the jobs of a partition until it is in order."""
        while not self._stopping:
            with self._lock:
                wish = replace(self._wishes.get(number, _Wish()))
                sealing = bool(wish.seal_min_rows) or number in self._queued["seal"]
            with self._store.read() as snapshot:
                partition = snapshot.partition_number(number)
                if partition is None:
                    return
                if lane == "seal":
                    least = wish.seal_min_rows or self.settings.seal_rows
                    job = merging.seal(partition.sealed_row, partition.next_row, least)
                else:
                    sealed = self._sealed(snapshot, number, wish)
                    job = merging.rewrite(sealed) or merging.merge(sealed)
                    if job is None and wish.merge_all:
                        job = merging.merge_all(sealed)
                generations = tuple((g.number, g.dimension) for g in snapshot.generations())
                crowded = lane == "seal" and (
                    snapshot.count_changes(number, partition.pruned, CHANGES_MAX) >= CHANGES_MAX
                )
            if crowded:
                # Segments that are older than the changes keep them (see swap_segments).
                self._prune(number, partition.position)
            if job is None:
                self._done(lane, number, wish.asked, sealing)
                return
            self._build(lane, number, job, generations)
            if lane == "seal" and wish.seal_min_rows:
                # The rows of when it was asked for; under steady writes there are always more.
                self._done(lane, number, wish.asked, sealing)

    def _prune(self, number: int, upto: int) -> None:
        self._writer.run(lambda txn: txn.prune_changes(number, upto))

    def _done(self, lane: str, number: int, asked: int, sealing: bool) -> None:
        """Strikes off what was asked for; ``asked`` and ``sealing`` as they were before the
        lane looked and found nothing left to do."""
        with self._lock:
            wish = self._wishes.get(number)
            if wish is None or wish.asked != asked:
                return
            if lane == "seal":
                wish.seal_min_rows = 0
                if wish.merge_all and number not in self._queued["merge"]:
                    # What has been sealed is to be merged too.
                    self._queued["merge"].add(number)
                    self._due["merge"].append(number)
                    self._lock.notify_all()
            elif not (wish.merge_all and sealing):
                wish.merge_all = wish.purge = False
            if not (wish.seal_min_rows or wish.merge_all or wish.purge):
                self._wishes.pop(number, None)

    def _sealed(self, snapshot: Snapshot, number: int, wish: _Wish) -> list[Sealed]:
        """The segments as the policy sees them."""
        erased = [
            row
            for _partition, row, _position, time_ms in snapshot.erasures_of(number)
            if wish.purge or time_ms <= self._clock() - self._purge_delay_ms()
        ]
        found = []
        for meta in snapshot.segments(number):
            must = (number, meta.name) in self._damaged or any(
                meta.row_lo <= row < meta.row_hi for row in erased
            )
            changes = snapshot.count_changes(number, meta.position, CHANGES_MAX + 1)
            dead = (
                meta.count - snapshot.count_current(number, meta.row_lo, meta.row_hi)
                if (changes)
                else 0
            )
            found.append(
                Sealed(
                    meta.name,
                    meta.row_lo,
                    meta.row_hi,
                    meta.count,
                    max(0, dead),
                    must or changes > CHANGES_MAX,
                )
            )
        return found

    def _build(
        self, lane: str, number: int, job: Job, generations: tuple[tuple[int, int], ...]
    ) -> None:
        started = time.monotonic()
        root = partition_dir(self._store.data_dir, number)
        root.mkdir(parents=True, exist_ok=True)
        spec = self._spec(number, job, generations)
        needed = estimate_bytes(spec, job.row_hi - job.row_lo)
        free = shutil.disk_usage(root).free
        if free < needed:
            raise BuilderFailed(f"{free} bytes free, about {needed} needed")
        try:
            done = self._builders[lane].run(
                {"job": "build", "spec": json.loads(spec.to_json()), "root": str(root)}
            )
        except BuilderFailed:
            # What it had written may be of memories that are to be erased.
            for leftover in (spec.name + TEMPORARY_SUFFIX, spec.name):
                shutil.rmtree(root / leftover, ignore_errors=True)
            raise
        meta = segment_from_json(json.dumps(done))
        if not self._swap(number, job, meta):
            shutil.rmtree(root / meta.name, ignore_errors=True)
            return
        self._on_built(True)
        log.info(
            "partition %d: %s: segment %s of %d rows in %.1f s",
            number,
            job.why,
            meta.name,
            meta.count,
            time.monotonic() - started,
        )
        if lane == "seal":
            self.look_at(number)

    def _swap(self, number: int, job: Job, meta: SegmentMeta) -> bool:
        root = partition_dir(self._store.data_dir, number)
        with self._manifest:
            swapped = self._writer.run(lambda txn: txn.swap_segments(number, job.replaces, meta))
        if swapped:
            with self._lock:
                for name in job.replaces:
                    self._damaged.pop((number, name), None)
            # Views that still search them have the files mapped; the space is freed when
            # the last one is gone.
            for name in job.replaces:
                shutil.rmtree(root / name, ignore_errors=True)
        return swapped

    def _spec(self, number: int, job: Job, generations: tuple[tuple[int, int], ...]) -> BuildSpec:
        with self._lock:
            self._number += 1
            name = f"{job.row_lo:012x}-{job.row_hi:012x}-{self._clock():x}-{self._number}"
        s = self.settings
        return BuildSpec(
            name=name,
            partition=number,
            row_lo=job.row_lo,
            row_hi=job.row_hi,
            position=0,
            generations=generations,
            dtype=s.dtype,
            m=s.m,
            ef_construction=s.ef_construction,
            graph_min_rows=s.graph_min_rows,
            attributes=s.attributes,
            analyzer=ANALYZER_VERSION,
        )

    def _compact_now(self) -> None:
        with self._manifest:
            compact(self._store, self._writer, self._builders["merge"])

    # -- starting ----------------------------------------------------------------------

    def _remove_orphans(self) -> None:
        """Removes folders that no manifest entry names: of builds that a crash cut off."""
        top = self._store.data_dir / "segments"
        if not top.is_dir():
            return
        with self._store.read() as snapshot:
            for folder in top.iterdir():
                number = int(folder.name, 16)
                named = {s.name for s in snapshot.segments(number)}
                for child in folder.iterdir():
                    if child.name not in named:
                        log.info("removing %s, left by an unfinished build", child)
                        shutil.rmtree(child, ignore_errors=True)
