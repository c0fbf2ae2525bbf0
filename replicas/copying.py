"""Copying a snapshot of the primary into an empty data directory, with pauses if need be.

What arrives goes into ``incoming/``. When everything is there and every checksum is right, the
file ``incoming/PLACE`` says so; from then on the copy is moved into place, again after a crash.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from memsvc.domain.errors import FailedPrecondition
from memsvc.replication.v1 import replication_service_pb2 as pb
from memsvc.segments.files import fsync_directory, fsync_tree
from memsvc.service.snapshots.manifest import (
    SnapshotManifest,
    checksum_of,
    manifest_from_json,
)

INCOMING: Final = "incoming"
_PLACE: Final = "PLACE"
_ATTEMPT: Final = "attempt.json"
_PLACED: Final = ("segments", "store")
_SEGMENT_MODE: Final = 0o444


class BrokenOff(Exception):
    """The copy is not whole; it may be gone on with."""


class Incoming:
    """What a data directory has of a snapshot."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._folder = data_dir / INCOMING

    @property
    def snapshot(self) -> str:
        """Name of the snapshot that an earlier attempt has begun to copy; "" without one."""
        try:
            found: str = json.loads((self._folder / _ATTEMPT).read_bytes())["snapshot"]
        except (OSError, ValueError, KeyError):
            return ""
        return found

    def parts(self) -> list[pb.FilePart]:
        """Files and beginnings of files that are here."""
        return [
            pb.FilePart(path=path.relative_to(self._folder).as_posix(), bytes=path.stat().st_size)
            for top in _PLACED
            for path in sorted((self._folder / top).rglob("*"))
            if path.is_file()
        ]

    def receive(self, pieces: Iterable[pb.CopyResponse]) -> SnapshotManifest:
        """Takes a snapshot in; durable, checked and in place when it returns.

        Raises BrokenOff when the pieces end before the snapshot does or are not as its manifest
        says (what is bad is removed), FailedPrecondition for a format of later software.
        """
        stream = iter(pieces)
        first = next(stream, None)
        if first is None or not first.manifest:
            raise BrokenOff("no manifest came")
        manifest = manifest_from_json(first.manifest, "of the primary")
        for file in manifest.files:
            _check_path(file.path)
        if first.snapshot != self.snapshot:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
            (self._folder / _ATTEMPT).write_text(json.dumps({"snapshot": first.snapshot}))
        self._write(stream, {file.path for file in manifest.files})
        self._check(manifest)
        (self._folder / _PLACE).touch()
        fsync_directory(self._folder)
        place(self._data_dir)
        return manifest

    def _write(self, pieces: Iterable[pb.CopyResponse], known: set[str]) -> None:
        path, target = "", None
        try:
            for piece in pieces:
                if piece.path not in known:
                    raise BrokenOff(f"{piece.path} is not in the manifest")
                if piece.path != path or target is None:
                    if target is not None:
                        _finish(target)
                    path, target = piece.path, self._open(piece.path)
                if piece.offset != target.tell():
                    raise BrokenOff(f"{path}: a piece for {piece.offset} came at {target.tell()}")
                target.write(piece.data)
        finally:
            if target is not None:
                _finish(target)

    def _open(self, name: str) -> BinaryIO:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        file = os.fdopen(fd, "wb", buffering=0)
        file.seek(0, os.SEEK_END)
        return file

    def _check(self, manifest: SnapshotManifest) -> None:
        for file in manifest.files:
            path = self._folder / file.path
            if not path.exists() or path.stat().st_size < file.bytes:
                raise BrokenOff(f"{file.path} is not whole")
            if path.stat().st_size != file.bytes or checksum_of(path) != file.checksum:
                path.unlink()
                raise BrokenOff(f"{file.path} did not arrive as it was sent")
            if path.parts[-2] != "store":
                path.chmod(_SEGMENT_MODE)
        fsync_tree(self._folder)


def place(data_dir: Path) -> bool:
    """Moves a whole copy into place, if there is one; again after a crash in the middle."""
    folder = data_dir / INCOMING
    if not (folder / _PLACE).exists():
        return False
    for name in _PLACED:
        if (folder / name).exists():
            shutil.rmtree(data_dir / name, ignore_errors=True)
            (folder / name).rename(data_dir / name)
    fsync_directory(data_dir)
    shutil.rmtree(folder)
    return True


def _finish(file: BinaryIO) -> None:
    os.fsync(file.fileno())
    file.close()


def _check_path(name: str) -> None:
    path = PurePosixPath(name)
    if (
        path.is_absolute()
        or ".." in path.parts
        or path.parts[:1] not in {("store",), ("segments",)}
    ):
        raise FailedPrecondition(f"the primary's manifest names {name!r}, outside of a snapshot")
