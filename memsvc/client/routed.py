"""The four calls on a primary and its replicas: each call goes where it is served best.

Changes go to the primary. Reads go to the healthiest replica, and to the primary when no
replica is good; then they are marked, and the primary answers with at most 20 items.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from memsvc.client.calls import MemoryCalls
from memsvc.client.connection import (
    DEFAULT_TOKEN_HEADER,
    Connection,
    Timeouts,
    Tls,
    checked_token,
)
from memsvc.client.errors import ClientError, closed, from_rpc, unreachable
from memsvc.client.fleet import Fleet
from memsvc.client.routing import NodeState, RoutingTable
from memsvc.domain.backoff import backoff_s
from memsvc.domain.positions import later
from memsvc.domain.types import DegradedLevel
from memsvc.v1 import memory_service_pb2 as pb

NOT_PRIMARY: Final = "NOT_PRIMARY"
NO_PRIMARY: Final = "NO_PRIMARY"
"""Reason of an error that no server gave: nodes answered, and none was the primary."""
POSITION_LOST: Final = "POSITION_LOST"
REPLICA_LAGGING: Final = "REPLICA_LAGGING"
"""Reason of an answer from a replica that is too far behind, when nobody else answers."""
ASK_PRIMARY: Final = frozenset({"POSITION_NOT_REACHED", POSITION_LOST, "EMBEDDING_UNKNOWN"})
"""Reasons for which a replica refuses what the primary may answer: it has not applied yet
what the caller knows of."""
_BROKEN: Final = frozenset({"CANCELLED", "UNKNOWN"})
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 0.5
WAIT_S: Final = 0.1
"""How often a call that waits looks whether there is another primary."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How calls find their node. Times in seconds."""

    check_interval: float = 1.0
    """Time between two health checks of each node. A replica that was bad is read from again
    after ten good ones in a row."""
    max_lag: float = 10.0
    """A replica further behind its primary is not read from."""
    hedge_after: float = 0.5
    """A read that was not answered for so long is sent to a second node too; the first answer
    counts."""
    read_your_writes: bool = False
    """Whether every read sees the writes and forgets of this client that were answered before
    it began: their position travels as min_position."""


