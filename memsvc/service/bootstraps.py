"""Snapshots for new replicas: taken when asked for, shared, kept while somebody copies them."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from memsvc.service.snapshots.manifest import SnapshotManifest
from memsvc.service.snapshots.taking import take
from memsvc.store.store import Store

SHARED_S: Final = 60.0
"""A snapshot no older is given to the next replica too: several often start together."""
KEPT_S: Final = 600.0
"""How long one stays that nobody copies, so that a copy that was broken off can go on."""

AGE_SHARE: Final = 3 / 4
"""Greatest age of one, as a share of the time within which what was erased leaves every file."""


@dataclass(slots=True)
class Bootstrap:
    """A snapshot in use: its name, folder and manifest; monotonic times."""

    name: str
    folder: Path
    manifest: SnapshotManifest
    taken_at: float
    used_at: float
    users: int = 0


class Bootstraps:
    """The snapshots of one node. What a former process left behind is removed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._root = store.data_dir / "bootstrap"
        self._lock = threading.Lock()
        self._taking = threading.Lock()
        self._present: dict[str, Bootstrap] = {}
        shutil.rmtree(self._root, ignore_errors=True)

    @contextmanager
    def use(self, name: str, now_ms: int) -> Iterator[Bootstrap]:
        """The snapshot with a name, or a recent one, or a new one. Raises OSError when there is
        no room."""
        found = self._find(name) or self._recent(now_ms)
        try:
            yield found
        finally:
            with self._lock:
                found.users -= 1
                found.used_at = time.monotonic()

    def tick(self, purge_s: float) -> None:
        """Removes what nobody has used for a while, and what is so old that it may hold what
        must be out of every file ``purge_s`` seconds after it was erased: a copy of that is
        broken off, and begun anew. To be called now and then."""
        now = time.monotonic()
        with self._lock:
            old = [
                b
                for b in self._present.values()
                if (not b.users and now - b.used_at > KEPT_S)
                or now - b.taken_at > AGE_SHARE * purge_s
            ]
            for bootstrap in old:
                del self._present[bootstrap.name]
        for bootstrap in old:
            shutil.rmtree(bootstrap.folder, ignore_errors=True)

    def _find(self, name: str, taken_after: float = float("-inf")) -> Bootstrap | None:
        """One in use from now on: by name, or, without, the newest taken after a time."""
        with self._lock:
            found = [
                b
                for b in self._present.values()
                if (b.name == name if name else b.taken_at > taken_after)
            ]
            if not found:
                return None
            newest = max(found, key=lambda b: b.taken_at)
            newest.users += 1
            return newest

    def _recent(self, now_ms: int) -> Bootstrap:
        with self._taking:
            found = self._find("", time.monotonic() - SHARED_S)
            if found is not None:
                return found
            name = secrets.token_hex(8)
            folder = self._root / name
            began = time.monotonic()
            manifest = take(self._store, folder, now_ms=now_ms)
            made = Bootstrap(name, folder, manifest, began, time.monotonic(), 1)
            with self._lock:
                self._present[name] = made
            return made
