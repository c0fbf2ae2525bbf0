"""The part that this node plays in its group: primary or replica, and how it is changed.

See DESIGN.md, "Promotion". Whatever is decided is written into the file ROLE before it is done,
and done again after a crash. Who decides it, and on what grounds, stands in group.py (other
nodes, and what it sees of them) and promotion.py (a person).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from memsvc.config import Settings
from memsvc.domain.errors import FailedPrecondition, MemsvcError
from memsvc.domain.group import Role, Seen, next_epoch
from memsvc.domain.replication import Standing
from memsvc.service.identity import node_id
from memsvc.service.node import Node
from replicas.peers import Peers
from replicas.replica import ANEW, REPLICA, Replica
from replicas.role import read_role, write_role

log = logging.getLogger(__name__)


class Part:
    """What a node is, what it knows of the others, and the steps from one role to another."""

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

    # -- changing ----------------------------------------------------------------------

    def promise(self, epoch: int, *, alone: bool, resumes: bool = False) -> Seen:
        """On a candidate: promises itself an epoch; ``alone``: nothing more is taken from the
        former primary either; ``resumes``: after a crash it goes on by itself. What this node is
        then. Raises FailedPrecondition when it is late.
        """
        with self._lock:
            mine = self.status()
            if self._role.leads or epoch <= max(mine.fence, mine.standing.epoch):
                raise _overtaken()
            if self._unfit:
                raise _about_to_begin_anew()
            if alone:
                forcing = epoch if resumes else 0
                self._keep(replace(self._role, fence=epoch, promoting=0, forcing=forcing))
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