class RoutedClient(MemoryCalls):
    """A client of a primary and its replicas; see MemoryCalls for what can be asked.

    ``addresses`` are host:port of the nodes in any order; which is the primary they tell
    themselves, also when it changes. Connects at the first call; safe to use from several
    threads; a context manager. Administration is for one node: take MemoryClient.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        token: str | None = None,
        *,
        tls: Tls | None = None,
        timeouts: Timeouts | None = None,
        token_header: str = DEFAULT_TOKEN_HEADER,
        embedding: str = "",
        routing: Routing | None = None,
    ) -> None:
        """``token`` must be one that every node knows; without it lag is not told to the
        router. ``token_header`` is the setting auth.token_header of the servers."""
        super().__init__(timeouts, embedding)
        if isinstance(addresses, str):
            raise TypeError("addresses: expected a list of host:port")
        self.routing = routing or Routing()
        self._position = ""
        self._positions = threading.Lock()
        checked = checked_token(token)  # here, and not in the thread that connects

        def connect(address: str) -> Connection:
            return Connection(address, checked, tls, self.timeouts, token_header, repeats=False)

        self._fleet = Fleet(
            RoutingTable(addresses, round(self.routing.max_lag * 1_000)),
            connect,
            interval_s=self.routing.check_interval,
            timeout_s=self.timeouts.connect,
        )

    def nodes(self) -> tuple[NodeState, ...]:
        """What is known of each node now."""
        return self._fleet.choose(RoutingTable.states)

    def health(self, *, timeout: float | None = None) -> pb.HealthResponse:
        """How the primary is; see ``nodes`` for all of them."""
        change = _Change(self._fleet, "Health", True, timeout or self.timeouts.read)
        answer: pb.HealthResponse = change.run(pb.HealthRequest())
        return answer

    def close(self) -> None:
        """Ends the thread of health checks and closes the connections; calls in flight are
        broken off."""
        self._fleet.close()

    def _write(self, request: pb.WriteRequest, timeout: float) -> pb.WriteResponse:
        change = _Change(self._fleet, "Write", bool(request.request_id), timeout)
        answer: pb.WriteResponse = change.run(request)
        self._wrote(answer.position)
        return answer

    def _forget(self, request: pb.ForgetRequest, timeout: float) -> pb.ForgetResponse:
        repeatable = bool(request.request_id) or request.validate_only
        change = _Change(self._fleet, "Forget", repeatable, timeout)
        answer: pb.ForgetResponse = change.run(request)
        self._wrote(answer.position)
        return answer

    def _query(self, request: pb.QueryRequest, timeout: float) -> pb.QueryResponse:
        own = ""
        if self.routing.read_your_writes and not request.min_position:
            own = request.min_position = self._position
        try:
            return _Read(self._fleet, request, timeout, self.routing.hedge_after).run()
        except ClientError as error:
            if own and error.reason == POSITION_LOST:
                # Told once. To ask for it again and again would end every read.
                with self._positions:
                    self._position = "" if self._position == own else self._position
            raise

    def _wrote(self, position: str) -> None:
        # Answers of several threads may come in another order than the writes.
        with self._positions:
            self._position = later(self._position, position)


class _Call:
    """One call on its way: its deadline, what went wrong so far, whom to leave alone."""

    def __init__(self, fleet: Fleet, timeout: float) -> None:
        self._fleet = fleet
        self._deadline = time.monotonic() + timeout
        self._held: dict[str, float] = {}
        self._failures = 0
        self._last: ClientError | None = None

    @property
    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _held_now(self) -> set[str]:
        now = time.monotonic()
        return {address for address, until in self._held.items() if until > now}

    def _went_wrong(self, address: str, error: ClientError) -> None:
        """Leaves a node alone for as long as it asked for, or for a moment."""
        self._failures += 1
        pause = backoff_s(self._failures, FIRST_PAUSE_S, LONGEST_PAUSE_S)
        pause = max(pause * (0.5 + random.random() / 2), (error.retry_after_ms or 0) / 1_000)
        self._held[address] = time.monotonic() + pause
        if error.reason != NOT_PRIMARY:
            self._last = error

    def _told(self, error: ClientError) -> ClientError:
        """The error to raise when this one ended the call: where only the time was over, what
        went wrong before says more."""
        if self._last is not None and self._left <= 0 and _by_library(error):
            return self._last
        return error

    def _wait(self) -> None:
        """A moment in which something may change. ClientError when the time is over."""
        left = self._left
        if left > 0:
            self._fleet.wait(min(left, WAIT_S))
            return
        raise self._last or _nobody(self._fleet.choose(RoutingTable.states))


def _nobody(nodes: Sequence[NodeState]) -> ClientError:
    """The error of a call that no node took, though none failed."""
    asked = ", ".join(node.address for node in nodes)
    if not any(node.role for node in nodes):
        troubles = "; ".join(dict.fromkeys(node.trouble for node in nodes if node.trouble))
        return unreachable(asked, troubles or "no answer in time")
    return ClientError(
        "UNAVAILABLE",
        f"none of the nodes at {asked} was the primary",
        reason=NO_PRIMARY,
        hint="is the primary among the addresses, or named by its replicas (setting "
        "replication.advertise)? If it is lost, promote a replica",
    )


def _result(address: str, future: grpc.Future[Any]) -> Any:
    """The answer of a call that has ended. Raises ClientError."""
    try:
        return future.result()
    except grpc.FutureCancelledError:
        raise closed() from None
    except grpc.RpcError as error:
        raise from_rpc(error, address) from None


def _lost(error: ClientError) -> bool:
    """Whether a node did not answer, or is about to end. Without details these are the words of
    the library: for a call that arrives while a server closes, or whose connection broke."""
    return error.code == "UNAVAILABLE" or (error.code in _BROKEN and _by_library(error))


def _by_library(error: ClientError) -> bool:
    return error.reason == error.code


class _Change(_Call):
    """A call that only the primary answers. ``repeatable``: carried out once, however often
    it is sent."""

    def __init__(self, fleet: Fleet, call: str, repeatable: bool, timeout: float) -> None:
        super().__init__(fleet, timeout)
        self._call = call
        self._repeatable = repeatable

    def run(self, request: Any) -> Any:
        """The answer of whoever is the primary before the deadline. Raises ClientError."""
        while True:
            address = self._fleet.choose(lambda table: table.writer(self._held_now()))
            if not address or self._left <= 0:
                self._wait()
                continue
            future = self._fleet.begin(address, self._call, request, self._left)
            try:
                return self._finished(address, future)
            except ClientError as error:
                if error.reason == NOT_PRIMARY:
                    self._fleet.refused(address, error.metadata.get("primary", ""))
                elif not self._repeatable or not self._may_repeat(error):
                    raise self._told(error) from None
                elif _lost(error):
                    self._fleet.failed(address, error.message)
                self._went_wrong(address, error)

    def _may_repeat(self, error: ClientError) -> bool:
        return self._left > 0 and (_lost(error) or error.code == "DEADLINE_EXCEEDED")

    def _finished(self, address: str, future: grpc.Future[Any]) -> Any:
        done = threading.Event()
        future.add_done_callback(lambda _future: done.set())
        while not done.wait(WAIT_S):
            if not self._repeatable:
                continue
            primary = self._fleet.choose(lambda table: table.primary)
            if primary not in ("", address):
                # The node hangs, and another has taken its place.
                future.cancel()
                raise ClientError("UNAVAILABLE", f"{address} is no longer the primary")
        return _result(address, future)


@dataclass(frozen=True, slots=True)
class _Goal:
    address: str
    fallback: bool = False
    lags: bool = False


class _Read(_Call):
    """A Query. At most two nodes work on it at a time."""

    def __init__(
        self, fleet: Fleet, request: pb.QueryRequest, timeout: float, hedge_after: float
    ) -> None:
        super().__init__(fleet, timeout)
        self._request = request
        self._hedge_after = hedge_after
        self._running: dict[grpc.Future[Any], _Goal] = {}
        self._done: queue.SimpleQueue[grpc.Future[Any]] = queue.SimpleQueue()
        self._primary_only = False

    def run(self) -> pb.QueryResponse:
        """The first good answer. Raises ClientError."""
        try:
            return self._run()
        finally:
            for future in self._running:
                future.cancel()

    def _run(self) -> pb.QueryResponse:
        hedge_at = 0.0
        while True:
            if not self._running:
                if self._left <= 0 or not self._start():
                    self._wait()
                    continue
                hedge_at = time.monotonic() + self._hedge_after
            try:
                future = self._done.get(timeout=max(0.0, hedge_at - time.monotonic()))
            except queue.Empty:
                # With the position of a write in the request it is probably waiting for that.
                self._primary_only = self._primary_only or bool(self._request.min_position)
                self._start()
                hedge_at = self._deadline + 1.0  # the library ends the calls before
                continue
            goal = self._running.pop(future)
            try:
                return self._marked(_result(goal.address, future), goal)
            except ClientError as error:
                self._judge(goal, error)

    def _start(self) -> bool:
        """Sends the request to one more node; False when there is none."""
        goal = self._fleet.choose(self._goal)
        if goal is None:
            return False
        request = self._request
        if goal.fallback:
            request = pb.QueryRequest()
            request.CopyFrom(self._request)
            request.fallback = True
        future = self._fleet.begin(goal.address, "Query", request, self._left)
        self._running[future] = goal
        future.add_done_callback(self._done.put)
        return True

    def _goal(self, table: RoutingTable) -> _Goal | None:
        tried = self._held_now() | {goal.address for goal in self._running.values()}
        if not self._primary_only and (replica := table.reader(tried)):
            return _Goal(replica)
        if not table.settled:
            return None
        primary = table.primary
        if primary and primary not in tried:
            return _Goal(primary, fallback=table.is_fallback(primary))
        if self._running or self._primary_only:
            return None
        if replica := table.last_resort(tried):
            return _Goal(replica, lags=table.lags(replica))
        return None

    def _judge(self, goal: _Goal, error: ClientError) -> None:
        """Raises the error unless another node may do better."""
        if _lost(error):
            self._fleet.failed(goal.address, error.message)
        elif error.reason in ASK_PRIMARY and not self._asked_primary(goal):
            self._primary_only = True
        elif not (self._running and error.code == "DEADLINE_EXCEEDED"):
            raise self._told(error)
        self._went_wrong(goal.address, error)

    def _asked_primary(self, goal: _Goal) -> bool:
        return self._fleet.choose(lambda table: table.primary) == goal.address

    def _marked(self, answer: pb.QueryResponse, goal: _Goal) -> pb.QueryResponse:
        if goal.lags and answer.degraded.level < DegradedLevel.FALLBACK:
            answer.degraded.level = int(DegradedLevel.FALLBACK)
            answer.degraded.reason = REPLICA_LAGGING
        return answer
