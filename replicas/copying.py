"""Copying a snapshot of the primary into an empty data directory, with pauses if need be.

What arrives goes into ``incoming/``, hashed and flushed on the way. When everything is there and
every checksum is right, the file ``incoming/PLACE`` says so; from then on the copy is moved into
place, again after a crash.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from memsvc.replication.v1 import replication_service_pb2 as pb
from memsvc.segments.files import fsync_directory, fsync_tree
from memsvc.service.snapshots.manifest import (
    SnapshotManifest,
    checksum_of,
    manifest_from_json,
)
from replicas.landing import BrokenOff, Landing

INCOMING: Final = "incoming"
_PLACE: Final = "PLACE"
_ATTEMPT: Final = "attempt.json"
_PLACED: Final = ("segments", "store")
_SEGMENT_MODE: Final = 0o444


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
        says (what is bad is removed), FailedPrecondition for a format of later software or a path
        outside of a snapshot.
        """
        stream = iter(pieces)
        first = next(stream, None)
        if first is None or not first.snapshot:
            raise BrokenOff("no snapshot was named")
        if first.snapshot != self.snapshot:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(parents=True)
            (self._folder / _ATTEMPT).write_text(json.dumps({"snapshot": first.snapshot}))
        manifest = None
        with Landing(self._folder) as landing:
            for piece in stream:
                if piece.manifest:
                    manifest = manifest_from_json(piece.manifest, "of the primary")
                    break
                landing.take(piece)
        if manifest is None:
            raise BrokenOff("the pieces ended before the manifest came")
        self._check(manifest, landing.checksums)
        (self._folder / _PLACE).touch()
        fsync_directory(self._folder)
        place(self._data_dir)
        return manifest

    def _check(self, manifest: SnapshotManifest, checksums: dict[str, str]) -> None:
        for file in manifest.files:
            path = self._folder / file.path
            if not path.exists() or path.stat().st_size < file.bytes:
                raise BrokenOff(f"{file.path} is not whole")
            # Those without pieces were here from an earlier attempt.
            found = checksums.get(file.path) or checksum_of(path)
            if path.stat().st_size != file.bytes or found != file.checksum:
                path.unlink()
                raise BrokenOff(f"{file.path} did not arrive as it was sent")
            if path.parts[-2] != "store":
                path.chmod(_SEGMENT_MODE)
        # Segments that were merged away while the snapshot was taken.
        known = {file.path for file in manifest.files}
        for part in self.parts():
            if part.path not in known:
                path = self._folder / part.path
                path.unlink()
                with suppress(OSError):
                    path.parent.rmdir()
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
