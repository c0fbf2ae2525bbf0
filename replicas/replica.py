"""A node that follows: made ready before it opens, kept up to date while it serves."""

from __future__ import annotations

import logging
import random
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import grpc

from memsvc.config import Settings
from memsvc.domain.errors import FailedPrecondition
from memsvc.domain.log import Record
from memsvc.domain.replication import Lag, Standing, Verdict
from memsvc.service.node import Node, Primary
from memsvc.store import feed
from memsvc.store.codec import decode_record
from memsvc.store.store import Store
from replicas.copying import INCOMING, BrokenOff, Incoming, place
from replicas.course import Step
from replicas.follower import SILENT_S, Follower
from replicas.outbox import Outbox
from replicas.source import Source, Stream, told_by

log = logging.getLogger(__name__)

ANEW: Final = "BEGIN_ANEW"
"""File in the data directory that says: what is here is not a beginning of the primary's log."""
COPYING: Final = "COPYING"
"""File that says: the store was never level with the primary, and is not fit to be served."""
REPLICA: Final = "REPLICA"
"""File that says: what is here came from a primary, and may be removed to copy it anew. A store
that was written here is never removed."""
_NODE_ID: Final = "node_id"
_PAUSE_S: Final = 1.0


def prepare(settings: Settings, *, stopping: Callable[[], bool] = lambda: False) -> None:
    """Sees to it that the data directory has a store that is a beginning of the primary's;
    waits for the primary when it has none. Raises FailedPrecondition when a person is needed.
    """
    data_dir = settings.storage.data_dir
    data_dir.mkdir(parents=True, exist_ok=True)
    if (data_dir / ANEW).exists():
        _clear(data_dir)
    if _begun(data_dir):
        return
    source = Source(settings, node_id(data_dir))
    while not stopping():
        try:
            _begin(source, data_dir)
            return
        except (grpc.RpcError, BrokenOff) as error:
            text = told_by(error) if isinstance(error, grpc.RpcError) else str(error)
            log.warning("waiting for the primary at %s: %s", source.address, text)
            time.sleep(_PAUSE_S * (0.5 + random.random()))


def node_id(data_dir: Path) -> str:
    """The name of this node, drawn once and kept."""
    path = data_dir / _NODE_ID
    if not path.exists():
        path.write_text(f"{random.SystemRandom().getrandbits(64):016x}\n")
    return path.read_text().strip()


def _begun(data_dir: Path) -> bool:
    if not (data_dir / "store").exists() or (data_dir / COPYING).exists():
        return False
    store = Store(data_dir, follower=True)
    try:
        with store.read() as snapshot:
            return bool(snapshot.generations())
    finally:
        store.close()


def _clear(data_dir: Path) -> None:
    """Removes everything that came from a primary. Again after a crash in the middle."""
    log.warning("what was followed so far is removed; it is copied anew")
    for name in ("segments", "store", "store.new", "store.old", INCOMING):
        shutil.rmtree(data_dir / name, ignore_errors=True)
    (data_dir / ANEW).unlink()


def _begin(source: Source, data_dir: Path) -> None:
    """Copies a snapshot, and follows the log until it was level with the primary once."""
    (data_dir / COPYING).touch()
    (data_dir / REPLICA).touch()
    with source.connected() as stub:
        if not place(data_dir) and not (data_dir / "store").exists():
            incoming = Incoming(data_dir)
            began = time.monotonic()
            manifest = incoming.receive(source.copy(stub, incoming.snapshot, incoming.parts()))
            log.info(
                "copied %d bytes of %s in %.1f s: position %d",
                manifest.size,
                source.address,
                time.monotonic() - began,
                manifest.position,
            )
        store = Store(data_dir, follower=True)
        try:
            with store.read() as snapshot:
                mine = feed.standing(snapshot)
            answer = source.probe(stub, mine)
            if answer.verdict is not Verdict.FOLLOW:
                raise FailedPrecondition(f"the primary refuses this replica: {answer.reason}")
            _level(source.follow(stub, mine), store, answer.standing.position)
        finally:
            store.close()
    (data_dir / COPYING).unlink()


def _level(stream: Stream, store: Store, wanted: int) -> None:
    """Applies what comes until a position is reached."""
    try:
        for message in stream:
            _apply(store, map(decode_record, message.records))
            with store.read() as snapshot:
                position = snapshot.position
            stream.applied(position)
            if position >= wanted:
                return
    finally:
        stream.close()


def _apply(store: Store, records: Iterable[Record]) -> None:
    with store.write(0) as txn:
        for record in records:
            txn.follow(record.entry, record.digest)


class Replica:
    """A node and the thread that follows for it. ``on_restore(reason)`` is called when the
    process should end, to begin anew."""

    def __init__(self, node: Node, settings: Settings, on_restore: Callable[[str], None]) -> None:
        self._node = node
        self._on_restore = on_restore
        with node.store.read() as snapshot:
            self.lag = Lag(snapshot.position, snapshot.time)
        source = Source(settings, node_id(settings.storage.data_dir))
        self._address = source.address
        outbox = Outbox(node.clock)
        self.follower = Follower(source, _Target(node), self.lag, outbox, node.clock, self._restore)
        node.primary = self._primary
        node.take_recalls = outbox.add

    def start(self) -> None:
        """Begins to follow."""
        self.follower.start()

    def stop(self) -> None:
        """Ends following; the node goes on with what it has."""
        self.follower.stop()

    def _restore(self, reason: str) -> None:
        data_dir = self._node.store.data_dir
        if not (data_dir / REPLICA).exists():
            log.error(
                "%s holds a store that was written here and is no beginning of the primary's; "
                "it is left as it is. Use an empty storage.data_dir for a replica.",
                data_dir,
            )
            return
        (data_dir / ANEW).write_text(reason + "\n")
        self._on_restore(reason)

    def _primary(self) -> Primary:
        course, trouble = self.follower.course, ""
        if course.step in (Step.HALT, Step.RESTORE):
            trouble = f"not following {self._address}: {course.reason}"
        elif course.step is Step.PAUSE and course.reason:
            trouble = f"the primary at {self._address} is not reached: {course.reason}"
        return Primary(
            self.follower.primary_address,
            self.lag.positions,
            self.lag.milliseconds(self._node.clock(), int(1_000 * SILENT_S)),
            trouble,
        )


class _Target:
    def __init__(self, node: Node) -> None:
        self._node = node

    def standing(self) -> Standing:
        return self._node.standing()

    def apply(self, records: list[Record]) -> None:
        self._node.follow(records)
