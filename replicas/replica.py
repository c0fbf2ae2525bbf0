"""A node that follows: made ready before it opens, kept up to date while it serves."""

from __future__ import annotations

import logging
import random
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

import grpc

from memsvc.config import Settings
from memsvc.domain.errors import FailedPrecondition
from memsvc.domain.group import Role, leader
from memsvc.domain.log import Record
from memsvc.domain.replication import Lag, Standing, Verdict
from memsvc.domain.wording import counted
from memsvc.replication.v1.replication_service_pb2_grpc import ReplicationServiceStub
from memsvc.service.identity import node_id
from memsvc.service.leading import Primary
from memsvc.service.node import Node
from memsvc.store import feed
from memsvc.store.codec import UnknownFormat, decode_record
from memsvc.store.store import Store
from memsvc.store.write_txn import Diverged
from replicas.copying import INCOMING, Incoming, place
from replicas.course import Step
from replicas.follower import SILENT_S, Follower
from replicas.landing import BrokenOff
from replicas.outbox import Outbox
from replicas.peers import Peers
from replicas.role import read_role, write_role
from replicas.source import Answer, Source, Stream, told_by
from replicas.surplus import common_position, write_surplus

log = logging.getLogger(__name__)

ANEW: Final = "BEGIN_ANEW"
"""File in the data directory that says: what is here is not a beginning of the primary's log."""
COPYING: Final = "COPYING"
"""File that says: the store was never level with the primary, and is not fit to be served."""
REPLICA: Final = "REPLICA"
"""File that says: what is here came from a primary, and may be removed to copy it anew. A store
that was written here is never removed."""
_PAUSE_S: Final = 1.0


def prepare(settings: Settings) -> None:
    """Sees to it that the data directory of a node that follows has a store that is a beginning of
    the primary's; waits for the primary when it has none. A node without a store follows the
    primary of its group, if there is one, whatever its settings say: it may have lost its disk.
    Raises FailedPrecondition when a person is needed.
    """
    data_dir = settings.storage.data_dir
    data_dir.mkdir(parents=True, exist_ok=True)
    role = read_role(data_dir, settings)
    peers = Peers(settings)
    while True:
        if (data_dir / ANEW).exists() and not role.leads:
            _clear(data_dir)
        if _begun(data_dir):
            return
        seen = [node for node in peers.look() if node.standing.store_id]
        now = leader(seen, role.fence)
        if now is not None:
            role = role.following(now.listen, role.fence)
        if role.leads and not seen:
            return  # the first node of all
        try:
            if not role.leads:
                _begin(settings, role, data_dir)
                return
            log.warning("no store here, and no node of the group is primary: waiting for one")
        except (grpc.RpcError, BrokenOff) as error:
            text = told_by(error) if isinstance(error, grpc.RpcError) else str(error)
            log.warning("waiting for the primary at %s: %s", role.primary, text)
        time.sleep(_PAUSE_S * (0.5 + random.random()))


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


def begin_anew(data_dir: Path, reason: str) -> None:
    """Has the next start remove what is here and copy the primary."""
    (data_dir / REPLICA).touch()
    (data_dir / ANEW).write_text(reason + "\n")


