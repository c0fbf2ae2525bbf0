"""Copying a whole snapshot to another place."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import xxhash

from memsvc.domain.errors import FailedPrecondition
from memsvc.service.snapshots.manifest import SnapshotFile
from memsvc.service.snapshots.places import Found, Place


def copy_snapshot(
    source: Found,
    target: Place,
    name: str,
    progress: Callable[[int], None] = lambda _more: None,
) -> Found:
    """Copies a snapshot and compares every byte that goes with its checksums on the way.

    ``progress`` is told bytes copied since the last call, of ``source.manifest.size``. Raises
    FileExistsError, FailedPrecondition (SNAPSHOT_DAMAGED), OSError and what places raise; there
    is no snapshot of that name then.
    """

    def read(file: SnapshotFile) -> Iterator[memoryview]:
        for piece in checked(source, file):
            yield piece
            progress(len(piece))

    return target.put(name, source.manifest, read)


def checked(found: Found, file: SnapshotFile) -> Iterator[memoryview]:
    """The bytes of a file; raises FailedPrecondition (SNAPSHOT_DAMAGED), after the last piece,
    when they are not those of the manifest, or before when there is no such file."""
    digest = xxhash.xxh3_128()
    try:
        for piece in found.read(file):
            digest.update(piece)
            yield piece
    except FileNotFoundError:
        raise damaged(found.where, f"{file.path} is missing") from None
    if digest.hexdigest() != file.checksum:
        raise damaged(found.where, f"{file.path} differs from its checksum")


def damaged(where: object, why: str) -> FailedPrecondition:
    """The error for a snapshot that cannot be relied on."""
    return FailedPrecondition(
        f"the snapshot {where} is damaged: {why}",
        reason="SNAPSHOT_DAMAGED",
        hint="see memsvc verify; to restore from the others without it, move it away",
    )
