"""The partitions in use: views are made on demand and dropped when memory is needed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memsvc.domain.manifest import SegmentMeta
from memsvc.service.search.view import (
    OnDamage,
    PartitionHolder,
    PartitionView,
    StaleSnapshot,
)
from memsvc.store.snapshot import Snapshot
from memsvc.store.store import Store


def partition_dir(data_dir: Path, number: int) -> Path:
    """Where the segments of a partition are."""
    return data_dir / "segments" / f"{number:08x}"


class Views:
    """Least-recently-used views within ``budget`` bytes of private memory."""

    def __init__(self, store: Store, budget: int, attributes: tuple[str, ...]) -> None:
        self._store = store
        self._attributes = attributes
        self._lock = threading.Lock()
        self._holders: OrderedDict[int, PartitionHolder] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._total = 0
        self.budget = budget
        self.on_damage: OnDamage = lambda _meta, _damages: None
        """Told of damaged segment files; set once, when there is somebody to tell."""

    @property
    def nbytes(self) -> int:
        """Memory taken by all views, in bytes, approximately."""
        return self._total

    @contextmanager
    def read(self, tenant: str, agent: str) -> Iterator[tuple[Snapshot, PartitionView | None]]:
        """A snapshot and the partition's view at exactly its position (None: nothing was
        ever written there)."""
        while True:
            with self._store.read() as snapshot:
                partition = snapshot.partition(tenant, agent)
                if partition is None:
                    yield snapshot, None
                    return
                holder = self._holder(partition.number)
                try:
                    view = holder.at(snapshot, partition)
                except StaleSnapshot:
                    continue
                self._account(partition.number, holder)
                yield snapshot, view
                return

    def drop(self, number: int) -> None:
        """Lets go of a partition's view; the next query makes it anew."""
        with self._lock:
            self._holders.pop(number, None)
            self._total -= self._sizes.pop(number, 0)

    def clear(self) -> None:
        """Lets go of everything."""
        with self._lock:
            self._holders.clear()
            self._sizes.clear()
            self._total = 0

    def _holder(self, number: int) -> PartitionHolder:
        with self._lock:
            holder = self._holders.get(number)
            if holder is None:
                folder = partition_dir(self._store.data_dir, number)
                holder = PartitionHolder(
                    number, folder, self._attributes, self.on_damage, self._still_there
                )
                self._holders[number] = holder
            self._holders.move_to_end(number)
            return holder

    def _still_there(self, meta: SegmentMeta) -> bool:
        with self._store.read() as snapshot:
            return any(s.name == meta.name for s in snapshot.segments(meta.partition))

    def _account(self, number: int, holder: PartitionHolder) -> None:
        size = holder.nbytes
        with self._lock:
            if number not in self._holders:
                return
            self._total += size - self._sizes.get(number, 0)
            self._sizes[number] = size
            while self._total > self.budget and len(self._holders) > 1:
                oldest, _ = self._holders.popitem(last=False)
                self._total -= self._sizes.pop(oldest, 0)
