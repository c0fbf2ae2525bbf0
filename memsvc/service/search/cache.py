"""Answers to repeated queries, kept for some seconds. What they depend on, and which are not
kept, is in DESIGN.md."""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, NamedTuple

from memsvc.domain.types import DegradedLevel
from memsvc.service.search.plan import CacheBounds, Plan
from memsvc.service.search.ranking import Chosen
from memsvc.store.keys import Partition
from memsvc.store.snapshot import Snapshot

LARGEST_SHARE: Final = 8
"""An answer that takes more than one such part of the room is not kept: it would drive out many."""
_ENTRY_BYTES: Final = 600
"""What an entry takes beside the hits: key, stamp, and their objects."""
_LIST_BYTES: Final = 900
"""What a list takes beside its hits: the objects of its columns."""
_HIT_BYTES: Final = 16
"""Places of a hit in the lists of heads, contents and vectors."""


class Stamp(NamedTuple):
    """What an answer was made from. Two snapshots with the same stamp hold the same memories of
    the partition in the same segments: every change of one moves its position, and every change
    of its segments the manifest. Identity and epoch, since a history that was given up may have
    had other entries under the same positions."""

    store_id: str
    epoch: int
    partition: int
    position: int
    manifest: int


def stamp_of(snapshot: Snapshot, partition: Partition) -> Stamp:
    """The stamp of a partition, of which ``partition`` is the snapshot's record."""
    return Stamp(
        snapshot.store_id,
        snapshot.epoch,
        partition.number,
        partition.position,
        partition.manifest,
    )


def key_of(plan: Plan) -> bytes | None:
    """What tells the answers of two queries apart, 32 bytes; None when the answer is not to be
    kept, nor one from before to be given.

    It is taken from the plan, so requests that say the same in different words share it, and
    two rights that differ in nothing the query asks for do not.
    """
    request, reader, include = plan.request, plan.reader, plan.request.include
    if plan.degraded.level is not DegradedLevel.NONE:
        return None
    if request.ids or request.page_token or include.explain:
        return None
    vectors = request.vectors
    # By repr: in Python 1 == 1.0 == True, which are three things in a filter.
    text = repr(
        (
            request.namespace.tenant,
            request.namespace.agent,
            int(plan.mode),
            plan.generation.number,
            plan.top_k,
            plan.min_score,
            plan.ef,
            plan.terms,
            reader.filters,
            reader.may_review,
            reader.as_of,
            reader.all_statuses,
            request.rank,
            include.content,
            include.vector,
            request.many,
            [(vector.dtype.str, len(vector)) for vector in vectors],
        )
    )
    # Cryptographic, since whoever may write a query could look for two with the same key.
    digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32)
    for vector in vectors:
        digest.update(vector.tobytes())
    return digest.digest()


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The lists of an answer before Rank, and its next page token. They hold for the ``stamp``
    and before ``until``, UTC ms, when a memory of the partition expires."""

    stamp: Stamp
    until: int
    lists: tuple[Chosen, ...]
    token: str = ""

    def owned(self) -> Kept:
        """The same in memory of its own."""
        return replace(self, lists=tuple(chosen.owned() for chosen in self.lists))

    @property
    def nbytes(self) -> int:
        """Memory taken, in bytes, approximately."""
        return _ENTRY_BYTES + len(self.token) + sum(map(_size, self.lists))


def _size(chosen: Chosen) -> int:
    hits = chosen.hits
    columns = (
        hits.rows,
        hits.states,
        hits.scores,
        hits.similarities,
        hits.words,
        hits.importance,
        chosen.stand_ins,
    )
    size = _LIST_BYTES + sum(column.nbytes for column in columns)
    size += sum(map(sys.getsizeof, hits.heads)) + _HIT_BYTES * len(hits)
    size += sum(map(sys.getsizeof, hits.contents or ()))
    # Of a vector that is a view of bytes, sys.getsizeof knows the object alone.
    size += sum(sys.getsizeof(v) + v.nbytes for v in hits.vectors or () if v is not None)
    return size


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    kept: Kept
    born: float
    nbytes: int
    bounds: CacheBounds


class ResultCache:
    """Answers by their keys. What is oldest goes first. Safe to use from several threads.
    ``clock`` gives seconds that never go back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Memory taken, in bytes, approximately."""
        return self._nbytes

    def find(self, key: bytes, stamp: Stamp, now_ms: int, bounds: CacheBounds) -> Kept | None:
        """What was kept, if it still holds: for the stamp, at ``now_ms`` (UTC), and under the
        bounds it was kept under, which are replaced when settings are reloaded."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            kept = entry.kept
            if (
                kept.stamp == stamp
                and now_ms < kept.until
                and entry.bounds is bounds
                and self._clock() - entry.born < bounds.seconds
            ):
                return kept
            self._remove(key)
            return None

    def put(self, key: bytes, kept: Kept, bounds: CacheBounds) -> None:
        """Keeps an answer, within the bounds."""
        size = kept.nbytes
        if size > bounds.nbytes // LARGEST_SHARE:
            return
        with self._lock:
            self._remove(key)
            self._entries[key] = _Entry(kept, self._clock(), size, bounds)
            self._nbytes += size
            while len(self._entries) > bounds.entries or self._nbytes > bounds.nbytes:
                self._remove(next(iter(self._entries)))

    def drop_old(self) -> None:
        """Lets go of what is past its time: memory comes back, and what was forgotten meanwhile
        is gone, when nobody asks again."""
        with self._lock:
            now = self._clock()
            # Those kept under other bounds may be in another order.
            for key in [k for k, e in self._entries.items() if now - e.born >= e.bounds.seconds]:
                self._remove(key)

    def _remove(self, key: bytes) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._nbytes -= entry.nbytes
