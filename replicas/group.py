"""A node among the others of its group: what they ask of it, and what it sees of them.

See DESIGN.md, "Promotion". The steps from one role to another are those of part.py.
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
from memsvc.domain.errors import Unavailable
from memsvc.domain.group import Seen, deposed, leader
from memsvc.domain.replication import Standing
from memsvc.service.derived import DAY_MS
from memsvc.service.node import Node
from replicas.advice import advice
from replicas.part import Part
from replicas.replica import REPLICA, begin_anew
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


class Group(Part):
    """Role of a node, and its calls for the others (memsvc.rpc.group.GroupApi). ``on_restart``
    is called when the process should end and begin anew. Raises FailedPrecondition."""

    def __init__(self, node: Node, settings: Settings, on_restart: Callable[[str], None]) -> None:
        super().__init__(node, settings, on_restart)
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
