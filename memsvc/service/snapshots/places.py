"""Where snapshots are: a folder, or a prefix in an S3-compatible store. One port, two adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from memsvc.config.object_url import is_object_url, parse_object_url
from memsvc.domain.errors import FailedPrecondition
from memsvc.service.snapshots.manifest import SnapshotFile, SnapshotManifest

WORKSHOP: Final = "uploading"
"""Folder in a data directory where snapshots are made that are then sent away."""

Read = Callable[[SnapshotFile], Iterator[memoryview]]
"""Gives the bytes of a file in pieces. A piece is good until the next one is asked for. Raises
FileNotFoundError, OSError, MemsvcError."""


@dataclass(frozen=True, slots=True)
class Found:
    """A whole snapshot in a place. ``name`` is its folder there, "" when the place is the snapshot;
    ``where`` its path or address."""

    place: Place
    name: str
    manifest: SnapshotManifest
    where: str

    def read(self, file: SnapshotFile) -> Iterator[memoryview]:
        """The bytes of a file of its manifest; see ``Read``."""
        return self.place.read(self, file)


class Place(Protocol):
    """Holds snapshots. Every method raises OSError or, when it is another machine, Unavailable
    (SNAPSHOT_STORE_DOWN) and FailedPrecondition (SNAPSHOT_STORE_REFUSED)."""

    remote: bool
    """Another machine: it may not answer, and asking it costs."""

    def __str__(self) -> str:
        """Its path or address, by which ``place_of`` finds it again."""

    def snapshots(self, *, strict: bool = False) -> list[Found]:
        """Those that are whole, oldest first. One whose manifest cannot be read is left out,
        unless ``strict``: then FailedPrecondition."""

    def read(self, found: Found, file: SnapshotFile) -> Iterator[memoryview]:
        """The bytes of a file; see ``Read``."""

    def local(self, found: Found) -> Path | None:
        """Its folder when its files can be opened as they are, else None."""

    def put(self, name: str, manifest: SnapshotManifest, read: Read) -> Found:
        """Stores a snapshot; it is there when everything is, or not at all. Raises
        FileExistsError when the name is taken."""

    def workshop(self, name: str, data_dir: Path) -> Path:
        """The folder in which the node of ``data_dir`` makes a snapshot for this place."""

    def adopt(self, name: str, folder: Path, manifest: SnapshotManifest) -> Found:
        """Takes over what was made in the workshop."""

    def remove(self, found: Found) -> None:
        """Removes one. It is no snapshot any more from the first step on."""

    def sweep(self, is_ours: Callable[[str], bool]) -> None:
        """Removes what was begun under a name that is ours and never became whole. Only for
        the one node that stores snapshots here."""


def place_of(where: str | Path) -> Place:
    """The place of a path or an address. Raises FailedPrecondition for an address that is none,
    or when the extra for object stores is not installed."""
    from memsvc.service.snapshots.folders import FolderPlace

    if isinstance(where, Path) or not is_object_url(where):
        return FolderPlace(Path(where))
    try:
        url = parse_object_url(where)
    except ValueError as error:
        raise FailedPrecondition(f"{where}: {error}", reason="SNAPSHOT_STORE_REFUSED") from None
    try:
        from memsvc.service.snapshots.objects import ObjectPlace
    except ImportError as error:
        if error.name != "obstore":
            raise
        raise FailedPrecondition(
            "snapshots in an object store need the package obstore",
            reason="SNAPSHOT_STORE_REFUSED",
            hint="pip install 'memsvc[s3]'",
        ) from None
    return ObjectPlace(url)
