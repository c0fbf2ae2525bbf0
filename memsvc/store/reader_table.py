"""Where LMDB's table of readers is kept: in memory, and not on the disk of the data.

Each read begins and ends with a write to that table, through a shared map of ``lock.mdb``. On a
disk that has stalled (or a frozen file system) such a write waits for the disk, and the binding
holds the interpreter meanwhile: one read, and the whole process stood still, with what it had in
memory. So ``lock.mdb`` is a link to a file of memory (memfd) that the writing process holds. It
ends with that process, so no table of an earlier one is ever joined by mistake. The processes
that read are its children, and end with it too.

Where the system has no such files ``lock.mdb`` is an ordinary file, as LMDB makes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from typing import Final

LOCK_FILE: Final = "lock.mdb"
_NAME: Final = "memsvc-readers"
_TARGET: Final = f"/memfd:{_NAME}"


class ReaderTable:
    """The table of a database that this process is about to open for writing. Make it before
    LMDB opens the database, close it after LMDB has closed it: closing any descriptor of the
    file drops the locks that the process has on it."""

    def __init__(self, path: Path, size: int) -> None:
        """``size`` bytes are taken at once: it is written through a map, where a page that
        finds no room ends the process with SIGBUS."""
        self._link = path / LOCK_FILE
        self._fd = _memory_file()
        if self._fd < 0:
            _allocate_file(self._link, size)
            return
        with contextlib.suppress(OSError):
            os.posix_fallocate(self._fd, 0, size)
        fresh = path / f"{LOCK_FILE}.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(f"/proc/{os.getpid()}/fd/{self._fd}")
        fresh.replace(self._link)

    def close(self) -> None:
        """Lets go of it."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(self._link), os.fstat(self._fd)):
                self._link.unlink()
        os.close(self._fd)
        self._fd = -1


def check_shared(path: Path) -> None:
    """Before a process that only reads opens a database: whether the table that is there is
    that of the process that writes. With another one the writer would not know of the reader,
    and use pages again that it still reads.

    Raises BlockingIOError when there is a writer, and its table is not (or not yet) there.
    """
    link = path / LOCK_FILE
    if not link.is_symlink():
        if link.exists():
            return
    elif _leads_to_memory(link):
        return
    if _written(path.parent):
        raise BlockingIOError(errno.EAGAIN, "the table of readers is not there", str(link))
    with contextlib.suppress(OSError):  # of a process that was killed
        link.unlink(missing_ok=True)


def _memory_file() -> int:
    """A descriptor; -1 where there is no such thing, or no way for another process to it."""
    if not hasattr(os, "memfd_create") or not os.path.exists(f"/proc/{os.getpid()}/fd"):
        return -1
    try:
        return os.memfd_create(_NAME, os.MFD_CLOEXEC)
    except OSError:
        return -1


def _leads_to_memory(link: Path) -> bool:
    # The process may be gone, and its number and that of the descriptor may be another's.
    try:
        return os.readlink(os.readlink(link)).startswith(_TARGET)
    except OSError:
        return False


def _written(data_dir: Path) -> bool:
    """Whether a process holds the data directory."""
    try:
        fd = os.open(data_dir / "LOCK", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def _allocate_file(lock_file: Path, size: int) -> None:
    fd = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):
            os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)
