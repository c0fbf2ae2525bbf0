"""Having a segment built, putting it into the manifest, and removing what it replaces.

Whoever decides what to build (maintenance, a rebuild) uses this; nothing here decides.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from memsvc.domain.errors import Unavailable
from memsvc.domain.manifest import GraphSettings, SegmentMeta, segment_from_json
from memsvc.domain.merging import Job
from memsvc.segments.build import GRAPH_MIN_ROWS, BuildSpec, estimate_bytes
from memsvc.segments.columns import Indexed
from memsvc.segments.files import TEMPORARY_SUFFIX
from memsvc.service.builder import Builder, BuilderFailed
from memsvc.service.damage import Damages
from memsvc.service.search.registry import Views, partition_dir
from memsvc.store.keys import U64
from memsvc.store.store import Store
from memsvc.store.write_txn import WriteTxn
from memsvc.store.writer import Writer
from memsvc.text.tokenize import ANALYZER_VERSION

log = logging.getLogger(__name__)

Generations = tuple[tuple[int, int], ...]
"""Number and dimension of each."""
_PARTITION: Final = re.compile("[0-9a-f]{8}")
_RETIRED: Final = b"retired/"
"""Local records of replaced segments that are still on disk: partition (u32) and name, and
until when (UTC ms)."""


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """What segments are built with (index.*, storage.seal_rows, and
    lifecycle.cold_archive_after_days in ms, 0 = nothing becomes cold)."""

    dtype: str
    m: int
    ef_construction: int
    indexed: Indexed
    seal_rows: int
    build_share: float = 1.0
    graph_min_rows: int = GRAPH_MIN_ROWS
    cold_after_ms: int = 0

    @property
    def graph(self) -> GraphSettings:
        """What a graph is built with."""
        return GraphSettings(self.dtype, self.m, self.ef_construction)


class SegmentBuilds:
    """Builds and swaps for one store. ``clock`` gives UTC ms. Builders are the caller's."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        views: Views,
        damages: Damages,
        settings: IndexSettings,
        clock: Callable[[], int],
    ) -> None:
        self._store = store
        self._writer = writer
        self._views = views
        self._damages = damages
        self.settings = settings
        self._clock = clock
        self._given = itertools.count(1)
        self._replacing: set[tuple[int, str]] = set()
        self._rebuilding = False
        self.manifest = threading.Lock()
        """Held to change the manifest or other local records: while the database file is
        being compacted they must not change, as the copy would not learn of it."""

    def spec(self, number: int, job: Job, generations: Generations, share: float) -> BuildSpec:
        """What to build for a job, with the settings of now, busy for ``share`` of the time."""
        s, now = self.settings, self._clock()
        with self._store.read() as snapshot:
            others = tuple(
                meta.name
                for meta in snapshot.segments(number)
                if meta.tier != job.tier and meta.row_lo < job.row_hi and job.row_lo < meta.row_hi
            )
            own = [(g.number, g.graph(s.graph)) for g in snapshot.generations()]
        return BuildSpec(
            name=f"{job.row_lo:012x}-{job.row_hi:012x}-{now:x}-{next(self._given)}",
            partition=number,
            row_lo=job.row_lo,
            row_hi=job.row_hi,
            position=0,
            generations=generations,
            dtype=s.dtype,
            m=s.m,
            ef_construction=s.ef_construction,
            own=tuple(
                (number, graph.dtype, graph.m, graph.ef_construction)
                for number, graph in own
                if graph != s.graph
            ),
            graph_min_rows=s.graph_min_rows,
            indexed=s.indexed,
            throttle=share,
            analyzer=ANALYZER_VERSION,
            tier=job.tier,
            cold_before=self.cold_before(now),
            others=others,
        )

    def cold_before(self, now: int) -> int:
        """What was last used before this time is cold: UTC ms, 0 = nothing is."""
        return max(0, now - self.settings.cold_after_ms) if self.settings.cold_after_ms else 0

    def estimate(self, rows: int, generations: Generations) -> int:
        """About how many bytes a segment of so many rows takes, rather too many."""
        job = Job(1, rows + 1, (), "")
        return estimate_bytes(self.spec(0, job, generations, 1.0), rows)

    def build(
        self,
        builder: Builder,
        spec: BuildSpec,
        *,
        idle: bool,
        progress: Callable[[float], None] = lambda _share: None,
        grown_from: str | None = None,
    ) -> SegmentMeta:
        """Has the files made, with the graphs of the segment ``grown_from`` where they can be
        taken over. Raises BuilderFailed, also when the disk has no room."""
        root = partition_dir(self._store.data_dir, spec.partition)
        root.mkdir(parents=True, exist_ok=True)
        needed = estimate_bytes(spec, spec.row_hi - spec.row_lo)
        free = shutil.disk_usage(root).free
        if free < needed:
            raise BuilderFailed(f"{free} bytes free, about {needed} needed")
        job = {"job": "build", "spec": json.loads(spec.to_json()), "root": str(root)}
        if grown_from is not None:
            with self._store.read() as snapshot:
                metas = snapshot.segments(spec.partition)
            first = next((meta for meta in metas if meta.name == grown_from), None)
            job["grown_from"] = json.loads(first.to_json()) if first else None
        try:
            done = builder.run(job, progress, idle=idle)
        except BuilderFailed:
            # What it had written may be of memories that are to be erased.
            for leftover in (spec.name + TEMPORARY_SUFFIX, spec.name):
                shutil.rmtree(root / leftover, ignore_errors=True)
            raise
        return segment_from_json(json.dumps(done))

    @contextlib.contextmanager
    def replacing(self, number: int, names: tuple[str, ...]) -> Iterator[None]:
        """Segments of a partition are not grown meanwhile: what takes their place would be
        refused."""
        held = {(number, name) for name in names}
        self._replacing |= held
        try:
            yield
        finally:
            self._replacing -= held

    def hold(self, rebuilding: bool) -> None:
        """Whether a rebuild is going on, while which no segment is grown: its old graph would
        live on in one that the rebuild does not know. When this returns, none is grown that is
        not in the manifest."""
        self._rebuilding = rebuilding
        if rebuilding:
            self._writer.run(lambda _txn: None)  # a swap that has looked before is done

    def _graphs(self) -> dict[int, GraphSettings]:
        """What the graphs of each generation are built with now."""
        with self._store.read() as snapshot:
            return {g.number: g.graph(self.settings.graph) for g in snapshot.generations()}

    def is_held(self, meta: SegmentMeta) -> bool:
        """Whether a segment must not be grown: it is being replaced, or its graph is to be."""
        return (
            self._rebuilding
            or (meta.partition, meta.name) in self._replacing
            or meta.outdated(self._graphs())
        )

    def discard(self, meta: SegmentMeta) -> None:
        """Removes what was built and is not taken."""
        root = partition_dir(self._store.data_dir, meta.partition)
        shutil.rmtree(root / meta.name, ignore_errors=True)

    def swap(
        self,
        number: int,
        replaces: tuple[str, ...],
        meta: SegmentMeta,
        *,
        relies: tuple[str, ...] = (),
        keep_ms: int = 0,
        also: Callable[[WriteTxn], None] = lambda _txn: None,
        grown: bool = False,
    ) -> bool:
        """Makes a segment answer in place of others, in one transaction with ``also``. The old
        files are removed, after ``keep_ms`` if they hold nothing that is to be erased. False,
        and nothing is changed but the new files removed, when one of the others has gone, or of
        those on which it ``relies`` to have the rows that it leaves out, or when one was ``grown``
        that is to be rebuilt."""

        built = meta

        def decide(txn: WriteTxn) -> bool:
            nonlocal meta
            if grown and self._rebuilding:
                return False
            # A generation may have been dropped while it was built.
            meta = meta.with_vectors_of({g.number for g in txn.generations()})
            # The swap strikes off what the new segment is rid of; the old one is not.
            erasing = any(meta.row_lo <= e[1] < meta.row_hi for e in txn.erasures_of(number))
            if not txn.swap_segments(number, replaces, meta, relies):
                return False
            if keep_ms > 0 and not erasing:
                for name in replaces:
                    txn.keep(_retired(number, name), U64.pack(txn.now + keep_ms))
            also(txn)
            return True

        # The next query should not be the one to map the new files.
        try:
            self._views.expect(meta)
        except Exception:  # it only saves time
            log.exception("partition %d: the swap was not prepared", number)
        try:
            with self.manifest:
                swapped = self._writer.run(decide)
            if swapped:
                self._damages.replaced(number, replaces)
        finally:
            # A view that no query asks for must not keep the old files on the disk, nor new ones
            # that will never be searched.
            self._views.settle(number)
        if not swapped:
            self.discard(meta)
            return False
        # Views that still search them have the files mapped; the space is freed when the
        # last one is gone.
        kept = self._retired_of(number)
        root = partition_dir(self._store.data_dir, number)
        for file in set(built.files) - set(meta.files):
            (root / meta.name / file.name).unlink(missing_ok=True)
        for name in replaces:
            if name not in kept:
                shutil.rmtree(root / name, ignore_errors=True)
        return True

    def write_down(self, records: Mapping[bytes, bytes | None], wait_s: float = -1) -> None:
        """Puts down local records (None: strikes them off) in one transaction. Waits while
        the database file is compacted; raises Unavailable after ``wait_s`` (-1: never)."""

        def decide(txn: WriteTxn) -> None:
            for name, value in records.items():
                txn.keep(name, value)

        if not self.manifest.acquire(timeout=wait_s):
            raise Unavailable(
                "the database file is being compacted",
                reason="COMPACTING",
                hint="compaction takes minutes at most: try again",
                retry_after_ms=10_000,
            )
        try:
            self._writer.run(decide)
        finally:
            self.manifest.release()

    # -- what was replaced -------------------------------------------------------------

    def reclaim(self, *, at_once: bool = False) -> int:
        """Removes replaced segments whose time has come, or all of them; returns how many are
        left."""
        now, due, left = self._clock(), [], 0
        with self._store.read() as snapshot:
            for key, until in snapshot.local(_RETIRED):
                if at_once or U64.unpack(until)[0] <= now:
                    due.append(key)
                else:
                    left += 1

        def strike_off(txn: WriteTxn) -> None:
            for key in due:
                txn.keep(_RETIRED + key, None)

        for key in due:
            root = partition_dir(self._store.data_dir, int.from_bytes(key[:4], "big"))
            shutil.rmtree(root / key[4:].decode(), ignore_errors=True)
        if due and self.manifest.acquire(blocking=False):
            # Otherwise the next call does it: removing a folder twice is no harm.
            try:
                self._writer.run(strike_off)
            finally:
                self.manifest.release()
        return left

    def _retired_of(self, number: int) -> set[str]:
        with self._store.read() as snapshot:
            return {key.decode() for key, _ in snapshot.local(_RETIRED + number.to_bytes(4, "big"))}

    def remove_orphans(self) -> None:
        """Removes folders that nothing names: of builds that a crash cut off."""
        top = self._store.data_dir / "segments"
        if not top.is_dir():
            return
        with self._store.read() as snapshot:
            for folder in top.iterdir():
                # Others put things here too: lost+found, .DS_Store.
                if not _PARTITION.fullmatch(folder.name) or not folder.is_dir():
                    continue
                number = int(folder.name, 16)
                named = {s.name for s in snapshot.segments(number)} | self._retired_of(number)
                for child in folder.iterdir():
                    if child.name not in named and child.is_dir():
                        log.info("removing %s, left by an unfinished build", child)
                        shutil.rmtree(child, ignore_errors=True)


def _retired(number: int, name: str) -> bytes:
    return _RETIRED + number.to_bytes(4, "big") + name.encode()


def with_reloaded(settings: IndexSettings, fresh: IndexSettings) -> IndexSettings:
    """The settings after a reload; which attributes have columns takes a restart."""
    return replace(fresh, indexed=settings.indexed, graph_min_rows=settings.graph_min_rows)
