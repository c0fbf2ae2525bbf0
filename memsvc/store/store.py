"""The store of a node: opening, reading, and replacing the database file."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from memsvc.store import keys
from memsvc.store.env import (
    FIRST_FORMAT,
    UNREADABLE,
    Env,
    check_format,
    directory_lock,
    no_room,
    unreadable,
)
from memsvc.store.snapshot import Snapshot
from memsvc.store.write_txn import UNSETTLED, WriteTxn

OPENING_S: Final = 10.0
"""Longest time in which the database may be missing or half replaced. Between the two renames
of a replacement it is so for microseconds."""


class Store:
    """An open store. Readers take snapshots; the one writer takes write transactions.

    ``new_id`` gives the 16 random bytes that identify a store when it is created. ``follower``:
    entries come from another node, and none may be appended.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        readonly: bool = False,
        new_id: Callable[[], bytes] | None = None,
        follower: bool = False,
    ) -> None:
        self.data_dir = data_dir
        self.follower = follower
        self.path = data_dir / "store"
        self._gate = _Gate()
        self._lock_fd = -1
        with ExitStack() as stack:
            if not readonly:
                self._lock_fd = stack.enter_context(directory_lock(data_dir))
                self._recover_swap()
            self.env = _open_unmoved(self.path) if readonly else Env(self.path, readonly=False)
            # A lambda: the environment may have been replaced by then.
            stack.callback(lambda: self.env.close())  # noqa: PLW0108
            if not readonly:
                self._initialise((new_id or (lambda: os.urandom(16)))())
            with self.read() as snapshot:
                self.store_id = snapshot.store_id
            self._check_format()
            self._stack = stack.pop_all()

    @property
    def in_place(self) -> bool:
        """Whether the data directory is still the one that was opened. One that was moved or
        deleted takes writes as before, and they are gone with the process."""
        if self._lock_fd < 0:
            return True
        try:
            there = os.stat(self.data_dir / "LOCK")
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._lock_fd))

    def close(self) -> None:
        """Closes the environment and gives the directory up. Waits for running reads."""
        with self._gate.exclusive():
            self._stack.close()

    def _initialise(self, store_id: bytes) -> None:
        table = self.env.tables["meta"]
        with self.env.lmdb.begin(write=True) as txn:
            if txn.get(b"format", db=table) is None:
                txn.put(b"format", keys.U64.pack(FIRST_FORMAT), db=table)
                txn.put(b"store_id", store_id.hex().encode(), db=table)
                txn.put(b"epoch", keys.U64.pack(1), db=table)

    def _check_format(self) -> None:
        with self.env.lmdb.begin() as txn:
            check_format(self.path, txn.get(b"format", db=self.env.tables["meta"]))

    # -- reading and writing -----------------------------------------------------------

    @contextmanager
    def read(self) -> Iterator[Snapshot]:
        """A snapshot of the last commit. Keep it short: old pages wait for it. Raises
        StoreUnreadable when the file is damaged."""
        try:
            with self._gate.shared(), self.env.lmdb.begin() as txn:
                yield Snapshot(self.env, txn)
        except UNREADABLE as error:
            raise unreadable(error) from error

    @contextmanager
    def write(self, now_ms: int) -> Iterator[WriteTxn]:
        """A write transaction, committed with fsync at the end, aborted by an exception."""
        with self._gate.shared(), self.env.lmdb.begin(write=True) as txn:
            inner = WriteTxn(self.env, txn, now_ms, appends=not self.follower)
            yield inner
            inner.flush()

    def unsettled(self) -> bool:
        """Whether the last writer may have acknowledged what it did not commit: it wrote
        lazily and did not stop in order."""
        with self._gate.shared(), self.env.lmdb.begin() as txn:
            return txn.get(UNSETTLED, db=self.env.tables["meta"]) is not None

    def set_unsettled(self, unsettled: bool) -> None:
        """Puts that mark, or takes it away; on disk when this returns."""
        with self.write(0) as txn:
            txn.set_unsettled(unsettled)

    def reader_check(self) -> int:
        """Frees the slots of readers that died; without it the file grows."""
        with self._gate.shared():
            return self.env.lmdb.reader_check()

    def no_room(self, error: BaseException) -> bool:
        """Whether a failure means that the disk, or the map, is full."""
        return no_room(error, lambda: shutil.disk_usage(self.data_dir).free)

    def file_bytes(self) -> int:
        """Size of the database file on disk."""
        return (self.path / "data.mdb").stat().st_size

    # -- replacing the file ------------------------------------------------------------

    def compact_copy(self, fd: int) -> None:
        """Writes a compacted copy of the last commit to a file descriptor. It holds no
        byte of anything deleted."""
        with self._gate.shared():
            self.env.lmdb.copyfd(fd, compact=True)

    def swap_file(self, replacement: Path) -> None:
        """Puts another database directory in place of this one, while no read runs.

        Two renames; ``_recover_swap`` finishes or undoes what a crash leaves between.
        """
        with self._gate.exclusive():
            old = self.data_dir / "store.old"
            self.env.close()
            os.rename(self.path, old)
            os.rename(replacement, self.path)
            _fsync_dir(self.data_dir)
            self.env = Env(self.path, readonly=False)
        _remove_database(old)

    def _recover_swap(self) -> None:
        old, new = self.data_dir / "store.old", self.data_dir / "store.new"
        if old.exists() and not self.path.exists():
            # Crashed between the renames; the replacement is complete, but so is the old.
            os.rename(old, self.path)
        for leftover in (old, new):
            if leftover.exists():
                _remove_database(leftover)
        _fsync_dir(self.data_dir)


def _open_unmoved(path: Path) -> Env:
    """Opens a database that another process may just be replacing. The new file with the
    old reader table would do harm: the writer would not know of this reader, and use pages
    again that it still reads."""
    until = time.monotonic() + OPENING_S
    while True:
        before = path.stat().st_ino
        try:
            env = Env(path, readonly=True)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.002)
            continue
        if path.exists() and path.stat().st_ino == before:
            return env
        env.close()


def _remove_database(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


def _fsync_dir(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class _Gate:
    """Many may pass, or one alone: lets the database file be replaced under readers."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._inside = 0
        self._closed = False
        self._holders = threading.local()

    @contextmanager
    def shared(self) -> Iterator[None]:
        depth = getattr(self._holders, "depth", 0)
        with self._lock:
            # A thread that is inside may enter again, or it would wait for itself.
            while self._closed and depth == 0:
                self._lock.wait()
            self._inside += 1
        self._holders.depth = depth + 1
        try:
            yield
        finally:
            self._holders.depth = depth
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._lock.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._lock:
            while self._closed:
                self._lock.wait()
            self._closed = True
            while self._inside:
                self._lock.wait()
        try:
            yield
        finally:
            with self._lock:
                self._closed = False
                self._lock.notify_all()
