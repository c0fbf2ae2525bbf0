"""Snapshots in a folder, each in a folder of its own."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from memsvc.domain.errors import FailedPrecondition
from memsvc.segments.files import TEMPORARY_SUFFIX, fsync_directory, fsync_tree
from memsvc.service.snapshots.manifest import (
    MANIFEST_NAME,
    SnapshotFile,
    SnapshotManifest,
    read_manifest,
)
from memsvc.service.snapshots.places import Found, Read

log = logging.getLogger(__name__)

_CHUNK: Final = 1 << 22


class FolderPlace:
    """Snapshots that are the folder or stand in it. It need not exist."""

    remote = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    def snapshots(self, *, strict: bool = False) -> list[Found]:
        """See Place."""
        found = []
        children = sorted(self.folder.iterdir()) if self.folder.is_dir() else []
        for path in (self.folder, *children):
            if path.name.endswith(TEMPORARY_SUFFIX) or not (path / MANIFEST_NAME).is_file():
                continue
            try:
                name = "" if path == self.folder else path.name
                found.append(Found(self, name, read_manifest(path), str(path)))
            except FailedPrecondition:
                if strict:
                    raise
        return sorted(found, key=lambda one: (one.manifest.time, one.manifest.position))

    def read(self, found: Found, file: SnapshotFile) -> Iterator[memoryview]:
        """See Place."""
        buffer = memoryview(bytearray(_CHUNK))
        with (self.folder / found.name / file.path).open("rb", buffering=0) as source:
            while count := source.readinto(buffer):
                yield buffer[:count]

    def local(self, found: Found) -> Path | None:
        """See Place."""
        return self.folder / found.name

    def put(self, name: str, manifest: SnapshotManifest, read: Read) -> Found:
        """Made as ``.tmp``; it gets its name when it is on disk."""
        target = self.folder / name
        if target.exists():
            raise FileExistsError(errno.EEXIST, "there is something already", str(target))
        work = target.with_name(target.name + TEMPORARY_SUFFIX)
        shutil.rmtree(work, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            work.mkdir(mode=0o700)
            for file in manifest.files:
                (work / file.path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write_durably(work / file.path, read(file), 0o400)
            text = memoryview(manifest.to_json().encode())
            write_durably(work / MANIFEST_NAME, iter([text]), 0o400)
            fsync_tree(work)
            work.rename(target)
            fsync_directory(self.folder)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        return Found(self, name, manifest, str(target))

    def workshop(self, name: str, data_dir: Path) -> Path:
        """The place itself: segment files can be linked."""
        return self.folder / name

    def adopt(self, name: str, folder: Path, manifest: SnapshotManifest) -> Found:
        """It is in its place."""
        return Found(self, name, manifest, str(folder))

    def remove(self, found: Found) -> None:
        """Under another name first: what is half removed must not pass for a snapshot."""
        path = self.folder / found.name
        gone = path.with_name(path.name + TEMPORARY_SUFFIX)
        with contextlib.suppress(FileNotFoundError):  # another node of the store was faster
            path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def sweep(self, is_ours: Callable[[str], bool]) -> None:
        """See Place."""
        for child in self.folder.iterdir() if self.folder.is_dir() else ():
            name = child.name.removesuffix(TEMPORARY_SUFFIX)
            if name != child.name and is_ours(name):
                log.info("removing %s, a snapshot that was not finished", child)
                shutil.rmtree(child, ignore_errors=True)


def write_durably(path: Path, pieces: Iterator[memoryview], mode: int) -> None:
    """Writes a file and flushes it. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb", buffering=0) as new:
        for piece in pieces:
            rest = piece
            while rest:
                rest = rest[new.write(rest) :]
        os.fsync(fd)
        os.fchmod(fd, mode)
