"""Snapshots in an S3-compatible store.

    PREFIX/NAME/snapshot.json                   the manifest, written last, removed first
    PREFIX/NAME/store/data.mdb.00000 …          the database of one snapshot
    PREFIX/segments/P/SEGMENT/FILE@SUM.00000 …  a segment file, shared by all that list it

Files are cut into objects of 32 MiB, each sent in one request: a broken-off multipart upload would
leave parts that no listing shows, and erasure would never reach them.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from memsvc.config.object_url import ObjectUrl
from memsvc.domain.errors import FailedPrecondition, MemsvcError, Unavailable
from memsvc.service.snapshots.copying import checked
from memsvc.service.snapshots.folders import FolderPlace
from memsvc.service.snapshots.manifest import (
    MANIFEST_NAME,
    SnapshotFile,
    SnapshotManifest,
    is_snapshot_name,
    manifest_from_json,
)
from memsvc.service.snapshots.places import WORKSHOP, Found, Read

if TYPE_CHECKING:
    from obstore.store import S3Config

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 32 << 20
"""Of one object; so much memory sending and reading takes."""
SEGMENTS: Final = "segments"
REQUEST_S: Final = 60.0
RETRIES: Final = 3
RETRY_S: Final = 30.0
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_STATUS: Final = re.compile(r"status code: (\d+)")


class ObjectPlace:
    """A folder of a bucket. An address that ends in the name of a snapshot means that one."""

    remote = True

    def __init__(self, url: ObjectUrl) -> None:
        above, _, last = url.prefix.rpartition("/")
        self._only = last if is_snapshot_name(last) else ""
        self.url = replace(url, prefix=above) if self._only else url
        self._store = _connected(url)
        self._manifests: dict[str, SnapshotManifest] = {}
        """Those that were read. They are never written again."""

    def __str__(self) -> str:
        return str(self.url.below(self._only) if self._only else self.url)

    def snapshots(self, *, strict: bool = False) -> list[Found]:
        """See Place."""
        found = []
        for name in self._names():
            try:
                manifest = self._manifest(name)
            except FailedPrecondition as error:
                if strict or error.reason != "SNAPSHOT_DAMAGED":
                    raise
                continue
            if manifest is not None:
                found.append(Found(self, name, manifest, str(self.url.below(name))))
        return sorted(found, key=lambda one: (one.manifest.time, one.manifest.position))

    def read(self, found: Found, file: SnapshotFile) -> Iterator[memoryview]:
        """See Place."""
        for key, _size in self._pieces(found.name, file):
            with self._asking("read"):
                data = memoryview(obstore.get(self._store, key).bytes())
            yield data

    def local(self, found: Found) -> Path | None:
        """Nothing in it can be opened."""
        return None

    def put(self, name: str, manifest: SnapshotManifest, read: Read) -> Found:
        """Segment files that are there already are not sent again."""
        where = str(self.url.below(name))
        if self._manifest(name) is not None:
            raise FileExistsError(errno.EEXIST, "there is something already", where)
        have = self._list(SEGMENTS)
        for file in manifest.files:
            pieces = dict(self._pieces(name, file))
            if any(have.get(key) != size for key, size in pieces.items()):
                self._send(pieces, read(file))
        self._write(self._key(name, MANIFEST_NAME), manifest.to_json().encode())
        try:
            self._send_again(name, manifest, read)
        except BaseException:
            with suppress(MemsvcError, OSError):
                self._delete([self._key(name, MANIFEST_NAME)])
            raise
        self._manifests[name] = manifest
        return Found(self, name, manifest, where)

    def workshop(self, name: str, data_dir: Path) -> Path:
        """A folder of the node: the database can only be copied to a file."""
        return data_dir / WORKSHOP / name

    def adopt(self, name: str, folder: Path, manifest: SnapshotManifest) -> Found:
        """Sends it, and removes the folder."""
        made = Found(FolderPlace(folder), "", manifest, str(folder))
        try:
            return self.put(name, manifest, partial(checked, made))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def remove(self, found: Found) -> None:
        """The manifest goes first; then what nobody lists any more."""
        self._delete([self._key(found.name, MANIFEST_NAME)])
        self._manifests.pop(found.name, None)
        self._delete(self._list(found.name))
        self._drop_segments()

    def sweep(self, is_ours: Callable[[str], bool]) -> None:
        """See Place."""
        for name in self._names():
            if is_ours(name) and self._manifest(name) is None:
                log.info("removing %s, a snapshot that was not finished", self.url.below(name))
                self._delete(self._list(name))
        self._drop_segments()

    # -- objects ------------------------------------------------------------------------

    def _key(self, *parts: str) -> str:
        return "/".join((self.url.prefix, *parts) if self.url.prefix else parts)

    def _pieces(self, name: str, file: SnapshotFile) -> Iterator[tuple[str, int]]:
        """Keys and sizes of the objects of a file. One that is empty has one, too."""
        if file.path.startswith(f"{SEGMENTS}/"):
            key = self._key(f"{file.path}@{file.checksum}")
        else:
            key = self._key(name, file.path)
        for number, start in enumerate(range(0, max(1, file.bytes), PIECE_BYTES)):
            yield f"{key}.{number:05}", min(PIECE_BYTES, file.bytes - start)

    def _send(self, pieces: dict[str, int], data: Iterator[memoryview]) -> None:
        """Sends a file. Its last object is sent when all of it was read, so that one whose bytes
        are not right is never whole."""
        keys = iter(pieces)
        waiting = bytearray()
        for piece in data:
            # What is longer than it should be has no key; its checksum will tell.
            if len(waiting) >= PIECE_BYTES and (key := next(keys, "")):
                self._write(key, waiting[:PIECE_BYTES])
                del waiting[:PIECE_BYTES]
            waiting += piece
        for key in keys:
            self._write(key, waiting[:PIECE_BYTES])
            del waiting[:PIECE_BYTES]

    def _send_again(self, name: str, manifest: SnapshotManifest, read: Read) -> None:
        """A node that was primary before, or is since, may have removed segment files that no
        manifest listed yet; from now on one does."""
        have = self._list(SEGMENTS)
        for file in manifest.files:
            pieces = dict(self._pieces(name, file))
            if file.path.startswith(f"{SEGMENTS}/") and not pieces.keys() <= have.keys():
                self._send(pieces, read(file))

    def _write(self, key: str, data: bytes | bytearray) -> None:
        with self._asking("write"):
            obstore.put(self._store, key, data, use_multipart=False)

    def _names(self) -> list[str]:
        """Names below the prefix, of snapshots and of others."""
        with self._asking("list"):
            found = obstore.list_with_delimiter(self._store, self.url.prefix or None)
        names = [path.rpartition("/")[2] for path in found["common_prefixes"]]
        return [name for name in names if name != SEGMENTS and self._only in ("", name)]

    def _list(self, *below: str) -> dict[str, int]:
        """Keys and sizes of all objects of a folder."""
        with self._asking("list"):
            listed = obstore.list(self._store, self._key(*below), chunk_size=1_000)
            return {one["path"]: one["size"] for chunk in listed for one in chunk}

    def _delete(self, keys: Iterable[str]) -> None:
        if listed := list(keys):
            with self._asking("delete"):
                obstore.delete(self._store, listed)

    def _manifest(self, name: str) -> SnapshotManifest | None:
        if name not in self._manifests:
            try:
                with self._asking("read"):
                    data = bytes(obstore.get(self._store, self._key(name, MANIFEST_NAME)).bytes())
            except FileNotFoundError:
                return None
            self._manifests[name] = manifest_from_json(data, str(self.url.below(name)))
        return self._manifests[name]

    def _drop_segments(self) -> None:
        """Removes segment files that no snapshot here lists."""
        try:
            kept = self.snapshots(strict=True)
        except FailedPrecondition as error:
            # Of a later format: what it lists is not known.
            log.warning("segment files in %s are not looked through: %s", self.url, error.message)
            return
        listed = {key for one in kept for file in one.manifest.files
                  for key, _size in self._pieces(one.name, file)}  # fmt: skip
        self._delete(key for key in self._list(SEGMENTS) if key not in listed)

    @contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """What the library raises, in words for whoever runs the node."""
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._refused(f"there is no bucket {self.url.bucket!r}") from None
            raise
        except BaseError as error:
            raise self._told(what, error) from None

    def _told(self, what: str, error: BaseError) -> MemsvcError:
        # Never the whole text: it has the request in it.
        text = str(error)
        code = found[1] if (found := _CODE.search(text)) else ""
        status = int(found[1]) if (found := _STATUS.search(text)) else 0
        if code == "NoSuchBucket":
            return self._refused(f"there is no bucket {self.url.bucket!r}")
        if not _credentials_given() and ("/latest/" in text or "metadata" in text):
            return self._refused("no credentials are set")
        denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        if denied or status in (401, 403):
            return self._refused(f"the credentials may not {what} there ({code or status})")
        if 400 <= status < 500:
            return self._refused(f"it does not {what} ({code or status})")
        why = f"it answers with {code or status}" if status else "it does not answer"
        return Unavailable(
            f"the snapshot store {self.url} is down: {why}",
            reason="SNAPSHOT_STORE_DOWN",
            hint="check the endpoint and the network; the node tries again by itself",
            retry_after_ms=10_000,
        )

    def _refused(self, why: str) -> FailedPrecondition:
        return FailedPrecondition(
            f"the snapshot store {self.url} refuses: {why}",
            reason="SNAPSHOT_STORE_REFUSED",
            hint="check the address, and AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the "
            "environment of the process",
        )


def _credentials_given() -> bool:
    return any(
        os.environ.get(name)
        for name in (
            "AWS_ACCESS_KEY_ID",
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        )
    )


def _connected(url: ObjectUrl) -> S3Store:
    """Nothing is sent yet. Credentials are those of the environment, or of the machine."""
    endpoint = url.endpoint or os.environ.get("AWS_ENDPOINT_URL", "")
    config: S3Config = {}
    if url.endpoint:
        config["endpoint"] = url.endpoint
    if url.region:
        config["region"] = url.region
    return S3Store(
        url.bucket,
        config=config,
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "timeout": timedelta(seconds=REQUEST_S),
        },
        retry_config={"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)},
    )
