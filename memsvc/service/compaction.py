"""Replacing the database file by a compacted copy, while the node serves.

LMDB keeps the bytes of deleted values in free pages. Only a compacted copy is rid of them,
so erasure ends here. The copy is made by the builder from one snapshot; the entries
written meanwhile are then applied to it by the very function that applied them here, and
the two digests must agree before the files are swapped. A crash at any point leaves the
old file in place (see Store._recover_swap).
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Final

from memsvc.domain.log import Effect, Entry, Payload
from memsvc.service.builder import Builder
from memsvc.store import keys
from memsvc.store.env import Env
from memsvc.store.keys import U64
from memsvc.store.snapshot import Snapshot
from memsvc.store.store import Store
from memsvc.store.write_txn import WriteTxn
from memsvc.store.writer import Writer

log = logging.getLogger(__name__)

_BATCH: Final = 200
"""Entries applied to the copy in one transaction."""


class CompactionFailed(Exception):
    """The copy does not agree with the database; the database stays as it is."""


def compact(store: Store, writer: Writer, builder: Builder) -> int:
    """Compacts the database file; returns the bytes it got smaller by.

    The caller must keep manifest changes and other local upkeep away meanwhile.
    Raises CompactionFailed, BuilderFailed, OSError (no room for the copy).
    """
    target = store.data_dir / "store.new"
    shutil.rmtree(target, ignore_errors=True)
    before = store.file_bytes()
    free = shutil.disk_usage(store.data_dir).free
    if free < before:
        raise CompactionFailed(f"{free} bytes free, up to {before} needed for the copy")
    builder.run({"job": "copy", "to": str(target)})
    copy = Env(target, readonly=False)
    try:
        _forget_dirt(copy)
        while _catch_up(store, copy):
            pass
        writer.exclusive(lambda: _finish(store, copy, target))
    except BaseException:
        copy.close()
        shutil.rmtree(target, ignore_errors=True)
        raise
    after = store.file_bytes()
    log.info("database file compacted from %d to %d bytes", before, after)
    return before - after


def _finish(store: Store, copy: Env, target: Path) -> None:
    while _catch_up(store, copy):
        pass
    with store.read() as ours, copy.lmdb.begin() as txn:
        theirs = Snapshot(copy, txn)
        if (ours.position, ours.digest) != (theirs.position, theirs.digest):
            raise CompactionFailed("the copy's log differs from the database's")
    copy.close()
    store.swap_file(target)


def _forget_dirt(copy: Env) -> None:
    """A fresh copy holds nothing that was deleted."""
    with copy.lmdb.begin(write=True) as txn:
        txn.put(b"dirty_since", U64.pack(0), db=copy.tables["meta"])


def _catch_up(store: Store, copy: Env) -> bool:
    """Applies some of the entries that the copy lacks; False when there were none."""
    with copy.lmdb.begin() as txn:
        position = Snapshot(copy, txn).position
    with store.read() as snapshot:
        found = list(entries(snapshot, position))
    if not found:
        return False
    with copy.lmdb.begin(write=True) as txn:
        target = WriteTxn(copy, txn, 0)
        for entry in found:
            target.replay(entry)
        target.flush()
    return True


def entries(snapshot: Snapshot, after: int) -> Iterator[Entry]:
    """Some entries after a position, with those payloads that are still there."""
    for position in range(after + 1, min(after + _BATCH, snapshot.position) + 1):
        found = snapshot.entry(position)
        assert found is not None
        entry = found[0]
        partition = snapshot.partition(entry.tenant, entry.agent)
        if partition is None:
            yield entry
            continue
        number = partition.number
        yield replace(
            entry,
            effects=tuple(_with_payload(snapshot, number, effect) for effect in entry.effects),
        )


def _with_payload(snapshot: Snapshot, partition: int, effect: Effect) -> Effect:
    """The effect with its payload, if it brought one that is still there."""
    if not effect.payload_hash:
        return effect
    text = snapshot.text(partition, effect.row)
    if text is None:
        return effect
    vectors = snapshot.vectors_of(partition, effect.row)
    payload = Payload(text.head, text.content, text.salt, text.dedup_key, vectors)
    return effect._replace(payload=_as_of(payload, effect.payload_hash))


def _as_of(payload: Payload, hashed: bytes) -> Payload:
    """The payload with only the vectors it had at its entry. Those that came later have
    entries of their own; stored twice they would be counted twice."""
    vectors = payload.vectors
    for count in range(len(vectors), -1, -1):
        for numbers in combinations(vectors, count):
            some = {number: vectors[number] for number in numbers}
            if keys.payload_hash(payload.salt, payload.head, payload.content, some) == hashed:
                return payload._replace(vectors=some)
    return payload
