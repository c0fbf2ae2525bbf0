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
from itertools import islice
from pathlib import Path
from typing import Final

from memsvc.service.builder import Builder
from memsvc.store.env import Env
from memsvc.store.feed import records
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
        forget_dirt(copy)
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


def forget_dirt(copy: Env) -> None:
    """Notes that a fresh copy holds nothing that was deleted."""
    with copy.lmdb.begin(write=True) as txn:
        txn.put(b"dirty_since", U64.pack(0), db=copy.tables["meta"])


def _catch_up(store: Store, copy: Env) -> bool:
    """Applies some of the entries that the copy lacks; False when there were none."""
    with copy.lmdb.begin() as txn:
        position = Snapshot(copy, txn).position
    with store.read() as snapshot:
        found = list(islice(records(snapshot, position), _BATCH))
    if not found:
        return False
    with copy.lmdb.begin(write=True) as txn:
        target = WriteTxn(copy, txn, 0)
        for record in found:
            target.follow(record.entry, record.digest)
        target.flush()
    return True
