"""A compacted copy of a database whose bytes are seen once, on their way to the file."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import xxhash

from memsvc.service.snapshots.manifest import DATABASE, SnapshotFile
from memsvc.store.store import Store

_PIPE: Final = 1 << 20
"""Bytes that wait between the two threads; the most that Linux gives without privileges."""


def copy_database(
    store: Store, path: Path, grew: Callable[[int], None], *, durable: bool
) -> SnapshotFile:
    """Writes a compacted copy of the last commit to ``path``; ``grew`` is told how much of it
    is there. The checksum is computed from what passes, so nothing is read again.

    Raises OSError (no room), lmdb.Error.
    """
    receive, send = os.pipe()
    with suppress(OSError, AttributeError):  # Linux has it; without, it takes more steps
        fcntl.fcntl(send, fcntl.F_SETPIPE_SZ, _PIPE)
    failed: list[BaseException] = []

    def copy() -> None:
        try:
            store.compact_copy(send)
        except BaseException as error:
            failed.append(error)
        finally:
            os.close(send)

    thread = threading.Thread(target=copy, name="memsvc-database-copy", daemon=True)
    thread.start()
    digest, total = xxhash.xxh3_128(), 0
    buffer = memoryview(bytearray(_PIPE))
    try:
        # Closed before the copy is waited for: one whose reader failed ends by that.
        with open(receive, "rb", buffering=0) as source:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(fd, "wb", buffering=0) as target:
                grew(0)
                while count := source.readinto(buffer):
                    rest = buffer[:count]
                    digest.update(rest)
                    while rest:
                        rest = rest[target.write(rest) :]
                    total += count
                    grew(total)
                if durable and not failed:
                    os.fsync(fd)
    finally:
        thread.join()
    if failed:
        raise failed[0]
    return SnapshotFile(DATABASE, total, digest.hexdigest())
