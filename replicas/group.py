"""The part that this node plays in its group: primary or replica, and how that changes.

See DESIGN.md, "Promotion". Whatever is decided is written into the file ROLE before it is done,
and done again after a crash.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from memsvc.config import Settings
from memsvc.domain.errors import FailedPrecondition, MemsvcError, Unavailable
from memsvc.domain.group import Role, Seen, deposed, leader, next_epoch
from memsvc.domain.replication import Standing
from memsvc.service.derived import DAY_MS
from memsvc.service.identity import node_id
from memsvc.service.node import Node
from replicas.advice import advice
from replicas.peers import Peers
from replicas.replica import ANEW, REPLICA, Replica, begin_anew
from replicas.role import read_role, write_role
from replicas.surplus import drop_surplus

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""How often a node asks the others what they are."""
LOOK_AT_ONCE_S: Final = 0.1
"""The same when its primary has just been lost."""
NO_PRIMARY_S: Final = 10.0
"""After so long without a primary people are told what to do."""
HAND_OVER_S: Final = 5.0
"""A primary that was asked to hand over goes on by itself when it is not asked to the end."""
BUSY_S: Final = 3.0
DROP_SURPLUS_S: Final = 3_600.0


class Group:
    """Role of a node, and its calls for the others (memsvc.rpc.group.GroupApi). ``on_restart``
    is called when the process should end and begin anew. Raises FailedPrecondition."""

    def __init__(self, node: Node, settings: Settings, on_restart: Callable[[str], None]) -> None:
        self.node = node
        self.peers = Peers(settings)
        self.node_id = node_id(settings.storage.data_dir)
        self._settings = settings
        self._on_restart = on_restart
        self._role = read_role(node.store.data_dir, settings)
        self._own = ""
        self.twins: list[str] = []
        """Nodes with this node's name, when there are several: data directories were copied."""
        self._strangers: list[Seen] = []
        """Primaries of another store among the nodes of the group."""
        self._replica: Replica | None = None
        self._lock = threading.RLock()
        """Held while the role changes; never during a call to another node."""
        self._given_up = 0
        """Epoch that this node asked for and will not begin; 0 = none."""
        self.obstacle = ""
        """What kept a promotion by force, that was broken off, from being finished so far."""
        self._led = time.monotonic()
        """When the group was last known to have a primary."""
        self._handing: tuple[str, int, float] | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memsvc-group", daemon=True)

    # -- life --------------------------------------------------------------------------

    def start(self) -> None:
        """Takes up the role. A primary asks first whether there is another by now."""
        others = self._others()
        with self._lock:
            if self._role.leads:
                self._take_up_lead(others)
            else:
                self._follow(self._role)
        self._thread.start()

    def stop(self) -> None:
        """Ends following and watching."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._replica is not None:
            self._replica.stop()

    def _take_up_lead(self, others: list[Seen]) -> None:
        marker, fence = self.node.store.data_dir / REPLICA, self._role.fence
        now = leader(others, fence)
        if now is not None and marker.exists() and fence <= self.node.standing().epoch:
            log.error(
                "node.role says primary, but this store is a copy and %s leads: it is followed. "
                "To have another primary, promote it",
                now.listen,
            )
            self._step_down(now.listen, fence)
            return
        if leader(others, max(fence, self.node.standing().epoch + 1)) is None:
            # Else this log would have an entry more than that of the later primary.
            self._finish_promotion()
        later = deposed(self.status(), others)
        if later is not None:
            self._step_down(later.listen, later.standing.epoch)
        else:
            self.node.leading.resume()

    def _finish_promotion(self) -> None:
        """A promotion that was broken off after it was written down, by a crash or a full disk.
        Also the configuration may have made a replica a primary."""
        marker = self.node.store.data_dir / REPLICA
        mine = self.status()
        epoch = mine.standing.epoch
        if marker.exists() or self._role.fence > epoch:
            promised = self._role.fence if self._role.fence > epoch else next_epoch([mine])
            self.node.leading.lead(promised)
            marker.unlink(missing_ok=True)

    # -- what it is --------------------------------------------------------------------

    @property
    def role(self) -> Role:
        """What it is."""
        return self._role

    @property
    def own(self) -> str:
        """Where the group reaches this node: "" as long as that was not found out."""
        return self._own

    def status(self) -> Seen:
        """What it is, as others are told. Waits for no other node, nor for a change of role."""
        role, own = self._role, self._settings.replication
        return Seen(
            self._own,
            self.node_id,
            role.leads,
            self.node.standing(),
            max(role.fence, role.promoting),
            role.primary,
            own.advertise or self._settings.server.listen,
            own.min_acks if role.leads else role.min_acks,
        )

    def look(self) -> tuple[list[Seen], list[str]]:
        """What the others say they are, and which are silent. Finds out which this node is."""
        seen = self.peers.look()
        found_here = [found.listen for found in seen if found.node_id == self.node_id]
        self.twins = found_here if len(found_here) > 1 else []
        # With several it is none: nobody could tell whose acknowledgement is whose.
        mine = "" if self.twins else (found_here or [self._own])[0]
        self._own = mine
        store_id = self.node.store.store_id
        others = [
            found
            for found in seen
            if found.node_id != self.node_id and found.standing.store_id == store_id
        ]
        self._strangers = [
            found for found in seen if found.leads and found.standing.store_id not in ("", store_id)
        ]
        heard = {mine, *(found.listen for found in others)}
        return others, [node for node in self.peers.nodes if node not in heard]

    def _others(self) -> list[Seen]:
        return self.look()[0] if self.peers.nodes else []

    # -- asked by others ---------------------------------------------------------------

    def fence(self, epoch: int, primary: str, store_id: str) -> tuple[bool, Seen]:
        """Follows ``primary`` and nobody of an epoch below from here on; whether it does, and
        what it is after that."""
        with self._changing() as free:
            mine = self.status()
            late = epoch <= max(mine.fence, mine.standing.epoch)
            other = store_id != mine.standing.store_id or not primary
            if not free or late or other or self._unfit:
                return False, mine
            log.warning("%s is about to be primary, of epoch %d", primary, epoch)
            self._step_down(primary, epoch)
            return True, self.status()

    def prepare(self, asking: str, epoch: int) -> tuple[str, Standing]:
        """Takes no changes for some seconds: why not ("" = it does), and where its log ends.
        Raises Unavailable when that cannot be said now."""
        with self._changing() as free:
            standing = self.node.standing()
            if not free:
                raise _busy()
            if not self._role.leads:
                return "this node is not the primary", standing
            if self._handing is not None and self._handing[0] != asking:
                return f"it is about to hand over to {self._handing[0]}", standing
            if epoch <= standing.epoch:
                return f"epoch {epoch} is not above {standing.epoch}", standing
            log.info("%s is about to be primary: no changes are taken", asking)
            self._handing = asking, epoch, time.monotonic() + HAND_OVER_S
            self._wake.set()
            return "", self.node.leading.freeze()

    def commit(self, asking: str, epoch: int, primary: str) -> str:
        """Follows ``primary`` from here on: why not ("" = it does). Raises Unavailable when that
        cannot be said now."""
        with self._changing() as free:
            role = self._role
            if not role.leads and (role.primary, role.fence) == (primary, epoch):
                return ""
            if not free:
                # Perhaps with this very step, on a slow disk: to say no now would be a lie.
                raise _busy()
            if self._handing is None or self._handing[:2] != (asking, epoch):
                return "it was asked too late: this node goes on as primary"
            if not primary:
                return "the node that asks does not say where it listens"
            self._step_down(primary, epoch)
            return ""

    def lead(self, epoch: int) -> bool:
        """Begins an epoch that another node has given up; whether it does."""
        with self._changing() as free:
            if not free or self._role.leads or self._role.fence != epoch or self._unfit:
                return False
            self.take_over(epoch)
            return True

    @contextmanager
    def _changing(self) -> Iterator[bool]:
        """Whether the role may be changed now: two nodes that ask each other must not wait for
        ever."""
        free = self._lock.acquire(timeout=BUSY_S)
        try:
            yield free and not self._stopping.is_set()
        finally:
            if free:
                self._lock.release()

    # -- changing ----------------------------------------------------------------------

    def promise(self, epoch: int, *, alone: bool) -> Seen:
        """On a candidate: promises itself an epoch; ``alone``: nothing more is taken from the
        former primary either. What this node is then. Raises FailedPrecondition when it is late.
        """
        with self._lock:
            mine = self.status()
            if self._role.leads or epoch <= max(mine.fence, mine.standing.epoch):
                raise _overtaken()
            if self._unfit:
                raise _about_to_begin_anew()
            if alone:
                self._keep(replace(self._role, fence=epoch, promoting=0, forcing=epoch))
                self._end_following()
            else:
                self._keep(replace(self._role, promoting=epoch))
            return self.status()

    def give_up(self, epoch: int = 0, *, forcing: int = 0) -> None:
        """On a candidate: goes on as a replica; ``epoch``: others may be fenced for it, among
        them a primary that then leads again, see ``_give_back``; ``forcing``: it will try again
        by itself, see ``Role``."""
        with self._lock:
            if not self._role.leads:
                self._given_up = epoch
                if self._replica is None:
                    self._follow(self._role)
                role = replace(self._role, promoting=0, forcing=forcing)
                if role != self._role:
                    self._keep(role)

    def take_over(self, epoch: int) -> Standing:
        """Becomes primary; the caller has seen to it that nobody else is. Where the epoch
        begins. Raises FailedPrecondition when another was faster, OSError; it is
        a replica then."""
        with self._lock:
            mine = self._role
            if mine.leads or epoch < mine.fence or epoch <= self.node.standing().epoch:
                raise _overtaken()
            outbox = self._replica.outbox if self._replica is not None else None
            self._end_following()
            if self._unfit:
                raise _about_to_begin_anew()
            try:
                self._keep(mine.leading(epoch))
            except OSError:
                self._follow(mine)
                raise
            standing = self.node.leading.lead(epoch)
            (self.node.store.data_dir / REPLICA).unlink(missing_ok=True)
            log.warning("this node is primary, of epoch %d", epoch)
        try:
            for batch in outbox.left(self.node_id) if outbox is not None else ():
                self.node.feed.take_recalls(batch)
        except MemsvcError as error:
            log.warning("recalls that waited are not counted: %s", error)
        return standing

    def _step_down(self, primary: str, epoch: int) -> None:
        """Follows another from here on. When that cannot be written down it raises, and the
        node is what it was: one that is neither primary nor follows would be of no use."""
        leads = self._role.leads
        if leads:
            self.node.leading.freeze()
        try:
            self._keep(self._role.following(primary, epoch))
        except OSError:
            if leads and self._handing is None:
                self.node.leading.resume()
            raise
        if leads:
            self.node.leading.follow()
        self._handing = None
        self._end_following()
        self._follow(self._role)

    def _follow(self, role: Role) -> None:
        self._replica = Replica(
            self.node,
            self._settings,
            role,
            self._own,
            on_restart=self._on_restart,
            on_lost=self._wake.set,
            on_news=self._wake.set,
        )
        self._replica.start()

    def _end_following(self) -> None:
        if self._replica is not None:
            self._replica.stop()
            self._replica = None

    @property
    def _unfit(self) -> bool:
        """Whether the next start removes what is here."""
        return (self.node.store.data_dir / ANEW).exists()

    def _keep(self, role: Role) -> None:
        """Raises OSError; the role is the one before then."""
        write_role(self.node.store.data_dir, role)
        self._role = role

    # -- watching ----------------------------------------------------------------------

    def _watch(self) -> None:
        next_drop = time.monotonic()
        while not self._stopping.is_set():
            if self._wake.wait(LOOK_S):
                self._wake.clear()
                self._stopping.wait(LOOK_AT_ONCE_S)
            if self._stopping.is_set():
                return
            try:
                self._look_after()
                if time.monotonic() >= next_drop:
                    next_drop = time.monotonic() + DROP_SURPLUS_S
                    kept_ms = self.node.settings.storage.log_retention_days * DAY_MS
                    drop_surplus(self.node.store.data_dir, self.node.clock() - kept_ms)
            except Exception:
                log.exception("the other nodes were not asked; it is tried again")

    def _give_back(self, others: list[Seen]) -> None:
        """A promotion that failed may have fenced the primary, also later than it waited for
        that. It has everything that it ever acknowledged, so that it may lead in the epoch that
        nobody else can begin."""
        role = self._role
        former = next((node for node in others if node.listen == role.primary), None)
        if not self._given_up or former is None or role.fence != self._given_up:
            return
        if not former.leads and (former.fence, former.primary) == (role.fence, self._own):
            log.warning("%s is primary again: nobody was promoted", former.listen)
            self.peers.lead(former.listen, role.fence)

    def _look_after(self) -> None:
        before = self._own
        others = self._others()
        self._give_back(others)
        with self._lock:
            self._lapse()
            self._watch_strangers()
            self._watch_for_primary(others)
            if self._role.leads:
                later = deposed(self.status(), others)
                if later is None and self.node.leading.follows:
                    # A full disk, say, kept it from beginning the epoch that it wrote down.
                    self._finish_promotion()
                if later is not None:
                    log.error("%s is primary of a later epoch, this node no longer", later.listen)
                    self._step_down(later.listen, later.standing.epoch)
                return
            if self._replica is None:
                return  # about to be primary
            role = self._replica.role
            now = leader(others, role.fence)
            if now is not None and now.listen != role.primary:
                log.info("%s is primary now", now.listen)
                self._keep(role.following(now.listen, role.fence))
                self._end_following()
                self._follow(self._role)
                return
            told = replace(role, promoting=self._role.promoting, forcing=self._role.forcing)
            if told != self._role:
                self._keep(told)
            if self._own != before:
                # The primary counts it only when it knows which of the group it is.
                self._end_following()
                self._follow(self._role)

    def _watch_strangers(self) -> None:
        """Two stores in one group: somebody started a node with an empty disk while nobody else
        was there. One with nothing in it gives way; of others a person must decide."""
        warning = ""
        for other in self._strangers:
            if self._role.leads and self.node.standing().position <= 1 < other.standing.position:
                self._keep(self._role.following(other.listen, self._role.fence))
                begin_anew(self.node.store.data_dir, f"{other.listen} holds the group's store")
                self._on_restart(f"this store is empty, {other.listen} holds the group's")
                return
            warning = f"{other.listen} is of the same group and primary of another store"
        if self.twins:
            warning = (
                f"{' and '.join(self.twins)} have one name and cannot be told apart: when the "
                "data directory of one is a copy, remove its file node_id and restart it"
            )
        if warning and not self.node.leading.warning:
            log.error("%s", warning)
        self.node.leading.warning = warning

    def _watch_for_primary(self, others: list[Seen]) -> None:
        """Tells people what to do when nobody has led for a while."""
        text = advice(self._role, self.status(), others, self.obstacle) if self.peers.nodes else ""
        if not text:
            self._led, self.obstacle = time.monotonic(), ""
        lasts = time.monotonic() - self._led >= NO_PRIMARY_S
        self.node.leading.advice = text if lasts else ""

    def _lapse(self) -> None:
        if self._handing is not None and time.monotonic() > self._handing[2]:
            log.warning("%s did not take over: this node goes on as primary", self._handing[0])
            self._handing = None
            self.node.leading.resume()


def _busy() -> Unavailable:
    return Unavailable("the role of this node is being changed just now", reason="PROMOTION_FAILED")


def _about_to_begin_anew() -> FailedPrecondition:
    return FailedPrecondition(
        "what this node has is no beginning of the primary's log: it is about to copy it anew",
        reason="NOT_BOOTSTRAPPED",
        hint="promote another node, or wait until this one has copied its primary",
    )


def _overtaken() -> FailedPrecondition:
    return FailedPrecondition(
        "another node was promoted, or is about to be",
        reason="OVERTAKEN",
        hint="ask the nodes of the group what they are with `memsvc health`",
    )
