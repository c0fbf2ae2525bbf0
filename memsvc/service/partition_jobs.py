"""What maintenance does next in a partition: facts read from its records, files and manifest, put
before the policies of merging (domain/merging.py) and of tiers (domain/tiering.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from memsvc.domain import merging, tiering
from memsvc.domain.manifest import COLD, HOT, SegmentMeta
from memsvc.domain.merging import Job, Sealed
from memsvc.service.census import Standing, take_census
from memsvc.service.damage import Damages
from memsvc.service.search.registry import partition_dir
from memsvc.service.segment_builds import SegmentBuilds
from memsvc.service.workqueue import Wish
from memsvc.store.keys import Partition
from memsvc.store.snapshot import Snapshot

CHANGES_MAX: Final = 20_000
"""Changes since a segment was built at which it is written anew, so that opening it stays
quick."""


class PartitionJobs:
    """Finds the next job of a lane. ``clock`` gives UTC ms; ``purge_delay_ms()`` is how long
    erased rows may stay in files before they are rewritten."""

    def __init__(
        self,
        data_dir: Path,
        builds: SegmentBuilds,
        damages: Damages,
        *,
        clock: Callable[[], int],
        purge_delay_ms: Callable[[], int],
    ) -> None:
        self._data_dir = data_dir
        self._builds = builds
        self._damages = damages
        self._clock = clock
        self._purge_delay_ms = purge_delay_ms

    def next_seal(self, snapshot: Snapshot, partition: Partition, wish: Wish) -> Job | None:
        """What the seal lane does next in a partition."""
        usual = self._builds.settings.seal_rows
        least = wish.seal_min_rows or usual
        if partition.next_row - partition.sealed_row < least:
            return None
        metas = snapshot.segments(partition.number)
        hot = [meta for meta in metas if meta.tier == HOT][-1:]
        last = next(iter(self._sealed(snapshot, partition.number, hot, wish, None)), None)
        if last is not None and any(m.tier == COLD and m.row_hi > last.row_lo for m in metas):
            # Which rows it is to have is for the merge lane to find out.
            last = replace(last, fixed=True)
        return merging.seal(partition.sealed_row, partition.next_row, least, usual, last)

    def standing(
        self, snapshot: Snapshot, partition: Partition, metas: list[SegmentMeta], wish: Wish
    ) -> Standing | None:
        """Where the rows are, None when there is one tier and it is to stay so."""
        cold_before = self._builds.cold_before(self._clock())
        tiered = any(meta.tier == COLD for meta in metas)
        if not metas or not (tiered or (wish.merge_all and cold_before)):
            return None
        root = partition_dir(self._data_dir, partition.number)
        return take_census(snapshot, root, metas, partition.sealed_row, cold_before)

    def next_merge(
        self,
        snapshot: Snapshot,
        number: int,
        metas: list[SegmentMeta],
        wish: Wish,
        standing: Standing | None,
    ) -> Job | None:
        """What the merge lane does next in a partition."""
        sealed = self._sealed(snapshot, number, metas, wish, standing)
        job = None
        if standing is not None and wish.merge_all:
            # Before anything is written anew for another reason, to do it once.
            job = tiering.plan(standing.census, sealed)
        hot, cold = (tiering.of_tier(sealed, tier) for tier in (HOT, COLD))
        most = merging.MAX_SEGMENTS - min(len(cold), tiering.COLD_SEGMENTS)
        job = (
            job
            or merging.rewrite(sealed)
            or merging.merge(hot, most, seal_rows=self._builds.settings.seal_rows)
            or merging.merge(cold, tiering.COLD_SEGMENTS)
        )
        if job is None and wish.merge_all and standing is None:
            job = merging.merge_all(sealed)
        return job

    def _sealed(
        self,
        snapshot: Snapshot,
        number: int,
        metas: list[SegmentMeta],
        wish: Wish,
        standing: Standing | None,
    ) -> list[Sealed]:
        """The segments as the policy sees them."""
        erased = [
            row
            for _partition, row, _position, time_ms in snapshot.erasures_of(number)
            if wish.purge or time_ms <= self._clock() - self._purge_delay_ms()
        ]

        def holds(meta: SegmentMeta, row: int) -> bool:
            return meta.row_lo <= row < meta.row_hi

        if standing is not None:
            holds = standing.holds
        found = []
        for meta in metas:
            must = self._damages.of(number, meta.name) or any(holds(meta, row) for row in erased)
            changes = snapshot.count_changes(number, meta.position, CHANGES_MAX + 1)
            if standing is not None:
                dead = standing.dead(meta)
            elif changes:
                dead = meta.count - snapshot.count_current(number, meta.row_lo, meta.row_hi)
            else:
                dead = 0
            found.append(
                Sealed(
                    meta.name,
                    meta.row_lo,
                    meta.row_hi,
                    meta.count,
                    max(0, dead),
                    must or changes > CHANGES_MAX,
                    meta.tier,
                    self._builds.is_held(meta),
                )
            )
        return found
