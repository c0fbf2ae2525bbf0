"""Copying a whole snapshot to another place."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

from memsvc.domain.errors import FailedPrecondition
from memsvc.segments.files import TEMPORARY_SUFFIX, fsync_directory, fsync_tree
from memsvc.service.snapshots.manifest import (
    MANIFEST_NAME,
    SnapshotManifest,
    copy_durably,
    read_manifest,
)


def copy_snapshot(
    source: Path,
    target: Path,
    progress: Callable[[int, int], None] = lambda _more, _of: None,
) -> SnapshotManifest:
    """Copies a snapshot and compares every byte with its checksums on the way.

    ``target`` must not exist; it is made as ``.tmp`` and gets its name when it is on disk.
    ``progress`` is told bytes copied since the last call, and of how many. Raises
    FileExistsError, FailedPrecondition (NO_SNAPSHOT, SNAPSHOT_DAMAGED), OSError; nothing is left
    behind then.
    """
    if target.exists():
        raise FileExistsError(errno.EEXIST, "there is something already", str(target))
    manifest = read_manifest(source)
    work = target.with_name(target.name + TEMPORARY_SUFFIX)
    shutil.rmtree(work, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        work.mkdir(mode=0o700)
        for file in manifest.files:
            (work / file.path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            copied = copy_durably(source / file.path, work / file.path, 0o400)
            if (copied.bytes, copied.checksum) != (file.bytes, file.checksum):
                raise _damaged(source, file.path)
            progress(file.bytes, manifest.size)
        copy_durably(source / MANIFEST_NAME, work / MANIFEST_NAME, 0o400)
        fsync_tree(work)
        work.rename(target)
        fsync_directory(target.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return manifest


def _damaged(source: Path, name: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"the snapshot {source} is damaged: {name} differs from its checksum",
        reason="SNAPSHOT_DAMAGED",
        hint="take another; see memsvc verify",
    )
