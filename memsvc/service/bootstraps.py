"""Snapshots for new replicas: taken when asked for, read while they are taken, shared, and kept
while somebody copies them."""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from memsvc.service.snapshots.manifest import SnapshotManifest
from memsvc.service.snapshots.taking import take_for_a_while
from memsvc.store.store import Store

log = logging.getLogger(__name__)

SHARED_S: Final = 60.0
"""A snapshot no older is given to the next replica too: several often start together."""
KEPT_S: Final = 600.0
"""How long one stays that nobody copies, so that a copy that was broken off can go on."""
_LOOK_S: Final = 0.5
"""How often a reader that waits looks whether it should end."""
AGE_SHARE: Final = 3 / 4
"""Greatest age of one, as a share of the time within which what was erased leaves every file."""


class Piece(NamedTuple):
    """Bytes of a file. One at offset 0 begins the file, also a second time."""

    path: str
    offset: int
    data: bytes


class _Part(NamedTuple):
    """How much of a file is there. ``turn`` is raised when it is begun anew."""

    size: int
    whole: bool
    turn: int


class Bootstrap:
    """A snapshot that is taken or was: many threads may read it from the moment it is begun.

    ``began`` and ``used_at`` are monotonic times; ``users`` is how many copy it. ``stopping`` ends
    the taking of it.
    """

    def __init__(self, name: str, folder: Path, stopping: threading.Event) -> None:
        self.name = name
        self.folder = folder
        self._stopping = stopping
        self.began = self.used_at = time.monotonic()
        self.users = 0
        self._changed = threading.Condition()
        self._parts: dict[str, _Part] = {}
        self._manifest: SnapshotManifest | None = None
        self._failed: Exception | None = None

    def take(self, store: Store, now_ms: int) -> None:
        """Makes it; what goes wrong is told to those who read it."""
        try:
            manifest = take_for_a_while(store, self.folder, now_ms=now_ms, watch=self._watch)
        except Exception as error:
            if not isinstance(error, InterruptedError):
                log.exception("a snapshot for a replica failed")
            with self._changed:
                self._failed = self._failed or error
                self._changed.notify_all()
            return
        with self._changed:
            self._manifest = manifest
            self._changed.notify_all()

    def give_up(self) -> None:
        """Ends the taking and the reading of it: it is about to be removed."""
        with self._changed:
            self._failed = self._failed or InterruptedError("the snapshot is too old")
            self._changed.notify_all()

    @property
    def manifest(self) -> SnapshotManifest | None:
        """What belongs to it; None until everything is there."""
        return self._manifest

    @property
    def failed(self) -> bool:
        """Whether it could not be taken."""
        return self._failed is not None

    @property
    def idle_since(self) -> float:
        """Since when nobody makes or copies it; infinite while somebody does."""
        busy = self.users or not (self.failed or self._manifest)
        return float("inf") if busy else self.used_at

    def pieces(
        self, have: Mapping[str, int], size: int, stopped: Callable[[], bool]
    ) -> Iterator[Piece]:
        """Every file in pieces of at most ``size`` bytes, as it comes to be; without what the
        reader has of it already. Ends when everything was read, or ``stopped`` says so.

        Among them may be files that turn out not to belong to the snapshot: ``manifest`` tells.
        Raises what the taking of it raised.
        """
        done: set[str] = set()
        while not stopped():
            # Asked first: files that come after the look are known by then.
            taken = self._manifest is not None
            name = self._next(done)
            if name is None:
                if taken:
                    return
                continue
            yield from self._file(name, have.get(name, 0), size, stopped)
            done.add(name)

    def _watch(self, path: str, size: int, whole: bool) -> None:
        if self._stopping.is_set() or self._failed is not None:
            raise InterruptedError("it is no longer wanted")
        with self._changed:
            before = self._parts.get(path, _Part(0, False, 0))
            turn = before.turn + (size < before.size)
            self._parts[path] = _Part(size, whole, turn)
            self._changed.notify_all()

    def _next(self, done: set[str]) -> str | None:
        """A file that is not done, one that is whole if possible; None when there is none yet."""
        with self._changed:
            left = [(name, part) for name, part in self._parts.items() if name not in done]
            if not left and self._manifest is None and self._failed is None:
                self._changed.wait(_LOOK_S)
            if self._failed is not None:
                raise self._failed
            return min(left, key=lambda one: not one[1].whole)[0] if left else None

    def _file(
        self, name: str, offset: int, size: int, stopped: Callable[[], bool]
    ) -> Iterator[Piece]:
        turn = -1
        try:
            with (self.folder / name).open("rb", buffering=0) as source:
                while not stopped():
                    part = self._there(name, offset)
                    if turn not in (-1, part.turn):
                        offset = 0
                    turn = part.turn
                    source.seek(offset)
                    data = source.read(min(size, max(0, part.size - offset)))
                    if data:
                        yield Piece(name, offset, data)
                        offset += len(data)
                    elif part.whole:
                        return
        except FileNotFoundError:
            return  # merged away meanwhile: it does not belong to the snapshot

    def _there(self, name: str, offset: int) -> _Part:
        """The state of a file, when there is more of it, or after a while."""
        with self._changed:
            part = self._parts[name]
            if self._failed is None and not part.whole and part.size <= offset:
                self._changed.wait(_LOOK_S)
                part = self._parts[name]
            if self._failed is not None:
                raise self._failed
            return part


class Bootstraps:
    """The snapshots of one node. What a former process left behind is removed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._root = store.data_dir / "bootstrap"
        self._lock = threading.Lock()
        self._present: dict[str, Bootstrap] = {}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        shutil.rmtree(self._root, ignore_errors=True)

    @contextmanager
    def use(self, name: str, now_ms: int) -> Iterator[Bootstrap]:
        """The snapshot with a name, or a recent one, or a new one, which is then begun."""
        with self._lock:
            found = self._find(name) or self._begin(now_ms)
            found.users += 1
        try:
            yield found
        finally:
            with self._lock:
                found.users -= 1
                found.used_at = time.monotonic()

    def stop(self) -> None:
        """Gives up what is being taken, so that the store can be closed."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def tick(self, purge_s: float) -> None:
        """Removes what nobody has used for a while, and what is so old that it may hold what
        must be out of every file ``purge_s`` seconds after it was erased: a copy of that is
        broken off, and begun anew. To be called now and then."""
        now = time.monotonic()
        with self._lock:
            old = [
                b
                for b in self._present.values()
                if now - b.idle_since > KEPT_S or now - b.began > AGE_SHARE * purge_s
            ]
            for bootstrap in old:
                del self._present[bootstrap.name]
        for bootstrap in old:
            bootstrap.give_up()
            shutil.rmtree(bootstrap.folder, ignore_errors=True)

    def _find(self, name: str) -> Bootstrap | None:
        present = [b for b in self._present.values() if not b.failed]
        named = [b for b in present if b.name == name]
        recent = [b for b in present if b.began > time.monotonic() - SHARED_S]
        return max(named or recent, key=lambda b: b.began, default=None)

    def _begin(self, now_ms: int) -> Bootstrap:
        name = secrets.token_hex(8)
        made = Bootstrap(name, self._root / name, self._stopping)
        self._present[name] = made
        thread = threading.Thread(
            target=made.take, args=(self._store, now_ms), name="memsvc-bootstrap", daemon=True
        )
        self._threads = [*(t for t in self._threads if t.is_alive()), thread]
        thread.start()
        return made
