"""Putting files on disk so that a crash leaves either all of one or none of it."""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import xxhash

from memsvc.domain.manifest import FileMeta
from memsvc.segments.errors import BadFile, FilesUnavailable

DAMAGED_SUFFIX: Final = ".damaged"
TEMPORARY_SUFFIX: Final = ".tmp"
_CHUNK: Final = 1 << 20
_SHORTAGES: Final = frozenset(
    (
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
        errno.EINTR,
        errno.EACCES,
        errno.EPERM,
    )
)
"""Errors that tell of the process or the machine, not of the file."""


def fsync_directory(path: Path) -> None:
    """Makes the names in a folder durable: creations, renames and removals before this."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def fsync_tree(path: Path) -> None:
    """``fsync_directory`` of a folder and of all folders below it."""
    for top, _folders, _files in os.walk(path):
        fsync_directory(Path(top))


def publish(temporary: Path, final: Path) -> None:
    """Makes a finished temporary file durable and read-only, then gives it its name.

    Read-only because the file will be memory-mapped by several processes: a write into it
    would change answers or kill them.
    """
    fd = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.fchmod(fd, 0o444)
    finally:
        os.close(fd)
    temporary.rename(final)
    fsync_directory(final.parent)


def map_file(path: Path) -> mmap.mmap:
    """The whole file, mapped read-only; the mapping outlives the file's name.

    Raises BadFile when there is none, when it is empty or cannot be read; FilesUnavailable
    when the process may not open another one.
    """
    return _map(path, 1)[0]


def map_twice(path: Path) -> tuple[mmap.mmap, mmap.mmap]:
    """As `map_file`, and a second mapping of the same file for scattered reads: the kernel
    reads there only what is touched, where it otherwise may read megabytes around each page."""
    first, second = _map(path, 2)
    advise_scattered(second)
    return first, second


def advise_scattered(data: mmap.mmap) -> None:
    """Tells the kernel to read only what is touched."""
    with suppress(OSError):  # advice
        data.madvise(mmap.MADV_RANDOM)


def _map(path: Path, times: int) -> list[mmap.mmap]:
    try:
        with path.open("rb") as file:
            return [mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) for _ in range(times)]
    except FileNotFoundError:
        raise BadFile("missing") from None
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise FilesUnavailable(error.errno, error.strerror, str(path)) from error
        raise BadFile(f"cannot be mapped: {error}") from error
    except ValueError as error:
        raise BadFile(f"cannot be mapped: {error}") from error


def checksum_of(data: mmap.mmap | memoryview) -> str:
    """xxh3-128 of some bytes, in hex. About 10 GB/s when they are in memory."""
    digest = xxhash.xxh3_128()
    view = memoryview(data)
    # In pieces, so that another thread gets the interpreter in between.
    for start in range(0, len(view), _CHUNK):
        digest.update(view[start : start + _CHUNK])
    return digest.hexdigest()


def check_size(data: mmap.mmap, meta: FileMeta) -> None:
    """Raises BadFile unless the file has the size in the manifest."""
    if len(data) != meta.bytes:
        raise BadFile(f"has {len(data)} bytes, expected {meta.bytes}")


def check_whole(data: mmap.mmap, meta: FileMeta) -> None:
    """Raises BadFile unless size and checksum are those in the manifest."""
    check_size(data, meta)
    found = checksum_of(data)
    if found != meta.checksum:
        raise BadFile(f"checksum is {found}, expected {meta.checksum}")
