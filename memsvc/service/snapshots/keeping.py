"""Snapshots on schedule: when one is taken, and which are kept.

Three wishes meet: one every ``storage.snapshot_interval_min``, the last ``snapshot_keep`` of them,
and none that holds what was erased longer ago than ``lifecycle.purge_within_hours``. See DESIGN.md.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from memsvc.config import Settings
from memsvc.domain.errors import FailedPrecondition, Unavailable
from memsvc.segments.files import TEMPORARY_SUFFIX
from memsvc.service.builder import Builder, BuilderFailed
from memsvc.service.snapshots.logs import digest_at, first_erasure
from memsvc.service.snapshots.manifest import (
    SnapshotManifest,
    manifest_from_json,
    snapshots_in,
)
from memsvc.store.store import Store

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 5.0
RETRY_S: Final = 60.0
"""Pause after one could not be taken."""
_SCAN: Final = 1_000
"""Entries looked at in one read, so that old pages are not held."""
_NAME: Final = re.compile(r"\d{8}T\d{6}\.\d{3}Z")

Kept = tuple[Path, SnapshotManifest]


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """Where snapshots are, how often one is taken (ms, 0 = only when asked for), how many are
    kept, when what was erased must be gone (ms), and the free bytes they must leave."""

    folder: Path
    interval_ms: int
    keep: int
    purge_ms: int
    keep_free: int


def snapshot_settings(settings: Settings) -> SnapshotSettings:
    """From the configuration."""
    storage = settings.storage
    return SnapshotSettings(
        Path(storage.snapshot_dir) if storage.snapshot_dir else storage.data_dir / "snapshots",
        storage.snapshot_interval_min * 60_000,
        storage.snapshot_keep,
        int(settings.lifecycle.purge_within_hours * 3_600_000),
        storage.reserve_bytes,
    )


def name_of(time_ms: int) -> str:
    """The folder name of a snapshot of a time, UTC ms: 20261130T101500.250Z."""
    at = datetime.fromtimestamp(time_ms / 1_000, UTC)
    return f"{at:%Y%m%dT%H%M%S}.{time_ms % 1_000:03}Z"


class Snapshots:
    """Takes and keeps the snapshots of a node. ``clock`` gives UTC ms; ``on_taken`` is told
    whether one succeeded and the seconds it took."""

    def __init__(
        self,
        store: Store,
        settings: SnapshotSettings,
        *,
        clock: Callable[[], int],
        builders: Callable[[Path], Builder],
        on_taken: Callable[[bool, float], None] = lambda _ok, _seconds: None,
    ) -> None:
        self._store = store
        self.settings = settings
        self._clock = clock
        self._on_taken = on_taken
        # A process at the lowest priority: a copy in this one would hold up what serves.
        self._builder = builders(store.data_dir)
        self._taking = threading.Lock()
        self._stopping = threading.Event()
        self._started = clock()
        self._not_before = 0.0
        self._clean_to: dict[Path, int] = {}
        """Positions up to which the log behind a snapshot is known to erase nothing."""
        self.last_time = 0
        """When the newest was current, UTC ms; 0 = there is none."""
        self._thread = threading.Thread(target=self._run, name="memsvc-snapshots", daemon=True)

    def start(self) -> None:
        """Begins to take them on schedule."""
        self._sweep()
        self._thread.start()

    def stop(self) -> None:
        """Ends at once; a snapshot in the making is left as a .tmp folder."""
        self._stopping.set()
        self._builder.stop()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            try:
                self.tick()
            except Exception:
                if not self._stopping.is_set():
                    log.exception("snapshots were not looked after; it is tried again")

    def _sweep(self) -> None:
        folder = self.settings.folder
        for child in folder.iterdir() if folder.is_dir() else ():
            name = child.name.removesuffix(TEMPORARY_SUFFIX)
            if name != child.name and _NAME.fullmatch(name):
                log.info("removing %s, a snapshot that was not finished", child)
                shutil.rmtree(child, ignore_errors=True)

    # -- what there is ------------------------------------------------------------------

    def kept(self) -> list[Kept]:
        """Those of this store, oldest first."""
        found = snapshots_in(self.settings.folder)
        return [
            one
            for one in found
            if one[1].store_id == self._store.store_id and _NAME.fullmatch(one[0].name)
        ]

    def tick(self) -> None:
        """One look: takes what is due, removes what is too old, too many or holds too much."""
        kept = self.kept()
        if kept:
            self.last_time = max(self.last_time, kept[-1][1].time)
        now, settings = self._clock(), self.settings
        stale = {path for path, manifest in kept if self._is_stale(path, manifest, now, 3 / 4)}
        wanted = bool(settings.interval_ms) and self._is_due(kept, now)
        # One that is clean takes the place of those that are not, when there will be one.
        wanted = wanted or (len(stale) == len(kept) > 0 and self._would_be_clean(now))
        if wanted and time.monotonic() >= self._not_before:
            try:
                self.take()
            except (BuilderFailed, OSError) as error:
                if self._stopping.is_set():
                    return
                log.error("no snapshot was taken: %s", error)
                self._not_before = time.monotonic() + RETRY_S
            kept = self.kept()
        self._drop(kept, stale, now)

    def _is_due(self, kept: list[Kept], now: int) -> bool:
        last = max(self.last_time, self._started) if not kept else self.last_time
        if now - last < self.settings.interval_ms:
            return False
        if kept:
            with self._store.read() as snapshot:
                same = (snapshot.epoch, snapshot.position, snapshot.digest.hex())
            newest = kept[-1][1]
            if same == (newest.epoch, newest.position, newest.digest):
                self.last_time = now  # nothing was written since
                return False
        return True

    def take(self) -> Kept:
        """Takes one now. Raises BuilderFailed, OSError (no room)."""
        with self._taking:
            started = time.monotonic()
            now = self._clock()
            path = self.settings.folder / name_of(now)
            while path.exists():
                now += 1
                path = self.settings.folder / name_of(now)
            job = {"job": "snapshot", "to": str(path), "time": now}
            try:
                done = self._builder.run({**job, "keep_free": self.settings.keep_free})
                manifest = manifest_from_json(json.dumps(done), str(path))
            except (BuilderFailed, OSError, FailedPrecondition):
                self._on_taken(False, time.monotonic() - started)
                raise
            finally:
                # Killed in the middle of its work it leaves this.
                shutil.rmtree(path.with_name(path.name + TEMPORARY_SUFFIX), ignore_errors=True)
                self._builder.rest()
            seconds = time.monotonic() - started
            self.last_time = now
            self._on_taken(True, seconds)
            log.info(
                "snapshot %s of position %d: %d bytes in %.1f s",
                path, manifest.position, manifest.size, seconds,
            )  # fmt: skip
            return path, manifest

    def take_now(self) -> Kept:
        """As take(), for a caller from outside, and removes those that are too many. Raises
        Unavailable."""
        try:
            taken = self.take()
        except (BuilderFailed, OSError) as error:
            raise Unavailable(
                f"no snapshot was taken: {error}",
                reason="SNAPSHOT_FAILED",
                hint="the log of the node has the details; most often it is disk space",
                retry_after_ms=10_000,
            ) from error
        self._drop(self.kept(), set(), self._clock())
        return taken

    # -- what must go -------------------------------------------------------------------

    def _drop(self, kept: list[Kept], stale: set[Path], now: int) -> None:
        clean = any(path not in stale for path, _ in kept)
        for path, manifest in kept[: -self.settings.keep]:
            self._remove(path, manifest, "there are newer ones")
        for path, manifest in kept[-self.settings.keep :]:
            if path in stale and clean:
                self._remove(path, manifest, "it holds what was erased since")
            elif path in stale and self._is_stale(path, manifest, now, 1):
                log.warning("no snapshot is left that could take the place of %s", path)
                self._remove(path, manifest, "it holds what was erased too long ago")

    def _remove(self, path: Path, manifest: SnapshotManifest, why: str) -> None:
        log.info("removing snapshot %s of position %d: %s", path, manifest.position, why)
        self._clean_to.pop(path, None)
        # Under another name first: what is half removed must not pass for a snapshot.
        gone = path.with_name(path.name + TEMPORARY_SUFFIX)
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    def _is_stale(self, path: Path, manifest: SnapshotManifest, now: int, share: float) -> bool:
        """Whether it may hold what was erased longer ago than a share of what is allowed."""
        until = now - int(share * self.settings.purge_ms)
        if manifest.erased_since:
            return manifest.erased_since <= until
        if manifest.time > until:
            return False  # nothing that it holds was erased before it was taken
        return 0 < self._first_erasure(path, manifest) <= until

    def _first_erasure(self, path: Path, manifest: SnapshotManifest) -> int:
        """Time of the first erasure behind a snapshot, 0 when there was none."""
        at = self._clean_to.get(path, manifest.position)
        with self._store.read() as snapshot:
            if digest_at(snapshot, manifest.position).hex() != manifest.digest:
                # Of a history that was given up: nobody can tell what of it was erased when.
                return manifest.time
        while not self._stopping.is_set():
            with self._store.read() as snapshot:
                end = min(snapshot.position, at + _SCAN)
                found = first_erasure(snapshot, range(at + 1, end + 1))
            if found or end == at:
                return found
            self._clean_to[path] = at = end
        return 0

    def _would_be_clean(self, now: int) -> bool:
        """Whether segment files are rid of what was erased long ago."""
        until = now - self.settings.purge_ms * 3 // 4
        with self._store.read() as snapshot:
            return all(time > until for *_, time in snapshot.erasures(1 << 62))