def _begin(settings: Settings, role: Role, data_dir: Path) -> None:
    """Copies a snapshot, and follows the log until it was level with the primary once. Raises
    BrokenOff when another try, perhaps with another primary, may go better; FailedPrecondition
    when it needs newer software; grpc.RpcError."""
    source = Source(settings, role.primary, node_id(data_dir), fence=role.fence)
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
            if answer.verdict is Verdict.FOLLOW:
                _level(source.follow(stub, mine), store, answer.standing.position)
        except Diverged as error:
            answer = replace(answer, verdict=Verdict.FORKED, reason=str(error))
        except UnknownFormat as error:
            answer = replace(answer, verdict=Verdict.TOO_OLD, reason=str(error))
        finally:
            store.close()
    if answer.verdict is Verdict.TOO_OLD:
        raise FailedPrecondition(f"the primary refuses this replica: {answer.reason}")
    if answer.verdict is Verdict.FORKED:
        # Another was promoted since the copy was begun, and went on without its end.
        begin_anew(data_dir, answer.reason)
    if answer.verdict is not Verdict.FOLLOW:
        raise BrokenOff(answer.reason)
    write_role(data_dir, replace(role, address=answer.address, min_acks=answer.min_acks))
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
    """A node that follows ``role.primary``, and the thread that does it.

    ``listen`` is where the group reaches this node ("" = not known). ``on_restart(reason)`` is
    called when the process should end, to begin anew; ``on_lost`` when the primary cannot be
    followed now; ``on_news`` when it told something about itself: see ``role``.
    """

    def __init__(
        self,
        node: Node,
        settings: Settings,
        role: Role,
        listen: str = "",
        *,
        on_restart: Callable[[str], None],
        on_lost: Callable[[], None] = lambda: None,
        on_news: Callable[[], None] = lambda: None,
    ) -> None:
        self.role = role
        self._node = node
        self._on_restart = on_restart
        self._on_news = on_news
        name = node_id(settings.storage.data_dir)
        self._source = Source(settings, role.primary, name, listen=listen, fence=role.fence)
        with node.store.read() as snapshot:
            self.lag = Lag(snapshot.position, snapshot.time)
        self.outbox = Outbox(node.clock)
        self.follower = Follower(
            self._source,
            _Target(node),
            self.lag,
            self.outbox,
            node.clock,
            self._restore,
            self._answered,
            on_lost,
        )
        node.leading.primary = self._primary
        node.leading.send_recalls = self.outbox.add

    def start(self) -> None:
        """Begins to follow."""
        self.follower.start()

    def stop(self) -> None:
        """Ends following; the node goes on with what it has."""
        self.follower.stop()

    def _answered(self, answer: Answer) -> None:
        if answer.verdict is Verdict.NOT_PRIMARY:
            return
        told = replace(self.role, address=answer.address, min_acks=answer.min_acks)
        if told != self.role:
            self.role = told
            self._on_news()

    def _restore(self, reason: str) -> None:
        data_dir = self._node.store.data_dir
        if self.role.fence and self._same_store():
            self._give_up()
        elif not (data_dir / REPLICA).exists():
            log.error(
                "%s holds a store that was written here and is no beginning of the primary's; "
                "it is left as it is. Use an empty storage.data_dir for a replica.",
                data_dir,
            )
            return
        begin_anew(data_dir, reason)
        self._on_restart(reason)

    def _same_store(self) -> bool:
        with self._source.connected() as stub:
            theirs = self._ask(stub, Standing()).standing
        return theirs.store_id == self._node.store.store_id

    def _ask(self, stub: ReplicationServiceStub, place: Standing) -> Answer:
        """What the primary says to a place in this log. Raises ConnectionError when it is none
        any more: what it says of places then would have all of this log given up."""
        answer = self._source.probe(stub, place)
        if answer.verdict is Verdict.NOT_PRIMARY:
            raise ConnectionError(f"{self._source.address}: {answer.reason}")
        return answer

    def _give_up(self) -> None:
        """Another node was promoted, and this one has more of the log before than that one had:
        writes it out."""
        with self._source.connected() as stub, self._node.store.read() as snapshot:

            def same(place: Standing) -> bool:
                return self._ask(stub, place).verdict is Verdict.FOLLOW

            common = common_position(snapshot, same)
            found = write_surplus(snapshot, common, self._node.store.data_dir)
        if found is not None:
            log.error(
                "the group went on without entries %d to %d, which this node has: they are in %s, "
                "and what they made or changed in %s (%s)",
                found.first,
                found.last,
                found.entries,
                found.memories,
                counted(found.memory_count, "memory"),
            )

    def _primary(self) -> Primary:
        course, trouble, address = self.follower.course, "", self._source.address
        if course.step in (Step.HALT, Step.RESTORE):
            trouble = f"not following {address}: {course.reason}"
        elif course.step is Step.PAUSE and course.reason:
            trouble = f"the primary at {address} is not reached: {course.reason}"
        return Primary(
            self.role.address,
            self.lag.positions,
            self.lag.milliseconds(self._node.clock(), int(1_000 * SILENT_S)),
            trouble,
            self.follower.skew.milliseconds,
        )


class _Target:
    def __init__(self, node: Node) -> None:
        self._node = node

    def standing(self) -> Standing:
        return self._node.standing()

    def apply(self, records: list[Record]) -> None:
        self._node.follow(records)
