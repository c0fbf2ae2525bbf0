"""Snapshots on schedule: when one is taken, and which are kept.

Three wishes meet: one every ``storage.snapshot_interval_min``, the last ``snapshot_keep`` of them,
and none that holds what was erased longer ago than ``lifecycle.purge_within_hours``. See DESIGN.md.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from memsvc.config import Settings
from memsvc.config.object_url import is_object_url, parse_object_url
from memsvc.domain.errors import MemsvcError, Unavailable
from memsvc.segments.files import TEMPORARY_SUFFIX
from memsvc.service.builder import Builder, BuilderFailed
from memsvc.service.identity import node_id
from memsvc.service.snapshots.logs import digest_at, first_erasure
from memsvc.service.snapshots.manifest import is_snapshot_name, manifest_from_json, name_of
from memsvc.service.snapshots.places import WORKSHOP, Found, Place, place_of
from memsvc.store.store import Store

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 5.0
LIST_EVERY_S: Final = 300.0
"""An object store is asked what it holds, when nothing was changed there from here."""
RETRY_S: Final = 60.0
"""Pause after one could not be taken."""
STOP_S: Final = 5.0
_SCAN: Final = 1_000
"""Entries looked at in one read, so that old pages are not held."""


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """Where snapshots go (``where``, a path or an address), where else this node may have put
    some (``also``), and where another node of the store keeps its own (``others``); how often
    one is taken (ms, 0 = only when asked for), how many are kept, when what was erased must be
    gone (ms), and the free bytes they must leave."""

    where: str
    also: tuple[str, ...]
    others: tuple[str, ...]
    interval_ms: int
    keep: int
    purge_ms: int
    keep_free: int


def snapshot_settings(settings: Settings, follows: bool) -> SnapshotSettings:
    """From the configuration, and whether the node follows another now.

    One that does has a folder of its own below, named after the node: it may have the same
    ``snapshot_dir`` as its primary, whose snapshots are of the same store. Once it is promoted it
    goes on where its primary was, and goes on to look after those it took as a replica.
    """
    storage = settings.storage
    base = storage.snapshot_dir or str(storage.data_dir / "snapshots")
    name = node_id(storage.data_dir)
    own = str(parse_object_url(base).below(name) if is_object_url(base) else Path(base) / name)
    return SnapshotSettings(
        own if follows else base,
        () if follows else (own,),
        (base,) if follows else (),
        storage.snapshot_interval_min * 60_000,
        storage.snapshot_keep,
        int(settings.lifecycle.purge_within_hours * 3_600_000),
        storage.reserve_bytes,
    )


class Snapshots:
    """Takes and keeps the snapshots of a node. ``clock`` gives UTC ms; ``on_taken`` is told
    whether one succeeded and the seconds it took; ``may_judge``: whether clock and log are good
    enough to say what other nodes must not keep."""

    def __init__(
        self,
        store: Store,
        settings: SnapshotSettings,
        *,
        clock: Callable[[], int],
        builders: Callable[[Path], Builder],
        on_taken: Callable[[bool, float], None] = lambda _ok, _seconds: None,
        may_judge: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self.settings = settings
        self._places, self._others = _places(settings)
        self._known: list[Found] | None = None
        """What there is, as far as it may be relied on."""
        self._known_until = 0.0
        self._others_until = 0.0
        self._clock = clock
        self._on_taken = on_taken
        self._may_judge = may_judge
        # A process at the lowest priority: a copy in this one would hold up what serves.
        self._builder = builders(store.data_dir)
        self._taking = threading.Lock()
        self._stopping = threading.Event()
        self._started = clock()
        self._not_before = 0.0
        self._clean_to: dict[str, int] = {}
        """Positions up to which the log behind a snapshot is known to erase nothing."""
        self.last_time = 0
        """When the newest was current, UTC ms; 0 = there is none."""
        self._current_at = 0
        """The same of the newest in the place where new ones go."""
        self.trouble = ""
        """Why the last one failed, or none can be looked after; "" when all is well."""
        self._thread = threading.Thread(target=self._run, name="memsvc-snapshots", daemon=True)

    def start(self) -> None:
        """Begins to take them on schedule."""
        shutil.rmtree(self._store.data_dir / WORKSHOP, ignore_errors=True)
        # Another machine is not waited for.
        self._sweep([place for place in self._places if not place.remote])
        self._thread.start()

    def apply(self, settings: SnapshotSettings) -> None:
        """Takes settings that were changed. Raises FailedPrecondition for a place that is none;
        then nothing is changed."""
        if settings.where != self.settings.where:
            self._places, self._others = _places(settings)
            # Who looks for a snapshot of this store there is to find a current one.
            self._current_at = 0
        self.settings = settings
        self._known, self._others_until = None, 0.0

    def stop(self) -> None:
        """Ends at once; a snapshot in the making is left as a .tmp folder."""
        self._stopping.set()
        self._builder.stop()
        if self._thread.is_alive():
            # Not for as long as a store that does not answer may take.
            self._thread.join(STOP_S)

    def _run(self) -> None:
        unswept = [place for place in self._places if place.remote]
        while not self._stopping.is_set():
            try:
                self._sweep(unswept)
                unswept = []
                if self._stopping.wait(LOOK_EVERY_S):
                    return
                self.tick()
            except (OSError, MemsvcError) as error:
                self._failed(error)
                self._stopping.wait(LOOK_EVERY_S)
            except Exception:
                if not self._stopping.is_set():
                    log.exception("snapshots were not looked after; it is tried again")

    def _sweep(self, places: list[Place]) -> None:
        for place in places:
            place.sweep(is_snapshot_name)

    def _not_taken(self, error: Exception) -> None:
        """Notes it until one is taken."""
        self._failed(error)
        self._not_before = time.monotonic() + RETRY_S

    def _failed(self, error: Exception) -> None:
        if self._stopping.is_set():
            return
        told = f"the last snapshot failed: {error}"
        if told != self.trouble:
            log.error("%s; it is tried again", told)
        self.trouble = told

    # -- what there is ------------------------------------------------------------------

    def kept(self) -> list[Found]:
        """Those of this store, oldest first. Raises what places raise."""
        if self._known is None or time.monotonic() >= self._known_until:
            found = [one for place in self._places for one in place.snapshots()]
            self._known = sorted(
                (
                    one
                    for one in found
                    if one.manifest.store_id == self._store.store_id and is_snapshot_name(one.name)
                ),
                key=lambda one: (one.manifest.time, one.manifest.position),
            )
            remote = any(place.remote for place in self._places)
            self._known_until = time.monotonic() + (LIST_EVERY_S if remote else 0.0)
        return self._known

    def tick(self) -> None:
        """One look: takes what is due, removes what is too old, too many or holds too much.
        Raises what places raise."""
        kept = self.kept()
        if kept:
            self.last_time = max(self.last_time, kept[-1].manifest.time)
        now, settings = self._clock(), self.settings
        stale = {one.where for one in kept if self._is_stale(one, now, 3 / 4)}
        here = [one for one in kept if one.place is self._places[0]]
        wanted = bool(settings.interval_ms) and self._is_due(here, now)
        # One that is clean takes the place of those that are not, when there will be one.
        wanted = wanted or (len(stale) == len(kept) > 0 and self._would_be_clean(now))
        if wanted and time.monotonic() >= self._not_before:
            try:
                self.take()
            except (BuilderFailed, OSError, MemsvcError) as error:
                self._not_taken(error)
            kept = self.kept()
        self._drop(kept, stale, now)
        if not self._not_before:
            self.trouble = ""
        self._look_after_others(now)

    def _is_due(self, here: list[Found], now: int) -> bool:
        """``here``: those in the place where new ones go."""
        newest = here[-1].manifest if here else None
        self._current_at = max(self._current_at, newest.time if newest else 0)
        if now - (self._current_at or self._started) < self.settings.interval_ms:
            return False
        if newest is not None:
            with self._store.read() as snapshot:
                same = (snapshot.epoch, snapshot.position, snapshot.digest.hex())
            if same == (newest.epoch, newest.position, newest.digest):
                self.last_time = self._current_at = now  # nothing was written since
                return False
        return True

    def take(self) -> Found:
        """Takes one now. Raises BuilderFailed, OSError (no room)."""
        with self._taking:
            started = time.monotonic()
            now, place = self._clock(), self._places[0]
            names = {one.name for one in self.kept()}
            while (path := place.workshop(name_of(now), self._store.data_dir)).exists() or (
                path.name in names
            ):
                now += 1
            job = {"job": "snapshot", "to": str(path), "time": now, "place": str(place)}
            try:
                done = self._builder.run({**job, "keep_free": self.settings.keep_free})
                manifest = manifest_from_json(json.dumps(done["manifest"]), done["where"])
            except (BuilderFailed, OSError, MemsvcError):
                self._on_taken(False, time.monotonic() - started)
                raise
            finally:
                self._known = None
                # Killed in the middle of its work it leaves this.
                shutil.rmtree(path.with_name(path.name + TEMPORARY_SUFFIX), ignore_errors=True)
                shutil.rmtree(self._store.data_dir / WORKSHOP, ignore_errors=True)
                self._builder.rest()
            seconds = time.monotonic() - started
            self.last_time = self._current_at = now
            self.trouble, self._not_before = "", 0.0
            self._on_taken(True, seconds)
            log.info(
                "snapshot %s of position %d: %d bytes in %.1f s",
                done["where"], manifest.position, manifest.size, seconds,
            )  # fmt: skip
            return Found(place, path.name, manifest, done["where"])

    def take_now(self) -> Found:
        """As take(), for a caller from outside, and removes those that are too many. Raises
        Unavailable."""
        try:
            taken = self.take()
            self._drop(self.kept(), set(), self._clock())
        except (BuilderFailed, OSError, MemsvcError) as error:
            self._not_taken(error)
            raise Unavailable(
                f"no snapshot was taken: {error}",
                reason="SNAPSHOT_FAILED",
                hint="the log of the node has the details; most often it is disk space, or the "
                "object store",
                retry_after_ms=10_000,
            ) from error
        return taken

    # -- what must go -------------------------------------------------------------------

    def _drop(self, kept: list[Found], stale: set[str], now: int) -> None:
        clean = any(one.where not in stale for one in kept)
        # Not while one is taken: what it shares with those that go would go with them.
        with self._taking:
            for one in kept[: -self.settings.keep]:
                self._remove(one, "there are newer ones")
            for one in kept[-self.settings.keep :]:
                if one.where in stale and clean:
                    self._remove(one, "it holds what was erased since")
                elif one.where in stale and self._is_stale(one, now, 1):
                    log.warning("no snapshot is left that could take the place of %s", one.where)
                    self._remove(one, "it holds what was erased too long ago")

    def _look_after_others(self, now: int) -> None:
        """Removes from places of other nodes what was erased too long ago, and nothing else: a
        former primary may have left snapshots where nobody goes on."""
        if time.monotonic() < self._others_until or not self._may_judge():
            return
        self._others_until = time.monotonic() + LIST_EVERY_S
        for place in self._others:
            try:
                for one in place.snapshots():
                    if is_snapshot_name(one.name) and self._holds_erased(one, now):
                        self._remove(one, "it holds what was erased too long ago")
            except (OSError, MemsvcError) as error:
                log.warning("snapshots in %s were not looked through: %s", place, error)

    def _holds_erased(self, found: Found, now: int) -> bool:
        with self._store.read() as snapshot:
            ahead = snapshot.position < found.manifest.position
        # A replica that is behind cannot tell yet.
        ours = found.manifest.store_id == self._store.store_id and not ahead
        return ours and self._is_stale(found, now, 1)

    def _remove(self, found: Found, why: str) -> None:
        log.info("removing snapshot %s of position %d: %s", found.where, found.manifest.position,
                 why)  # fmt: skip
        self._clean_to.pop(found.where, None)
        self._known = None
        found.place.remove(found)

    def _is_stale(self, found: Found, now: int, share: float) -> bool:
        """Whether it may hold what was erased longer ago than a share of what is allowed."""
        until, manifest = now - int(share * self.settings.purge_ms), found.manifest
        if manifest.erased_since:
            return manifest.erased_since <= until
        if manifest.time > until:
            return False  # nothing that it holds was erased before it was taken
        return 0 < self._first_erasure(found) <= until

    def _first_erasure(self, found: Found) -> int:
        """Time of the first erasure behind a snapshot, 0 when there was none."""
        manifest = found.manifest
        at = self._clean_to.get(found.where, manifest.position)
        with self._store.read() as snapshot:
            if digest_at(snapshot, manifest.position).hex() != manifest.digest:
                # Of a history that was given up: nobody can tell what of it was erased when.
                return manifest.time
        while not self._stopping.is_set():
            with self._store.read() as snapshot:
                end = min(snapshot.position, at + _SCAN)
                erasure = first_erasure(snapshot, range(at + 1, end + 1))
            if erasure or end == at:
                return erasure
            self._clean_to[found.where] = at = end
        return 0

    def _would_be_clean(self, now: int) -> bool:
        """Whether segment files are rid of what was erased long ago."""
        until = now - self.settings.purge_ms * 3 // 4
        with self._store.read() as snapshot:
            return all(time > until for *_, time in snapshot.erasures(1 << 62))


def _places(settings: SnapshotSettings) -> tuple[list[Place], list[Place]]:
    """Those of this node, that of new snapshots first; those of others."""
    mine = [place_of(where) for where in (settings.where, *settings.also)]
    return mine, [place_of(where) for where in settings.others]
