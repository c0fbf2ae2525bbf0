"""Reading a copy of a database that nobody writes: a snapshot, or a part of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memsvc.domain.errors import FailedPrecondition
from memsvc.store import keys
from memsvc.store.env import STORE_FORMAT, Env
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
            data = txn.get(b"format", db=env.tables["meta"])
            found = 0 if data is None else keys.U64.unpack(data)[0]
            if found != STORE_FORMAT:
                raise FailedPrecondition(
                    f"the store in {folder} has format {found}, this software knows {STORE_FORMAT}",
                    reason="STORE_FORMAT",
                    hint="use the version of memsvc that wrote it",
                )
            yield Snapshot(env, txn)
    finally:
        env.close()
