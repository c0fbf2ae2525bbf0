"""Where the pieces of a snapshot land: files that are hashed and flushed while more arrives."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import xxhash

from memsvc.replication.v1 import replication_service_pb2 as pb
from memsvc.service.snapshots.manifest import check_path

FLUSH_BYTES: Final = 32 << 20
"""Written between two flushes, so that at the end the disk has most of it already."""
_FLUSHES: Final = 2
"""That wait at most; then arriving waits for the disk."""
_CHUNK: Final = 1 << 22


class BrokenOff(Exception):
    """The copy is not whole; it may be gone on with."""


class Landing:
    """Files below ``folder``; a context manager. Everything is on disk when it ends without an
    error, and what was written stays in any case. ``checksums`` has the xxh3-128 in hex of
    each file that pieces came for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._flusher = ThreadPoolExecutor(1, "memsvc-flush")
        self._flushes: deque[Future[None]] = deque()
        self._name = ""
        self._fd = -1
        self._size = self._flushed = 0
        self._digest = xxhash.xxh3_128()
        self.checksums: dict[str, str] = {}

    def take(self, piece: pb.CopyResponse) -> None:
        """Writes a piece. Raises BrokenOff for one that does not follow what is here,
        FailedPrecondition for a path outside of a snapshot, OSError."""
        if piece.path != self._name or piece.offset == 0:
            self._finish()
            self._open(piece.path, anew=piece.offset == 0)
        if piece.offset != self._size:
            raise BrokenOff(f"{piece.path}: a piece for {piece.offset} came at {self._size}")
        self._digest.update(piece.data)
        rest = memoryview(piece.data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        self._size += len(piece.data)
        if self._size - self._flushed >= FLUSH_BYTES:
            self._flush(os.fdatasync, self._fd)
            self._flushed = self._size

    def _open(self, name: str, *, anew: bool) -> None:
        check_path(name)
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if anew else 0)
        self._name, self._fd = name, os.open(path, flags, 0o600)
        self._digest.reset()
        self._size = 0
        while data := os.read(self._fd, _CHUNK):  # of an attempt that was broken off
            self._digest.update(data)
            self._size += len(data)
        self._flushed = self._size

    def _finish(self) -> None:
        if self._fd >= 0:
            self.checksums[self._name] = self._digest.hexdigest()
            fd, self._name, self._fd = self._fd, "", -1
            self._flush(_flush_and_close, fd)

    def _flush(self, how: Callable[[int], None], fd: int) -> None:
        self._flushes.append(self._flusher.submit(how, fd))
        while len(self._flushes) > _FLUSHES:
            self._flushes.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._finish()
        self._flusher.shutdown()
        for flush in self._flushes if error is None else ():
            flush.result()


def _flush_and_close(fd: int) -> None:
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
