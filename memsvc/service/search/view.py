"""A partition as of one position, brought up to date when a query asks.

``PartitionHolder.at(snapshot)`` gives the view for the snapshot's position. Views are
immutable: an advancing position makes a new one that shares what did not change, so a
running query is never disturbed and takes no lock while it searches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from memsvc.domain.manifest import COLD, SegmentMeta
from memsvc.domain.records import STATE_DTYPE
from memsvc.segments.columns import Indexed
from memsvc.segments.errors import Damage
from memsvc.segments.residency import MappedFile
from memsvc.segments.segment import Segment
from memsvc.service.search.extra import ExtraBuilder
from memsvc.service.search.mutable import Mask, from_states
from memsvc.service.search.parts import Index, Part, TailBuilder, TailFacets, changed_rows
from memsvc.store.keys import Partition
from memsvc.store.row_reads import Change
from memsvc.store.snapshot import Snapshot
from memsvc.text.tokenize import ANALYZER_VERSION

OnDamage = Callable[[SegmentMeta, tuple[Damage, ...]], None]


class StaleSnapshot(Exception):
    """The view has moved past this snapshot, or files it names are gone: take a newer one."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """What a query searches: parts of one position."""

    partition: Partition
    parts: tuple[Part, ...]


@dataclass(slots=True)
class _Sealed:
    """An open segment and its late vectors. Of a cold one: which of its rows a hot segment has
    too, which then answers for them; bool (n,), None for none."""

    meta: SegmentMeta
    part: Part
    late: dict[int, ExtraBuilder]
    elsewhere: Mask | None = None


class PartitionHolder:
    """Keeps the view of one partition current. ``segments_dir`` is the partition's."""

    def __init__(
        self,
        number: int,
        segments_dir: Path,
        indexed: Indexed,
        on_damage: OnDamage,
        still_there: Callable[[SegmentMeta], bool] = lambda _meta: True,
    ) -> None:
        self._number = number
        self._dir = segments_dir
        self._indexed = indexed
        self._on_damage = on_damage
        self._still_there = still_there
        self._lock = threading.Lock()
        self._view: PartitionView | None = None
        self._sealed: dict[str, _Sealed] = {}
        self._tail: TailBuilder | None = None
        self._generations: dict[int, int] = {}
        self._ready: dict[str, Segment] = {}
        self._next_facets: TailFacets | None = None
        self._sealed_bytes = self._descriptors = 0
        self._cold_files: list[MappedFile] = []

    @property
    def nbytes(self) -> int:
        """Memory taken by this process, in bytes, approximately."""
        return self._sealed_bytes + (self._tail.nbytes if self._tail else 0)

    @property
    def descriptors(self) -> int:
        """File descriptors of the open segments, as of the last refresh."""
        return self._descriptors

    @property
    def cold_files(self) -> list[MappedFile]:
        """The files of its cold segments, as of the last refresh."""
        return self._cold_files

    def prepare(self, metas: list[SegmentMeta]) -> None:
        """Opens segments that the next refresh will need, while queries go on with the view
        there is, and lets go of those that were opened before and not used. Raises
        FilesUnavailable."""
        with self._lock:
            missing = [meta for meta in metas if self._known(meta) is None]
            ready = self._ready
        opened = {
            meta.name: _same(ready.get(meta.name), meta) or self._open(meta) for meta in missing
        }
        with self._lock:
            self._ready = opened

    def prepare_tail(self, start: int) -> tuple[TailFacets, Index] | None:
        """For when the rows before ``start`` will have been sealed: facets whose columns are to
        be filled while queries go on with those there are, and the rows that will be in the
        tail. None when nobody asks for columns, or nothing changes for the tail."""
        with self._lock:
            tail = self._tail
            if tail is None or tail.start >= start or not tail.facets.has_columns:
                return None
            rows = tail.part.rows
            dropped = int(np.searchsorted(rows, start))
            self._next_facets = tail.facets.behind(start, dropped)
            return self._next_facets, rows[dropped:]

    def at(self, snapshot: Snapshot, partition: Partition) -> PartitionView:
        """The view for a snapshot, of which ``partition`` is the record.

        Raises StaleSnapshot when a newer snapshot has been used already, and FilesUnavailable
        when files cannot be opened now; the next call begins again.
        """
        with self._lock:
            view = self._view
            if view is not None:
                seen = view.partition
                if (seen.position, seen.manifest) == (partition.position, partition.manifest):
                    return view
                if seen.position > partition.position or seen.manifest > partition.manifest:
                    raise StaleSnapshot
            self._refresh(snapshot, partition, view)
            self._count()
            assert self._tail is not None
            # What is warm comes first: how near its best rows are spares much of what is cold.
            parts = [s.part for s in self._sealed.values() if s.meta.tier != COLD]
            parts += [s.part for s in self._sealed.values() if s.meta.tier == COLD]
            if len(self._tail.part):
                parts.append(self._tail.part)
            self._view = PartitionView(partition, tuple(parts))
            return self._view

    def _count(self) -> None:
        sealed = list(self._sealed.values())
        self._sealed_bytes = sum(
            s.part.mutable.nbytes + s.part.rows.nbytes + sum(b.nbytes for b in s.late.values())
            for s in sealed
        )
        segments = [s.part.segment for s in sealed if s.part.segment]
        self._descriptors = sum(segment.descriptors for segment in segments)
        self._cold_files = [file for segment in segments for file in segment.mapped]

    # -- becoming current --------------------------------------------------------------

    def _refresh(
        self, snapshot: Snapshot, partition: Partition, view: PartitionView | None
    ) -> None:
        generations = {g.number: g.dimension for g in snapshot.generations()}
        seen = view.partition if view else None
        if generations != self._generations:
            # The tail is read anew, for the vectors of all; files that are open stay open.
            self._generations, self._view, seen = generations, None, None
        if seen is not None and seen.position < partition.pruned:
            seen = None
        if seen is None or seen.manifest != partition.manifest:
            self._reload(snapshot, partition, seen)
            return
        assert self._tail is not None
        changes = list(snapshot.changes(self._number, seen.position))
        for sealed in self._sealed.values():
            self._apply(snapshot, sealed, changes)
        self._change_tail(snapshot, changes)
        self._tail.grow(snapshot, partition.next_row)

    def _reload(self, snapshot: Snapshot, partition: Partition, seen: Partition | None) -> None:
        """Opens new segments, lets go of old ones, and reads the tail behind them. Without
        ``seen`` all columns are made anew; files that are open stay open."""
        changes = list(snapshot.changes(self._number, seen.position)) if seen else []
        metas = snapshot.segments(self._number)
        # Before anything is changed: opening may find that the snapshot is too old.
        opened = {
            meta.name: self._opened(snapshot, meta, self._known(meta))
            for meta in metas
            if seen is None or self._known(meta) is None
        }
        kept: dict[str, _Sealed] = {}
        for meta in metas:
            sealed = kept[meta.name] = opened.get(meta.name) or self._sealed[meta.name]
            after = changes
            if meta.name in opened:
                after = list(snapshot.changes(self._number, meta.position))
            self._apply(snapshot, sealed, after)
        self._divide(snapshot, kept)
        self._sealed, self._ready = kept, {}
        if self._tail is not None and seen is not None:
            self._change_tail(snapshot, changes)
            start, facets = partition.sealed_row, self._next_facets
            if self._tail.start != start:
                fits = facets is not None and facets.start == start
                self._tail = self._tail.rebased(start, facets if fits else None)
                self._next_facets = None
        else:
            self._tail = TailBuilder(
                self._number, self._indexed, self._generations, partition.sealed_row
            )
            # They are of the rows there were, of which some may be gone.
            self._next_facets = None
        # Late vectors of tail rows stand in the same table as the others.
        self._tail.grow(snapshot, partition.next_row)

    def _divide(self, snapshot: Snapshot, kept: dict[str, _Sealed]) -> None:
        """Has each row that is in two tiers answered for by the hot one."""
        hot = [s.part.rows for s in kept.values() if s.meta.tier != COLD]
        hot_rows = np.concatenate([np.empty(0, np.int64), *hot])
        for sealed in kept.values():
            if sealed.meta.tier != COLD:
                continue
            part, before = sealed.part, sealed.elsewhere
            now = np.isin(part.rows, hot_rows, assume_unique=True)
            local = np.flatnonzero(now if before is None else now != before)
            sealed.elsewhere = now
            if len(local):
                states = snapshot.raw_states(self._number, part.rows[local].tolist()).copy()
                states[now[local]] = np.zeros((), STATE_DTYPE)  # which is not current
                sealed.part = replace(part, mutable=part.mutable.updated(local, states))

    def _opened(self, snapshot: Snapshot, meta: SegmentMeta, known: _Sealed | None) -> _Sealed:
        segment = known.part.segment if known is not None else None
        if segment is None:
            segment = _same(self._ready.pop(meta.name, None), meta) or self._open(meta)
            if segment.damaged and not self._still_there(meta):
                # Replaced since the snapshot was taken, and its files with it.
                raise StaleSnapshot
            if segment.damaged:
                self._on_damage(meta, tuple(segment.damaged))
        rows = segment.row_numbers
        if rows is None:
            # No file is sound: the rows are still in the records.
            rows, states = snapshot.state_range(self._number, meta.row_lo, meta.row_hi)
        elif segment.columns is not None:
            states = segment.columns.state
        else:
            states = snapshot.raw_states(self._number, rows.tolist())
        part = Part(meta.name, rows, from_states(states), {}, segment, None)
        return _Sealed(meta, part, {})

    def _known(self, meta: SegmentMeta) -> _Sealed | None:
        """The open segment, unless files were taken out of it since it was opened."""
        sealed = self._sealed.get(meta.name)
        return sealed if sealed is not None and sealed.meta == meta else None

    def _open(self, meta: SegmentMeta) -> Segment:
        return Segment.open(self._dir, meta, analyzer=ANALYZER_VERSION)

    def _apply(self, snapshot: Snapshot, sealed: _Sealed, changes: list[Change]) -> None:
        """Brings a segment's changing columns and late vectors up to the snapshot."""
        lo, hi = sealed.meta.row_lo, sealed.meta.row_hi
        mine = [c for c in changes if lo <= c.row < hi]
        if not mine:
            return
        rows = np.unique(np.fromiter((c.row for c in mine), np.int64))
        if sealed.elsewhere is not None:
            hidden = sealed.part.rows[sealed.elsewhere]
            rows = rows[~np.isin(rows, hidden, assume_unique=True)]
        sealed.part = changed_rows(sealed.part, rows.tolist(), snapshot, self._number)
        for row, generation in mine:
            if generation:
                self._add_late(snapshot, sealed, row, generation)

    def _add_late(self, snapshot: Snapshot, sealed: _Sealed, row: int, generation: int) -> None:
        local = int(np.searchsorted(sealed.part.rows, row))
        if local >= len(sealed.part.rows) or sealed.part.rows[local] != row:
            return
        dimension = self._generations.get(generation)
        data = snapshot.vector(generation, self._number, row)
        if dimension is None or data is None:
            return
        vectors = sealed.part.vectors(generation)
        present = None if vectors is None else vectors.present
        if vectors is not None and (present is None or present[local]):
            return
        builder = sealed.late.setdefault(generation, ExtraBuilder(dimension))
        builder.add([(local, data)])
        extra = {**sealed.part.extra, generation: builder.snapshot()}
        sealed.part = replace(sealed.part, extra=extra)

    def _change_tail(self, snapshot: Snapshot, changes: list[Change]) -> None:
        tail = self._tail
        assert tail is not None
        mine = [c for c in changes if tail.start <= c.row < tail.next_row]
        if not mine:
            return
        tail.part = changed_rows(tail.part, (c.row for c in mine), snapshot, self._number)
        late = [(c.row, c.generation) for c in mine if c.generation]
        if late:
            tail.late(snapshot, late)


def _same(segment: Segment | None, meta: SegmentMeta) -> Segment | None:
    """The segment, if it was opened with the files that it has now."""
    return segment if segment is not None and segment.meta == meta else None
