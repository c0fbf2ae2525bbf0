"""Opening the LMDB environment: one fixed map, one format, one writer a directory."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, cast

import lmdb

from memsvc.domain.errors import FailedPrecondition, StoreUnreadable
from memsvc.store.keys import TABLES, U64
from memsvc.store.reader_table import ReaderTable, check_shared

MAP_SIZE: Final = 1 << 40
"""1 TiB of address space everywhere: growing a map under readers returns wrong bytes."""
MAX_READERS: Final = 1_024
STORE_FORMAT: Final = 2
"""Written when a store gets a second generation; until then it has format 1, which 0.1 reads."""
FIRST_FORMAT: Final = 1
LOCK_BYTES: Final = MAX_READERS * 64 + 4_096
"""At least the size of LMDB's reader table."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SHORT_WRITE_FREE: Final = 16 << 20
"""Free bytes below which a short write is put down to a full disk. A group of writes may need
some megabytes, and others may have freed a little since."""
LMDB_LIB: Final = 0
"""The 0.9 format. The bundled library also has 1.0; the two cannot read each other."""


UNREADABLE: Final = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.InvalidError,
    lmdb.BadTxnError,
    lmdb.ProblemError,
    lmdb.DiskError,
)
"""What LMDB raises when the file is not what it wrote."""


def unreadable(error: lmdb.Error) -> StoreUnreadable:
    """What a caller is told of it."""
    return StoreUnreadable(
        f"the database cannot be read: {error}",
        hint="the disk is failing, or the file was written to by somebody else: "
        "restore a snapshot, or make a replica the primary",
        retry_after_ms=5_000,
    )


def check_format(path: Path, data: bytes | None) -> None:
    """Raises FailedPrecondition unless this software knows the format that a store names."""
    found = 0 if data is None else U64.unpack(data)[0]
    if not FIRST_FORMAT <= found <= STORE_FORMAT:
        raise FailedPrecondition(
            f"the store in {path} has format {found}, this software knows {FIRST_FORMAT} to "
            f"{STORE_FORMAT}",
            reason="STORE_FORMAT",
            hint="use the version of memsvc that wrote it",
        )


class Env:
    """An open LMDB environment with its tables."""

    def __init__(self, path: Path, *, readonly: bool, frozen: bool = False) -> None:
        """``frozen``: a copy that nobody writes, read without a lock file beside it. Raises
        BlockingIOError when the file cannot be read together with its writer just now."""
        self.path = path
        self._table: ReaderTable | None = None
        if not readonly:
            path.mkdir(parents=True, exist_ok=True)
            self._table = ReaderTable(path, LOCK_BYTES)
        elif not frozen:
            check_shared(path)
        try:
            self.lmdb = lmdb.open(
                str(path),
                map_size=MAP_SIZE,
                max_dbs=len(TABLES) + 2,
                max_readers=MAX_READERS,
                # Pooled read transactions: beginning one is then a renewal.
                max_spare_txns=64,
                readonly=readonly,
                lock=not frozen,
                # Small partitions are read at random: readahead would drag in the whole file.
                readahead=False,
                lib_version=LMDB_LIB,
            )
            self.tables = {
                name: self.lmdb.open_db(name.encode(), create=not readonly) for name in TABLES
            }
        except BaseException:
            self._close_table()
            raise

    def close(self) -> None:
        """Closes the environment; no transaction may be open."""
        self.lmdb.close()
        self._close_table()

    def _close_table(self) -> None:
        if self._table is not None:
            self._table.close()


@contextmanager
def directory_lock(data_dir: Path) -> Iterator[int]:
    """Holds the data directory: a second writer process would block silently in LMDB. Gives
    the descriptor of the lock.

    Raises FailedPrecondition when another process has it, or it cannot be used.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        fd = os.open(data_dir / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FailedPrecondition(
            f"storage.data_dir {data_dir} cannot be used: {error.strerror}",
            reason="DATA_DIR_UNUSABLE",
            hint="it must be a directory, or a place for one, on a disk that can be written",
        ) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise FailedPrecondition(
            f"another process uses the data directory {data_dir}",
            reason="DATA_DIR_IN_USE",
            hint="stop it, or choose another storage.data_dir",
        ) from error
    try:
        yield fd
    finally:
        os.close(fd)


def no_room(error: BaseException, free_bytes: Callable[[], int]) -> bool:
    """Whether an error means that the disk, or the map, is full.

    LMDB tells of a write that the end of the disk cut short as EIO, like of a broken disk;
    ``free_bytes()`` of the disk says which it was.
    """
    if isinstance(error, lmdb.MapFullError):
        return True
    if isinstance(error, OSError):
        return error.errno in _FULL
    if isinstance(error, lmdb.Error):
        code = cast(int, getattr(error, "code", 0))
        return code in _FULL or (code == errno.EIO and free_bytes() < SHORT_WRITE_FREE)
    return False
