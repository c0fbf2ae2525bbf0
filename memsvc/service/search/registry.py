"""The partitions in use: views are made on demand and dropped when memory is needed."""

from __future__ import annotations

import resource
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from memsvc.domain.errors import Unavailable
from memsvc.domain.manifest import SegmentMeta
from memsvc.segments.columns import Indexed
from memsvc.segments.errors import FilesUnavailable
from memsvc.segments.residency import MappedFile
from memsvc.service.search.view import (
    OnDamage,
    PartitionHolder,
    PartitionView,
    StaleSnapshot,
)
from memsvc.store.keys import Partition
from memsvc.store.snapshot import Snapshot
from memsvc.store.store import Store

DESCRIPTORS_MAX: Final = 14_000
"""File descriptors of all open segments at most: 2,000 segments of one generation. Each
mapping also takes one of the 65,530 areas a process may have."""
_RETRY_MS: Final = 1_000
_ROWS_PREPARED: Final = 16
_PREPARING_PAUSE_S: Final = 0.003
"""Columns of so many rows take some 0.2 ms, so this keeps to a small share of the time, and is
done with a tail of 5,000 in a second."""
_PREPARING_S: Final = 2.0
"""Longest time for it: sealing waits."""


def descriptors_allowed() -> int:
    """File descriptors that open segments may take; as many are left for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return DESCRIPTORS_MAX
    return min(DESCRIPTORS_MAX, soft // 2)


def partition_dir(data_dir: Path, number: int) -> Path:
    """Where the segments of a partition are."""
    return data_dir / "segments" / f"{number:08x}"


class Views:
    """The views used last, within ``budget`` bytes of private memory and ``descriptors`` open
    files."""

    def __init__(self, store: Store, budget: int, indexed: Indexed) -> None:
        self.store = store
        self._indexed = indexed
        self._lock = threading.Lock()
        self._holders: OrderedDict[int, PartitionHolder] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._total = 0
        self._files: dict[int, int] = {}
        self.budget = budget
        self.descriptors = descriptors_allowed()
        self.on_damage: OnDamage = lambda _meta, _damages: None
        """Told of damaged segment files; set once, when there is somebody to tell."""
        self.on_expected: Callable[[SegmentMeta], None] = lambda _meta: None
        """Told of a segment that is about to be in the manifest: other processes prepare too."""
        self.on_replaced: Callable[[int, bool], None] = lambda _number, _drop: None
        """Told of partitions whose segments were replaced, or (True) whose view must be made
        anew: other processes must not keep the old files mapped."""

    @property
    def nbytes(self) -> int:
        """Memory taken by all views, in bytes, approximately."""
        return self._total

    @contextmanager
    def read(self, tenant: str, agent: str) -> Iterator[tuple[Snapshot, PartitionView | None]]:
        """A snapshot and the partition's view at exactly its position (None: nothing was
        ever written there)."""
        while True:
            with self.store.read() as snapshot:
                partition = snapshot.partition(tenant, agent)
                if partition is None:
                    yield snapshot, None
                    return
                holder = self._holder(partition.number)
                try:
                    view = self._view(holder, snapshot, partition)
                except StaleSnapshot:
                    continue
                self._account(partition.number, holder)
                yield snapshot, view
                return

    def drop(self, number: int) -> None:
        """Lets go of a partition's view; the next query makes it anew."""
        with self._lock:
            dropped = self._forget(number)
        del dropped  # unmaps, outside the lock
        self.on_replaced(number, True)

    def expect(self, meta: SegmentMeta) -> None:
        """A segment is about to take the place of others, or of rows of the tail: does
        beforehand, and while queries go on, what the first of them afterwards would have to
        wait for. Call it with no lock held, and ``settle`` afterwards."""
        self.on_expected(meta)
        with self._lock:
            holder = self._holders.get(meta.partition)
        if holder is None:
            return
        try:
            holder.prepare([meta])
        except FilesUnavailable:
            return  # who needs it tries again
        tail = holder.prepare_tail(meta.row_hi)
        if tail is None:
            return
        facets, rows = tail
        until = time.monotonic() + _PREPARING_S
        for count in range(_ROWS_PREPARED, len(rows) + _ROWS_PREPARED, _ROWS_PREPARED):
            if time.monotonic() > until:
                return  # the next query does the rest
            with self.store.read() as snapshot:
                facets.columns(rows[:count], snapshot)
            # It takes the interpreter from queries.
            time.sleep(_PREPARING_PAUSE_S)

    def settle(self, number: int) -> None:
        """Brings the view of a partition, if there is one, up to date after its segments were
        replaced: else an idle one would keep the old ones mapped, and the next query would
        wait for the new ones to be opened. Call it with no lock held; files are opened while
        queries go on."""
        self.on_replaced(number, False)
        with self._lock:
            holder = self._holders.get(number)
        if holder is None:
            return
        try:
            with self.store.read() as snapshot:
                metas = snapshot.segments(number)
            holder.prepare(metas)
            with self.store.read() as snapshot:
                partition = snapshot.partition_number(number)
                if partition is None:
                    self.drop(number)
                    return
                holder.at(snapshot, partition)
        except StaleSnapshot:
            # A query was here with a later snapshot, which has the new segments too; or they
            # were replaced again, and whoever did that calls this again.
            pass
        except FilesUnavailable:
            self.drop(number)
        finally:
            holder.prepare([])  # what was opened and not needed after all
        self._account(number, holder)

    def cold_files(self) -> list[list[MappedFile]]:
        """The open files of cold segments, by partition, that used longest ago first."""
        with self._lock:
            holders = list(self._holders.values())
        return [files for holder in holders if (files := holder.cold_files)]

    def clear(self) -> None:
        """Lets go of everything."""
        with self._lock:
            self._holders.clear()
            self._sizes.clear()
            self._files.clear()
            self._total = 0

    def _holder(self, number: int) -> PartitionHolder:
        with self._lock:
            holder = self._holders.get(number)
            if holder is None:
                folder = partition_dir(self.store.data_dir, number)
                holder = PartitionHolder(
                    number, folder, self._indexed, self.on_damage, self._still_there
                )
                self._holders[number] = holder
            self._holders.move_to_end(number)
            return holder

    def _view(
        self, holder: PartitionHolder, snapshot: Snapshot, partition: Partition
    ) -> PartitionView:
        """The view; when files cannot be opened, again after others were let go."""
        try:
            return holder.at(snapshot, partition)
        except FilesUnavailable:
            self._make_room(partition.number)
        try:
            return holder.at(snapshot, partition)
        except FilesUnavailable as error:
            raise Unavailable(
                f"segment files cannot be opened now: {error.strerror}",
                reason="OUT_OF_FILES",
                hint="raise the limit of open files (ulimit -n) or free memory; "
                "check the rights of the data directory",
                retry_after_ms=_RETRY_MS,
            ) from error

    def _make_room(self, number: int) -> None:
        """Lets go of that half of the views that was not used for longest, never of one."""
        with self._lock:
            others = [other for other in self._holders if other != number]
            dropped = [self._forget(other) for other in others[: -(-len(others) // 2)]]
        del dropped  # unmaps, outside the lock

    def _forget(self, number: int) -> PartitionHolder | None:
        self._total -= self._sizes.pop(number, 0)
        self._files.pop(number, None)
        return self._holders.pop(number, None)

    def _still_there(self, meta: SegmentMeta) -> bool:
        with self.store.read() as snapshot:
            # As it is: the files of a dropped generation are taken out of a segment.
            return meta in snapshot.segments(meta.partition)

    def _account(self, number: int, holder: PartitionHolder) -> None:
        size, files = holder.nbytes, holder.descriptors
        if self._sizes.get(number) == size and self._files.get(number) == files:
            return  # as it mostly is
        dropped = []
        with self._lock:
            if self._holders.get(number) is not holder:
                return
            self._total += size - self._sizes.get(number, 0)
            self._sizes[number] = size
            self._files[number] = files
            open_files = sum(self._files.values())
            while len(self._holders) > 1 and (
                self._total > self.budget or open_files > self.descriptors
            ):
                oldest = next(iter(self._holders))
                open_files -= self._files.get(oldest, 0)
                dropped.append(self._forget(oldest))
        del dropped  # unmaps, outside the lock
