"""Reading a store that another process writes, for as long as it does.

The writer's process replaces the database file when it compacts it. The file that was open
stays readable, and stays as it was: whoever went on reading it would miss every later write.
So each read looks, after it took its snapshot, whether the file is still the one that is
there. What had been acknowledged before the read began is then in the snapshot: either it was
committed to this file, or the file had been replaced by then and this read notices.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lmdb

from memsvc.domain.errors import Unavailable
from memsvc.store.env import UNREADABLE, Env, unreadable
from memsvc.store.snapshot import Snapshot
from memsvc.store.store import OPENING_S, Store

_Identity = tuple[int, int]


class FollowingStore(Store):
    """A store opened for reading only, which notices when its file is replaced."""

    def __init__(self, data_dir: Path) -> None:
        """Raises Unavailable when there is no database; FailedPrecondition for one of
        another format."""
        self._held = threading.local()
        self._reopening = threading.Lock()
        self._identity: _Identity | None = None
        """Of the file that is open; None while none is."""
        super().__init__(data_dir, readonly=True)

    @contextmanager
    def read(self) -> Iterator[Snapshot]:
        """A snapshot that has everything that was committed when this began. Keep it short.
        Raises Unavailable when the database is gone, StoreUnreadable when it is damaged."""
        depth = getattr(self._held, "depth", 0)
        while True:
            try:
                with self._gate.shared():
                    if self._identity is not None:
                        with self.env.lmdb.begin() as txn:
                            # Inside another read of the same thread the file cannot be
                            # exchanged, and the outer read said already what this one is about.
                            if depth or _identity(self.path) == self._identity:
                                self._held.depth = depth + 1
                                try:
                                    yield Snapshot(self.env, txn)
                                finally:
                                    self._held.depth = depth
                                return
            except UNREADABLE as error:
                raise unreadable(error) from error
            self._reopen()

    def _reopen(self) -> None:
        """Opens the file that is there now, when no read of this process runs."""
        with self._reopening, self._gate.exclusive():
            if self._identity is not None and _identity(self.path) == self._identity:
                return  # another thread was first
            # Closed first: no file may be open twice in one process.
            self._identity = None
            self.env.close()
            self.env, self._identity = _open(self.path)


def _open(path: Path) -> tuple[Env, _Identity]:
    until = time.monotonic() + OPENING_S
    while True:
        before, found = _folder(path), _identity(path)
        if before is not None and found is not None:
            try:
                env = Env(path, readonly=True)
            except (OSError, lmdb.Error):
                # The lock file of one database and the data of another; or it is broken indeed.
                if time.monotonic() > until:
                    raise
            else:
                # The new file with the old reader table would do harm: the writer would not
                # know of this reader, and use pages again that it still reads.
                if (_folder(path), _identity(path)) == (before, found):
                    return env, found
                env.close()
        if time.monotonic() > until:
            raise Unavailable(
                f"there is no database in {path}",
                reason="STORE_GONE",
                hint="it was moved or deleted under the running node: put it back, or start anew",
                retry_after_ms=5_000,
            )
        time.sleep(0.002)


def _folder(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _identity(path: Path) -> _Identity | None:
    """Which file is there. The number of one that is open is not given to another."""
    try:
        data = os.stat(path / "data.mdb")
    except FileNotFoundError:
        return None
    return data.st_dev, data.st_ino
