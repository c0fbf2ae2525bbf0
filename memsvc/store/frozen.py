"""Reading a copy of a database that nobody writes: a snapshot, or a part of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memsvc.store.env import Env, check_format
from memsvc.store.snapshot import Snapshot


@contextmanager
def frozen(folder: Path) -> Iterator[Snapshot]:
    """The one state that the copy in ``folder`` (with ``data.mdb``) holds.

    No lock file is made, so the folder may be read-only; a running node must not have it open,
    since nothing would tell it of this reader. Raises FailedPrecondition for a format that this
    software does not know, lmdb.Error for a file that is none.
    """
    env = Env(folder, readonly=True, frozen=True)
    try:
        with env.lmdb.begin() as txn:
            check_format(folder, txn.get(b"format", db=env.tables["meta"]))
            yield Snapshot(env, txn)
    finally:
        env.close()
