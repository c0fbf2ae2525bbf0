"""Taking a snapshot of a store that is written to meanwhile.

Only mechanism: what is taken when, and what is kept, is up to the caller. It needs nothing but
an open store, also one opened for reading in another process.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from memsvc.domain.manifest import FileMeta, SegmentMeta
from memsvc.segments.files import TEMPORARY_SUFFIX, fsync_directory, fsync_tree
from memsvc.service.search.registry import partition_dir
from memsvc.service.snapshots.manifest import (
    DATABASE,
    MANIFEST_NAME,
    SnapshotFile,
    SnapshotManifest,
    copy_durably,
)
from memsvc.service.snapshots.piping import copy_database
from memsvc.store.frozen import frozen
from memsvc.store.store import Store
from memsvc.version import __version__

TRIES: Final = 4
"""Copies of the database made at most, until none of its segments went away meanwhile."""


class Watcher(Protocol):
    """Told of what a snapshot in the making has already."""

    def __call__(self, path: str, size: int, whole: bool) -> None:
        """The first ``size`` bytes of a file are there; ``whole``: no more will come. Fewer bytes
        than before: it was begun anew."""


def take(
    store: Store,
    folder: Path,
    *,
    now_ms: int,
    keep_free: int = 0,
    share: bool = True,
    progress: Callable[[int], None] = lambda _bytes: None,
) -> SnapshotManifest:
    """Makes ``folder`` a snapshot of one committed state of the store.

    ``folder`` must not exist; it is made beside as ``.tmp`` and gets its name when everything
    is on disk, so a crash leaves a whole snapshot or a ``.tmp`` folder. ``now_ms`` (UTC ms) is
    kept in the manifest; ``keep_free`` bytes of the disk are left; ``progress`` is told the
    bytes that were put on disk. With ``share`` segment files are hard links where that is possible,
    else always copies, whose bytes are compared with their checksums.

    Raises FileExistsError; OSError with ENOSPC when there is no room, before or in the middle;
    other OSErrors. Nothing is left behind by an error.
    """
    if folder.exists():
        raise FileExistsError(errno.EEXIST, "there is something already", str(folder))
    work = folder.with_name(folder.name + TEMPORARY_SUFFIX)
    shutil.rmtree(work, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _check_room(store, folder.parent, keep_free, share)
    try:
        manifest = _Taking(store, work, now_ms, share, _Counting(progress)).take()
        _write_durably(work / MANIFEST_NAME, manifest.to_json().encode())
        fsync_tree(work)
        work.rename(folder)
        fsync_directory(folder.parent)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return manifest


def take_for_a_while(
    store: Store, folder: Path, *, now_ms: int, watch: Watcher
) -> SnapshotManifest:
    """As ``take``, for a snapshot that is read while it is made and not kept: nothing waits for
    the disk, ``folder`` has its name from the beginning, and the manifest is only returned.

    Files that turn out not to belong to it are removed at the end. Raises as ``take``.
    """
    _check_room(store, store.data_dir, 0, True)
    try:
        return _Taking(store, folder, now_ms, True, watch, durable=False).take()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


class _Counting:
    """A watcher that tells how many bytes more there are."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress = progress
        self._sizes: dict[str, int] = {}

    def __call__(self, path: str, size: int, whole: bool) -> None:
        self._progress(max(0, size - self._sizes.get(path, 0)))
        self._sizes[path] = size


def _check_room(store: Store, parent: Path, keep_free: int, share: bool) -> None:
    """Before anything is written: a snapshot must not be what fills the disk of the node."""
    needed = store.file_bytes() + keep_free
    if not share or os.stat(parent).st_dev != os.stat(store.data_dir).st_dev:
        with store.read() as snapshot:
            needed += snapshot.segment_bytes
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise OSError(
            errno.ENOSPC, f"{free} bytes free, up to {needed} needed for a snapshot", str(parent)
        )


class _Taking:
    """One snapshot in the making, in the folder ``work``."""

    def __init__(
        self,
        store: Store,
        work: Path,
        now_ms: int,
        share: bool,
        watch: Watcher,
        *,
        durable: bool = True,
    ) -> None:
        self._store = store
        self._work = work
        self._now = now_ms
        self._linked = share
        self._watch = watch
        self._durable = durable
        self._files: dict[str, SnapshotFile] = {}

    def take(self) -> SnapshotManifest:
        (self._work / "store").mkdir(parents=True, mode=0o700)
        # Files first: what is linked here cannot go away while the database is copied, which
        # may take minutes. Only segments that both came and went in that time are missed.
        with self._store.read() as snapshot:
            present = list(snapshot.all_segments())
        for meta in present:
            self._collect(meta)
        for tries in range(1, TRIES + 1):
            database = copy_database(
                self._store, self._work / DATABASE, self._database_grew, durable=self._durable
            )
            with frozen(self._work / "store") as copy:
                metas = list(copy.all_segments())
                missing = [name for meta in metas for name in self._collect(meta)]
                if missing and tries < TRIES:
                    continue
                self._watch(DATABASE, database.bytes, True)
                self._drop_all_but(metas)
                erased = [time for _p, _r, _at, time in copy.erasures(1 << 62)]
                return SnapshotManifest(
                    store_id=copy.store_id,
                    epoch=copy.epoch,
                    position=copy.position,
                    digest=copy.digest.hex(),
                    time=self._now,
                    files=(database, *(self._files[name] for name in sorted(self._files))),
                    erased_since=min(erased, default=0),
                    # Files that are damaged are set aside by the node until they are rebuilt.
                    missing=tuple(sorted(missing)),
                    software=__version__,
                )
        raise AssertionError("unreachable: the last try returns")

    def _database_grew(self, size: int) -> None:
        self._watch(DATABASE, size, False)

    def _collect(self, meta: SegmentMeta) -> list[str]:
        """Takes what is not yet taken of a segment; returns the paths that are not there."""
        source = partition_dir(self._store.data_dir, meta.partition) / meta.name
        target = partition_dir(self._work, meta.partition) / meta.name
        missing = []
        for file in meta.files:
            name = (target / file.name).relative_to(self._work).as_posix()
            if name in self._files:
                continue
            target.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                shared = self._linked and _link(source / file.name, target / file.name)
                if not shared and not _copy(source / file.name, target / file.name, file):
                    missing.append(name)  # gone bad; the node will find it too
                    continue
            except FileNotFoundError:
                missing.append(name)
                continue
            self._files[name] = SnapshotFile(name, file.bytes, file.checksum)
            self._watch(name, file.bytes, True)
        return missing

    def _drop_all_but(self, metas: list[SegmentMeta]) -> None:
        """Removes segments that were replaced while the database was copied."""
        kept = {partition_dir(self._work, meta.partition) / meta.name for meta in metas}
        for folder in (self._work / "segments").glob("*/*"):
            if folder not in kept:
                shutil.rmtree(folder)
        self._files = {
            name: file for name, file in self._files.items() if (self._work / name).parent in kept
        }


def _link(source: Path, target: Path) -> bool:
    """Gives the file a second name, False where that cannot be.

    Segment files are never written again. The checksum is the one they were built with, so
    that a file which has gone bad since is found by whoever checks the snapshot.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        return False
    return True


def _copy(source: Path, target: Path, file: FileMeta) -> bool:
    """Copies the file; False, and no copy, when its bytes are not those it was built with."""
    if copy_durably(source, target, 0o444).checksum == file.checksum:
        return True
    target.unlink()
    return False


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
