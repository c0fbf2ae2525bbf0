"""Damaged segment files: known, set aside, found by a glance or by the scrub.

A glance only looks whether files are there and as long as they were; a few are looked at in
each round of upkeep, in turn. A file that is open stays readable when it is deleted, so nobody
else would notice before the next start. The scrub reads every file whole, which takes as long as
there are files: it has a thread of its own, is slowed down, and nobody waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from memsvc.domain.manifest import SegmentMeta
from memsvc.domain.wording import counted
from memsvc.segments.errors import Damage
from memsvc.segments.segment import missing, set_aside, verify
from memsvc.service.search.registry import Views, partition_dir
from memsvc.store.store import Store

log = logging.getLogger(__name__)

SCRUB_EVERY_S: Final = 24 * 3_600.0
GLANCE_FILES: Final = 100
"""Files looked at in one glance, some 0.3 ms: those of 100 segments in five seconds."""
SCRUB_BYTES_PER_S: Final = 64 << 20
"""How fast the daily scrub reads, so that queries keep disk and page cache."""


@dataclass(frozen=True, slots=True)
class DamagedFile:
    """A segment file that is not as it was written: of which partition, its path below the data
    directory, and what was found."""

    partition: int
    path: str
    reason: str


class Damages:
    """Files that are set aside until their segment is built anew. ``look_at`` has the
    partition repaired."""

    def __init__(self, store: Store, views: Views, look_at: Callable[[int], None]) -> None:
        self._store = store
        self._views = views
        self._look_at = look_at
        self._to_glance: list[SegmentMeta] = []
        self._known: dict[tuple[int, str], dict[str, str]] = {}
        """Of each segment the files that are set aside, and why."""
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._acting = threading.Lock()
        self._thread = threading.Thread(target=self._daily, name="memsvc-scrub", daemon=True)

    def start(self) -> None:
        """Begins to scrub once a day."""
        self._thread.start()

    def stop(self) -> None:
        """Breaks a scrub off. It may still read the file it is at, but nothing of the store."""
        self._stopping.set()
        with self._acting:
            pass

    @property
    def files(self) -> int:
        """Files set aside and not yet replaced."""
        with self._lock:
            return sum(map(len, self._known.values()))

    @property
    def waiting(self) -> list[DamagedFile]:
        """Files set aside and not yet replaced."""
        with self._lock:
            return [
                self._damaged(partition, name, file, reason)
                for (partition, name), files in self._known.items()
                for file, reason in files.items()
            ]

    def of(self, partition: int, name: str) -> bool:
        """Whether a segment has damaged files."""
        return (partition, name) in self._known

    def replaced(self, partition: int, names: tuple[str, ...]) -> None:
        """Segments are gone, with what was damaged in them."""
        with self._lock:
            for name in names:
                self._known.pop((partition, name), None)

    def found(self, meta: SegmentMeta, damages: tuple[Damage, ...]) -> None:
        """Sets damaged files aside and has the segment built anew."""
        root = partition_dir(self._store.data_dir, meta.partition)
        with self._lock:
            known = self._known.setdefault((meta.partition, meta.name), {})
            fresh = [d for d in damages if d.file.name not in known]
            known.update({d.file.name: d.reason for d in fresh})
        if not self._still_there(meta):
            # Replaced meanwhile: a reader of an older snapshot came upon what is left of it.
            self.replaced(meta.partition, (meta.name,))
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
            self._look_at(meta.partition)

    def glance(self) -> None:
        """Looks at the next files, from one thread only. Reads the directory and no file."""
        left = GLANCE_FILES
        while left > 0:
            if not self._to_glance:
                with self._store.read() as snapshot:
                    self._to_glance = list(snapshot.all_segments())
                left = min(left, sum(len(meta.files) for meta in self._to_glance))
                if not left:
                    return
            meta = self._to_glance.pop()
            left -= len(meta.files)
            root = partition_dir(self._store.data_dir, meta.partition)
            known = self._known.get((meta.partition, meta.name), ())
            damages = tuple(d for d in missing(root, meta) if d.file.name not in known)
            if damages and self._still_there(meta):
                self.found(meta, damages)
                self._views.drop(meta.partition)

    def scrub(self, bytes_per_s: float = float("inf")) -> list[DamagedFile]:
        """Reads every segment file whole; returns those that were damaged. Ends early at a
        stop."""
        found: list[DamagedFile] = []
        with self._acting:
            if self._stopping.is_set():
                return found
            with self._store.read() as snapshot:
                metas = list(snapshot.all_segments())
        for meta in metas:
            root = partition_dir(self._store.data_dir, meta.partition)
            damages: list[Damage] = []
            for file in meta.files:
                if self._stopping.is_set():
                    return found
                damages += verify(root, replace(meta, files=(file,)))
                self._stopping.wait(file.bytes / bytes_per_s)
            with self._acting:
                if self._stopping.is_set():
                    return found
                if damages and self._still_there(meta):
                    found += [
                        self._damaged(meta.partition, meta.name, d.file.name, d.reason)
                        for d in damages
                    ]
                    self.found(meta, tuple(damages))
                    self._views.drop(meta.partition)
        return found

    def _daily(self) -> None:
        while not self._stopping.wait(SCRUB_EVERY_S):
            started = time.monotonic()
            try:
                found = self.scrub(SCRUB_BYTES_PER_S)
            except Exception:
                log.exception("the scrub failed; it is tried again in a day")
            else:
                seconds = time.monotonic() - started
                log.info("scrubbed in %.0f s; damaged: %s", seconds, counted(len(found), "file"))

    def _still_there(self, meta: SegmentMeta) -> bool:
        with self._store.read() as snapshot:
            return meta in snapshot.segments(meta.partition)

    def _damaged(self, partition: int, name: str, file: str, reason: str) -> DamagedFile:
        path = partition_dir(self._store.data_dir, partition) / name / file
        return DamagedFile(partition, str(path.relative_to(self._store.data_dir)), reason)
