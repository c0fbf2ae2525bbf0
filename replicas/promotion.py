"""A replica becomes primary: asked for in good order, or by force after a loss."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import Final, NoReturn

import grpc

from memsvc.domain.errors import FailedPrecondition, MemsvcError, Unavailable
from memsvc.domain.group import (
    Role,
    Seen,
    further,
    last_primary,
    leader,
    may_lack,
    next_epoch,
)
from memsvc.domain.replication import Standing
from memsvc.replication.v1 import group_service_pb2 as pb
from memsvc.service.api import Promoted
from replicas.group import HAND_OVER_S, Group
from replicas.peers import STEP_S
from replicas.source import told_by

log = logging.getLogger(__name__)

_POLL_S: Final = 0.005
_AGAIN_S: Final = 1.0
_BUSY_S: Final = STEP_S + _AGAIN_S
"""Longest wait for an attempt of before a restart to pause."""
_TRIES: Final = 5
"""So often a primary is asked whether it has handed over, while the caller waits."""


class Promotion:
    """Makes a node primary of its group; one attempt at a time."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._lock = threading.Lock()
        self._finishing = threading.Thread()
        self._stopping = threading.Event()

    def promote(self, force: bool, accept_loss: bool) -> Promoted:
        """Returns when the node takes changes. Raises FailedPrecondition when it must not,
        Unavailable when another node did not play its part; then the roles are as before, unless
        the error says otherwise, or others were fenced already: it is to be repeated then."""
        if not self._lock.acquire(timeout=_BUSY_S):
            raise Unavailable(
                "it is being promoted", reason="PROMOTION_FAILED", retry_after_ms=1_000
            )
        try:
            group = self._group
            if group.role.leads:
                raise FailedPrecondition("this node is primary already", reason="ALREADY_PRIMARY")
            if not group.peers.nodes:
                raise FailedPrecondition(
                    "this node is of no group",
                    reason="NO_GROUP",
                    hint="set replication.nodes, the same list on every node",
                )
            others, silent = group.look()
            if group.twins:
                raise FailedPrecondition(
                    f"{' and '.join(group.twins)} have this node's name",
                    reason="NO_GROUP",
                    hint="when the data directory of one is a copy, remove its file node_id and "
                    "restart it; list each node once",
                )
            if not group.own:
                raise FailedPrecondition(
                    "none of replication.nodes is this node",
                    reason="NO_GROUP",
                    hint="the list must have its replication.listen as the others reach it",
                )
            if force:
                return self._by_force(others, silent, accept_loss)
            return self._in_order(others, silent)
        except OSError as error:
            raise _failed(f"its role cannot be written down here: {error}") from error
        finally:
            self.start()
            self._lock.release()

    def start(self) -> None:
        """Goes on with what was broken off. Where the primary may have handed over, after a
        restart or an answer that was lost: asks it again until it says whether it has, or this
        node is told otherwise. Where others may be fenced for this node, after a restart in the
        middle of a promotion by force: repeats it. Nobody leads before this node does."""
        role = self._group.role
        if self._finishing.is_alive() or not (role.promoting or role.forcing):
            return
        self._finishing = threading.Thread(
            target=self._finish if role.promoting else self._finish_by_force,
            name="memsvc-promotion",
            daemon=True,
        )
        self._finishing.start()

    def stop(self) -> None:
        """Goes on with nothing; the next start does."""
        self._stopping.set()
        if self._finishing.is_alive():
            self._finishing.join(_BUSY_S)

    def _finish(self) -> None:
        role = self._group.role
        try:
            while self._group.role.promoting == role.promoting and not self._stopping.is_set():
                # Free in between, for a promotion by force: the primary may be lost.
                with self._lock:
                    if self._asked_again(role):
                        return
                self._stopping.wait(_AGAIN_S)
        except MemsvcError as error:
            log.warning("the promotion that was broken off is given up: %s", error)

    def _asked_again(self, role: Role) -> bool:
        """Whether the promotion that was broken off has come to its end."""
        if self._group.role.promoting != role.promoting:
            return True  # by force, meanwhile
        answer = self._ask_to_commit(role.primary, role.promoting)
        return isinstance(answer, Standing)

    def _finish_by_force(self) -> None:
        """Whoever asked for it was told nothing, and may believe that it is done. It is tried
        until somebody leads."""
        group = self._group
        while group.role.forcing and not self._stopping.is_set():
            with self._lock:
                try:
                    self._forced_again()
                except (MemsvcError, OSError) as error:
                    if str(error) != group.obstacle:
                        log.warning("the promotion that was broken off is tried again: %s", error)
                    group.obstacle = str(error)
                except Exception:
                    # Nobody else may lead before it has come to an end.
                    log.exception("the promotion that was broken off is tried again")
            if group.role.forcing:
                self._stopping.wait(_AGAIN_S)

    def _forced_again(self) -> None:
        group = self._group
        role = group.role
        if not role.forcing:
            return  # this node leads, or follows another
        others, silent = group.look()
        if leader(others, role.fence) is not None:
            group.give_up()
            return
        # Where the former primary answers it may lead on, while this is tried.
        group.give_up(role.fence, forcing=role.forcing)
        self._by_force(others, silent, accept_loss=False, again=True)

    # -- in good order -----------------------------------------------------------------

    def _in_order(self, others: list[Seen], silent: list[str]) -> Promoted:
        group = self._group
        former = next((node for node in others if node.listen == group.role.primary), None)
        if former is None or not former.leads:
            raise FailedPrecondition(
                f"the primary at {group.role.primary} does not answer",
                reason="PRIMARY_SILENT",
                hint="when it is lost, promote with force (--force): it will then follow this node",
            )
        epoch = next_epoch([group.status(), *others])
        try:
            answer = group.peers.hand_over(
                former.listen, self._request(pb.HAND_OVER_STEP_PREPARE, epoch)
            )
        except grpc.RpcError as error:
            raise _failed(f"{former.listen} did not prepare: {told_by(error)}") from error
        if not answer.done:
            raise _failed(f"{former.listen} does not hand over: {answer.reason}")
        self._catch_up(answer.standing.position, answer.standing.digest)
        group.promise(epoch, alone=False)
        standing = self._commit(former.listen, epoch)
        return Promoted(standing.epoch, standing.position, former.listen, tuple(silent), False)

    def _catch_up(self, position: int, digest: bytes) -> None:
        until = time.monotonic() + HAND_OVER_S - 1.0
        while (standing := self._group.node.standing()).position < position:
            if time.monotonic() > until:
                raise _failed("this replica is too far behind its primary")
            time.sleep(_POLL_S)
        if (standing.position, standing.digest) != (position, digest):
            raise _failed("its log is not the primary's")

    def _commit(self, former: str, epoch: int) -> Standing:
        tries = 1
        while not isinstance(answer := self._ask_to_commit(former, epoch), Standing):
            if tries == _TRIES:
                raise Unavailable(
                    f"{former} has handed over, but that cannot be written down here: {answer}"
                    if isinstance(answer, OSError)
                    else f"whether {former} has handed over is not known: {told_by(answer)}",
                    reason="PROMOTION_FAILED",
                    hint="it goes on by itself; promote with force (--force) when the former "
                    "primary is lost",
                ) from answer
            tries += 1
            time.sleep(_AGAIN_S)
        return answer

    def _ask_to_commit(self, former: str, epoch: int) -> Standing | grpc.RpcError | OSError:
        """Takes over when the former primary has handed over; the error when it does not answer,
        or this node cannot write down that it leads. Raises Unavailable when that one
        has not handed over, and will not."""
        group = self._group
        try:
            answer = group.peers.hand_over(former, self._request(pb.HAND_OVER_STEP_COMMIT, epoch))
        except grpc.RpcError as error:
            return error
        if not answer.done:
            group.give_up()
            raise _failed(f"{former} did not hand over: {answer.reason}")
        try:
            return group.take_over(epoch)
        except OSError as error:
            return error

    def _request(self, step: pb.HandOverStep.ValueType, epoch: int) -> pb.HandOverRequest:
        group = self._group
        return pb.HandOverRequest(step=step, node_id=group.node_id, primary=group.own, epoch=epoch)

    # -- by force ----------------------------------------------------------------------

    def _by_force(
        self, others: list[Seen], silent: list[str], accept_loss: bool, *, again: bool = False
    ) -> Promoted:
        """``again``: others may be fenced for this node already, so that a node that has more
        could not be promoted by whoever is told of it: it is given the epoch instead."""
        group, followed = self._group, self._group.role.primary
        former = last_primary(group.status(), others)
        # Asked before anything is changed, and again of what has become of it.
        if not again:
            self._check(group.status(), others, former, accept_loss)
        elif all(node.listen != former for node in others):
            best, *rest = sorted([group.status(), *others], key=lambda node: node.reach)[::-1]
            self._check(best, rest, former, accept_loss)
        epoch = next_epoch([group.status(), *others])
        # Where loss was accepted a person asks again: nobody knows how much later that is, and
        # what the fenced nodes say then does not show any more what may be missing.
        mine = group.promise(epoch, alone=True, resumes=not accept_loss)
        try:
            request = pb.FenceRequest(
                epoch=epoch,
                node_id=group.node_id,
                primary=group.own,
                store_id=mine.standing.store_id,
            )
            fenced = group.peers.fence([node.listen for node in others], request)
            heard = [
                replace(node, standing=fenced[node.listen])
                for node in others
                if node.listen in fenced
            ]
            best = max([mine, *heard], key=lambda node: node.reach)
            if best.reach > mine.reach:
                # It got more meanwhile. Nobody else may lead in this epoch, so that it can.
                self._give_epoch_to(best, epoch)
            lacks = self._check(mine, heard, former, accept_loss)
            standing = group.take_over(epoch)
        except Exception:
            group.give_up(epoch, forcing=epoch if again else 0)
            raise
        missing = [node.listen for node in others if node.listen not in fenced]
        return Promoted(standing.epoch, standing.position, followed, (*silent, *missing), lacks)

    def _give_epoch_to(self, best: Seen, epoch: int) -> NoReturn:
        try:
            done = self._group.peers.lead(best.listen, epoch)
        except grpc.RpcError as error:
            raise _failed(f"{best.listen} has more of the log: {told_by(error)}") from error
        now = "is primary now" if done else "should be promoted"
        raise _not_the_furthest(best, f"{best.listen} has more of the log and {now}")

    def _check(self, mine: Seen, others: list[Seen], former: str, accept_loss: bool) -> bool:
        """Whether acknowledged writes may be missing here; raises FailedPrecondition when
        that is not accepted, or another replica has more."""
        better = further(mine, others, former)
        if better is not None:
            raise _not_the_furthest(
                better,
                f"{better.listen} has more of the log: position {better.standing.position}, "
                f"here {mine.standing.position}",
            )
        lacks = may_lack(mine, others, former, len(self._group.peers.nodes))
        if lacks and not accept_loss:
            raise FailedPrecondition(
                "writes that were acknowledged may be missing here",
                reason="MAY_LACK_WRITES",
                hint="promote without force where the primary answers; else wait for more of the "
                "nodes, or accept the loss (--accept-loss)",
            )
        return lacks


def _failed(text: str) -> Unavailable:
    return Unavailable(text, reason="PROMOTION_FAILED", retry_after_ms=5_000)


def _not_the_furthest(other: Seen, text: str) -> FailedPrecondition:
    return FailedPrecondition(
        text,
        reason="NOT_THE_FURTHEST",
        hint=f"promote that one, or this one in good order; clients reach it at {other.address}",
        metadata={"further": other.address},
    )
