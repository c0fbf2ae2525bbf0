"""The nodes of one store: a connection to each, and a thread that asks how they are."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import grpc

from memsvc.client.connection import Connection
from memsvc.client.errors import ClientError, closed, unreachable
from memsvc.client.routing import Report, RoutingTable
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc as pb_grpc

T = TypeVar("T")

LOOK_S: Final = 0.05
"""Time between two looks at all nodes while a call waits for one, half of it at random."""
LONGEST_LOOK_S: Final = 0.5
"""What it grows to, twice as long each time: when a primary is lost, all its clients wait."""


def report_of(answer: pb.HealthResponse) -> Report:
    """What a router takes from a Health answer."""
    return Report(
        ready=answer.ready,
        primary=answer.role in (pb.ROLE_PRIMARY, pb.ROLE_STANDALONE),
        epoch=answer.epoch,
        store_id=answer.store_id,
        lag_ms=answer.lag_ms,
        degraded=answer.degraded.level,
    )


class Peer:
    """A connection to one node."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.stub = pb_grpc.MemoryServiceStub(connection.channel)
        self.asked = False
        """Whether a health check is under way."""


class Fleet:
    """Connections, a RoutingTable and the thread that keeps it up to date. Thread-safe.

    ``connect`` makes the connection to an address. Every ``interval_s`` all nodes are asked
    how they are; one that does not answer within ``timeout_s`` is bad.
    """

    def __init__(
        self,
        table: RoutingTable,
        connect: Callable[[str], Connection],
        *,
        interval_s: float,
        timeout_s: float,
    ) -> None:
        self._table = table
        self._connect = connect
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        # Now, since files of certificates that cannot be read should be told at once.
        self._peers = {address: Peer(connect(address)) for address in table.addresses}
        self._wake = threading.Event()
        self._closed = False
        self._watcher = threading.Thread(target=self._watch, name="memsvc-router", daemon=True)
        self._started = False

    # -- for calls ---------------------------------------------------------------------

    def choose(self, pick: Callable[[RoutingTable], T]) -> T:
        """What ``pick`` says of the table, which nothing changes meanwhile. ClientError when
        the client was closed."""
        with self._changed:
            if self._closed:
                raise closed()
            if not self._started:
                self._started = True
                self._watcher.start()
            return pick(self._table)

    def wait(self, seconds: float) -> None:
        """Has all nodes asked again soon; returns after something was learned, at most
        ``seconds`` later."""
        with self._changed:
            self._wake.set()
            self._changed.wait(seconds)

    def begin(self, address: str, call: str, request: Any, timeout: float) -> grpc.Future[Any]:
        """Begins a call to a node; ``call`` is the name of a method of the service."""
        peer = self._peer(address)
        with self._changed:
            self._table.began(address)
        try:
            future = peer.connection.begin(getattr(peer.stub, call), request, timeout)
        except ValueError:
            self._ended(address)
            with self._changed:
                if self._closed:
                    raise closed() from None
                if self._peers.get(address) is not peer:  # forgotten meanwhile
                    raise unreachable(address, "it is no longer the primary") from None
            raise
        future.add_done_callback(lambda _future: self._ended(address))
        return future

    def failed(self, address: str, trouble: str) -> None:
        """A call to a node failed, and why, for people."""
        self._tell(lambda table: table.failed(address, trouble))

    def refused(self, address: str, named: str) -> None:
        """A node is not the primary, and names the one that is ("" = nobody)."""
        self._tell(lambda table: table.refused(address, named))

    def close(self) -> None:
        """Breaks off every call, ends the thread, closes the connections."""
        with self._changed:
            self._closed = True
            self._wake.set()
            self._changed.notify_all()
        if self._watcher.is_alive():
            self._watcher.join()
        with self._changed:
            peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            peer.connection.close()

    def _ended(self, address: str) -> None:
        with self._changed:
            self._table.ended(address)

    def _tell(self, event: Callable[[RoutingTable], object]) -> None:
        with self._changed:
            event(self._table)
            self._changed.notify_all()

    def _peer(self, address: str) -> Peer:
        with self._changed:
            if self._closed:
                raise closed()
            peer = self._peers.get(address)
            if peer is None:
                peer = self._peers[address] = Peer(self._connect(address))
            return peer

    # -- watching ----------------------------------------------------------------------

    def _watch(self) -> None:
        regular_at, pause = time.monotonic(), LOOK_S
        while not self._closed:
            now = time.monotonic()
            regular = now >= regular_at
            if regular:
                regular_at = now + self._interval_s
            self._look(regular)
            if self._wake.wait(max(0.0, regular_at - time.monotonic())):
                time.sleep(pause * (0.5 + random.random() / 2))
                self._wake.clear()
                pause = min(2 * pause, LONGEST_LOOK_S)
            else:
                pause = LOOK_S

    def _look(self, regular: bool) -> None:
        with self._changed:
            addresses = self._table.addresses
            gone = [self._peers.pop(a) for a in list(self._peers) if a not in addresses]
        for peer in gone:
            peer.connection.close()
        for address in addresses:
            try:
                peer = self._peer(address)
                if not peer.asked:
                    self._ask(address, peer, regular)
            except ClientError:
                return  # it was closed
            except (OSError, ValueError) as error:
                self.failed(address, str(error))

    def _ask(self, address: str, peer: Peer, regular: bool) -> None:
        future = peer.connection.begin(peer.stub.Health, pb.HealthRequest(), self._timeout_s)
        peer.asked = True
        future.add_done_callback(partial(self._answered, address, peer, regular))

    def _answered(
        self, address: str, peer: Peer, regular: bool, future: grpc.Future[pb.HealthResponse]
    ) -> None:
        peer.asked = False
        try:
            report = report_of(future.result())
        except grpc.FutureCancelledError:
            self.failed(address, "cancelled")
        except grpc.RpcError as error:
            call: Any = error  # see from_rpc in errors.py
            self.failed(address, str(call.details() or call.code().name))
        else:
            self._tell(lambda table: table.checked(address, report, regular=regular))
