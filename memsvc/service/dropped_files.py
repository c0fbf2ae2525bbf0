"""Taking the files of dropped generations out of segments, and off the disk.

A segment's other files stay as they are: its record in the manifest loses the files of the
generation, in one transaction, and then they are removed. Either is done again after a crash,
until nothing is left. It is not in the log: each node has files of its own.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from memsvc.domain.manifest import SegmentMeta
from memsvc.service.search.registry import Views, partition_dir
from memsvc.service.segment_builds import SegmentBuilds
from memsvc.store.store import Store
from memsvc.store.write_txn import WriteTxn
from memsvc.store.writer import Writer

log = logging.getLogger(__name__)

SEGMENTS_AT_ONCE: Final = 50
"""Segments rid of them in one round of upkeep."""


class DroppedFiles:
    """What dropped generations have left in the segment files of a node."""

    def __init__(self, store: Store, writer: Writer, views: Views, builds: SegmentBuilds) -> None:
        self._store = store
        self._writer = writer
        self._views = views
        self._builds = builds
        self._clean: frozenset[int] = frozenset()

    def left(self, generation: int) -> bool:
        """Whether a dropped generation may still have files."""
        return generation not in self._clean

    def tick(self) -> None:
        """Removes some of what is left. Does nothing while the database file is compacted."""
        with self._store.read() as snapshot:
            known = snapshot.all_generations()
            dropped = frozenset(g.number for g in known if g.dropped)
            if dropped <= self._clean:
                return
            serving = frozenset(g.number for g in known) - dropped
            metas = list(snapshot.all_segments())
        outdated = [meta for meta in metas if meta.with_vectors_of(serving) is not meta]
        for meta in outdated[:SEGMENTS_AT_ONCE]:
            if not self._strip(meta):
                return
        if len(outdated) <= SEGMENTS_AT_ONCE:
            self._remove_unnamed(dropped, metas)
            self._clean = dropped

    def _strip(self, meta: SegmentMeta) -> bool:
        """Takes the files out of the manifest; False when that cannot be now."""

        def decide(txn: WriteTxn) -> None:
            present = next((s for s in txn.segments(meta.partition) if s.name == meta.name), None)
            if present is not None:
                serving = {g.number for g in txn.generations()}
                txn.take_out_files(present.with_vectors_of(serving))

        if not self._builds.manifest.acquire(blocking=False):
            return False
        try:
            self._writer.run(decide)
        finally:
            self._builds.manifest.release()
        # Nobody may keep what is about to go mapped, and so on the disk.
        self._views.drop(meta.partition)
        return True

    def _remove_unnamed(self, dropped: frozenset[int], metas: list[SegmentMeta]) -> None:
        top = self._store.data_dir
        for meta in metas:
            folder = partition_dir(top, meta.partition) / meta.name
            for generation in dropped:
                for path in _files(folder, generation):
                    path.unlink(missing_ok=True)
                    log.info("removed %s of a dropped embedding", path.relative_to(top))


def _files(folder: Path, generation: int) -> list[Path]:
    """Its files in a segment, also what was set aside as damaged."""
    return list(folder.glob(f"*-{generation}.*"))
