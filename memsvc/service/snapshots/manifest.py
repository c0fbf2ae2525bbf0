"""What a snapshot folder holds, and the list of files that makes it whole."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final

import xxhash

from memsvc.domain.errors import FailedPrecondition

SNAPSHOT_FORMAT: Final = 1
MANIFEST_NAME: Final = "snapshot.json"
DATABASE: Final = "store/data.mdb"
_CHUNK: Final = 1 << 22
_NAME: Final = re.compile(r"\d{8}T\d{6}\.\d{3}Z")


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One file: path below the folder, bytes, xxh3-128 in hex."""

    path: str
    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class SnapshotManifest:
    """A whole snapshot. ``position``, ``epoch`` and ``digest`` (hex) are those of the database
    in it; ``time`` is UTC ms of when it was begun.

    ``erased_since`` is when the oldest row was erased that the segment files may still hold,
    UTC ms, 0 = none. ``missing`` are segment files that the node itself did not have any more;
    they are made again from the records.
    """

    store_id: str
    epoch: int
    position: int
    digest: str
    time: int
    files: tuple[SnapshotFile, ...]
    erased_since: int = 0
    missing: tuple[str, ...] = ()
    software: str = ""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    def to_json(self) -> str:
        """The form that is stored."""
        return json.dumps({"format": SNAPSHOT_FORMAT, **asdict(self)}, indent=1)


def name_of(time_ms: int) -> str:
    """The folder name of a snapshot of a time, UTC ms: 20261130T101500.250Z."""
    at = datetime.fromtimestamp(time_ms / 1_000, UTC)
    return f"{at:%Y%m%dT%H%M%S}.{time_ms % 1_000:03}Z"


def is_snapshot_name(name: str) -> bool:
    """Whether it is one that ``name_of`` gives."""
    return _NAME.fullmatch(name) is not None


def manifest_from_json(text: str | bytes, where: str) -> SnapshotManifest:
    """The manifest from its stored form; ``where`` is for the error.

    Raises FailedPrecondition for another format, what is none, and files outside of a snapshot:
    nobody who has a manifest need think of where its paths lead."""
    try:
        raw: dict[str, Any] = json.loads(text)
        found = raw.pop("format")
        if found != SNAPSHOT_FORMAT:
            raise FailedPrecondition(
                f"the snapshot {where} has format {found}, this software knows {SNAPSHOT_FORMAT}",
                reason="SNAPSHOT_FORMAT",
                hint="use the version of memsvc that made it",
            )
        files = tuple(SnapshotFile(**one) for one in raw.pop("files"))
        for file in files:
            check_path(file.path)
        missing = tuple(raw.pop("missing"))
        return SnapshotManifest(**raw, files=files, missing=missing)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FailedPrecondition(
            f"{where} is no snapshot: its {MANIFEST_NAME} cannot be read ({error})",
            reason="SNAPSHOT_DAMAGED",
        ) from error


def check_path(name: str) -> None:
    """Raises FailedPrecondition for a path that leads out of a snapshot's folder."""
    path = PurePosixPath(name)
    if (
        path.is_absolute()
        or ".." in path.parts
        or path.parts[:1] not in {("store",), ("segments",)}
    ):
        raise FailedPrecondition(
            f"the manifest of a snapshot names {name!r}, outside of it", reason="SNAPSHOT_DAMAGED"
        )


def read_manifest(folder: Path) -> SnapshotManifest:
    """The manifest of a snapshot folder. Raises FailedPrecondition when there is none."""
    try:
        text = (folder / MANIFEST_NAME).read_bytes()
    except OSError as error:
        raise FailedPrecondition(
            f"{folder} is no snapshot: {MANIFEST_NAME} cannot be read ({error.strerror})",
            reason="NO_SNAPSHOT",
        ) from error
    return manifest_from_json(text, str(folder))


def checksum_of(path: Path) -> str:
    """xxh3-128 of a file, in hex."""
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()


def copy_durably(source: Path, target: Path, mode: int) -> SnapshotFile:
    """Copies a file and flushes it; returns what was copied, with ``path`` empty."""
    digest, total = xxhash.xxh3_128(), 0
    buffer = memoryview(bytearray(_CHUNK))
    with source.open("rb", buffering=0) as old:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as new:
            while count := old.readinto(buffer):
                digest.update(buffer[:count])
                total += count
                rest = buffer[:count]
                while rest:
                    rest = rest[new.write(rest) :]
            os.fsync(fd)
            os.fchmod(fd, mode)
    return SnapshotFile("", total, digest.hexdigest())
