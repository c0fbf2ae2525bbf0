"""The gRPC server: listening, TLS, limits of connections, health, reflection, an orderly end.

How ``server.max_connections`` is kept: the transport itself refuses further connections (the
client sees UNAVAILABLE and backs off), and the same number bounds the calls that run or wait
for a thread, over both protocols (RESOURCE_EXHAUSTED with a retry delay).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from memsvc.admin.v1 import admin_service_pb2_grpc
from memsvc.config import Settings
from memsvc.rpc.admin import AdminServicer
from memsvc.rpc.forwarding import METADATA_MORE, Forwarder
from memsvc.rpc.interceptors import CallInterceptor, Lanes
from memsvc.rpc.servicers import MemoryServicer
from memsvc.rpc.serving import ADMIN_SERVICE, MEMORY_SERVICE, NAMES, NOTHING, Serving
from memsvc.rpc.tls import server_credentials
from memsvc.service.access import Gate
from memsvc.service.limits import CallPool, Timeouts, timeouts_of
from memsvc.service.listening import ListenError, TlsFiles, tls_of
from memsvc.service.traces import Tracing
from memsvc.v1 import memory_service_pb2_grpc

IDLE_MS: Final = 300_000
"""A connection without calls is closed after this; clients replace theirs earlier."""
AGE_MS: Final = 3_600_000
"""A connection is replaced after this, so that load spreads over new nodes."""
AGE_GRACE_MS: Final = 30_000
REFUSING_S: Final = 1.0
"""Longest time in which new calls are refused before the listener closes, when none runs."""
QUIET_S: Final = 0.25
"""Time without a new call after which it closes."""
METADATA_BYTES: Final = 16_384
STREAMS_LEAST: Final = 512
"""Calls at a time that every connection takes, to answer or refuse them."""

_log = logging.getLogger("memsvc.rpc")


@dataclass(frozen=True, slots=True)
class RpcOptions:
    """How to serve. Sizes in bytes."""

    listen: str = "127.0.0.1:8848"
    max_connections: int = 512
    max_message_bytes: int = 16 * 1024 * 1024
    tls: TlsFiles | None = None
    timeouts: Callable[[], Timeouts] = field(default=Timeouts)
    max_lag_ms: Callable[[], int] = lambda: 0
    """Lag past which a replica is not fit for reads; 0 = none."""
    shared_port: bool = False
    """Whether other processes of the node listen on the same port."""

    @classmethod
    def from_settings(
        cls, settings: Settings, current: Callable[[], Settings] | None = None
    ) -> RpcOptions:
        """The listener of ``server.listen``. ``current`` gives the settings in force after a
        reload."""
        server, now = settings.server, current or (lambda: settings)
        return cls(
            listen=server.listen,
            max_connections=server.max_connections,
            max_message_bytes=server.max_message_bytes,
            tls=tls_of(settings),
            timeouts=timeouts_of(now),
            max_lag_ms=lambda: now().replication.max_lag_ms,
        )

    @classmethod
    def on_shared_port(
        cls, settings: Settings, current: Callable[[], Settings], listen: str
    ) -> RpcOptions:
        """The listener of one of several readers. ``listen`` is server.listen, with the port
        that was found for it."""
        options = cls.from_settings(settings, current)
        return replace(options, listen=listen, shared_port=True)

    @classmethod
    def behind_readers(
        cls, settings: Settings, current: Callable[[], Settings], socket: str
    ) -> RpcOptions:
        """The listener of a serving process whose readers have ``server.listen``. ``socket``
        is the path of a socket in a folder that nobody else may enter."""
        options = cls.from_settings(settings, current)
        return replace(options, listen=f"unix:{socket}", tls=None)


class RpcServer:
    """One gRPC server over a Gate. ``pool`` may be shared with the HTTP server. With
    ``forward`` only Query is answered here, and the rest where that leads to."""

    def __init__(
        self,
        gate: Gate,
        pool: CallPool,
        options: RpcOptions,
        tracing: Tracing | None = None,
        forward: Forwarder | None = None,
    ) -> None:
        self._options = options
        self._gate = gate
        self._drained = threading.Event()
        self._pool = pool
        self._lanes = Lanes()
        self._forward = forward
        self._interceptor = CallInterceptor(gate, pool, self._lanes, tracing, forward)
        self._health = health.HealthServicer(
            experimental_non_blocking=True, experimental_thread_pool=self._lanes.quick
        )
        self._serving = Serving()
        self._told: Mapping[str, bool] = {}
        self._telling = threading.Lock()
        self.port = 0
        self._server = grpc.server(
            pool,
            interceptors=[self._interceptor],
            options=_channel_options(options),
            # The pool refuses earlier, with details; this holds if ever it does not.
            maximum_concurrent_rpcs=options.max_connections + 128,
        )
        memory_service_pb2_grpc.add_MemoryServiceServicer_to_server(
            MemoryServicer(gate, options.timeouts), self._server
        )
        admin_service_pb2_grpc.add_AdminServiceServicer_to_server(
            AdminServicer(gate, options.timeouts), self._server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (MEMORY_SERVICE, ADMIN_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME),
            self._server,
        )
        self.tell(NOTHING)

    def start(self) -> int:
        """Listens and serves; returns the port. Raises ListenError."""
        listen = self._options.listen
        try:
            if self._options.tls is None:
                self.port = self._server.add_insecure_port(listen)
            else:
                credentials = server_credentials(self._options.tls)
                self.port = self._server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise ListenError(
                f"server.listen: cannot listen on {listen}: the port is taken (by another "
                "memsvc?) or the address is not of this machine"
            ) from error
        if not self.port:
            raise ListenError(f"server.listen: cannot listen on {listen}")
        self._server.start()
        if listen.startswith("unix:"):
            _log.info("gRPC listens on %s, for readers", listen)
        else:
            _log.info("gRPC listens on %s, port %d", listen.rpartition(":")[0], self.port)
        return self.port

    def tell(self, serving: Mapping[str, bool]) -> None:
        """What the standard health service answers for each name; may be called often."""
        status = health_pb2.HealthCheckResponse
        with self._telling:
            for name, serves in serving.items():
                if self._told.get(name) is not serves:
                    self._health.set(name, status.SERVING if serves else status.NOT_SERVING)
            self._told = dict(serving)

    def follow_health(self, interval_seconds: float = 1.0) -> None:
        """Keeps ``tell`` at what the node says of itself, until the server drains. A node
        that cannot say is not ready."""

        def look(failing: bool) -> bool:
            try:
                serving, failed = self._look(), False
            except Exception:
                if not failing:  # told once, not every second
                    _log.exception("the node could not tell whether it is ready")
                serving, failed = NOTHING, True
            self.tell(serving)
            return failed

        def follow(failing: bool) -> None:
            while not self._drained.wait(interval_seconds):
                failing = look(failing)

        threading.Thread(
            target=follow, args=(look(failing=False),), name="memsvc-readiness", daemon=True
        ).start()

    def look_now(self) -> None:
        """Tells at once what the node says of itself; nothing when it cannot say."""
        with contextlib.suppress(Exception):  # follow_health tells of it
            self.tell(self._look())

    def _look(self) -> Mapping[str, bool]:
        if self._forward is not None:
            return self._forward.serving(NAMES)
        return self._serving.look(self._gate.health(), self._options.max_lag_ms())

    @property
    def _pending(self) -> int:
        return self._pool.pending + (self._forward.pool.pending if self._forward else 0)

    def drain(self) -> None:
        """Health turns NOT_SERVING for good; calls are still served."""
        self._drained.set()
        self._health.enter_graceful_shutdown()

    def stop(self, grace_seconds: float) -> bool:
        """Takes no new calls, lets those that run finish, breaks off the rest after
        ``grace_seconds``. Returns whether all of them finished. The pool stays open."""
        until = time.monotonic() + grace_seconds
        self.drain()
        self._refuse(until)
        stopped = self._server.stop(max(0.0, until - time.monotonic()))
        in_time = stopped.wait(grace_seconds + 5.0)
        # Handlers of calls that were broken off notice it by their Control.
        while self._pending and time.monotonic() < until:
            time.sleep(0.005)
        finished = in_time and self._pending == 0
        self._lanes.close()
        if not finished:
            _log.warning("%d calls were broken off at the end", self._pending)
        return finished

    def _refuse(self, until: float) -> None:
        """Answers new calls UNAVAILABLE until those that run have finished and none has come
        for a moment. A call that arrives while the library closes is answered CANCELLED by
        it, which no client repeats."""
        self._interceptor.draining = True
        started = now = time.monotonic()
        while now < until:
            quiet = now - max(started, self._interceptor.refused_at) > QUIET_S
            if not self._pending and (quiet or now - started > REFUSING_S):
                return
            time.sleep(0.01)
            now = time.monotonic()


def _channel_options(options: RpcOptions) -> list[tuple[str, int]]:
    behind = options.listen.startswith("unix:")
    # The connection of a reader carries the calls of all its clients. It lives as long as both
    # processes: where it was replaced, calls longer than the grace would be broken off.
    age = (
        []
        if behind
        else [
            ("grpc.max_connection_idle_ms", IDLE_MS),
            ("grpc.max_connection_age_ms", AGE_MS),
            ("grpc.max_connection_age_grace_ms", AGE_GRACE_MS),
        ]
    )
    return [
        *age,
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", options.max_message_bytes),
        # Otherwise a second server could take the same port without an error, and half of
        # the connections with it.
        ("grpc.so_reuseport", int(options.shared_port)),
        ("grpc.max_allowed_incoming_connections", options.max_connections),
        ("grpc.max_concurrent_streams", max(512, options.max_connections)),
        # Dead peers (a cable pulled, a container frozen) are noticed within 80 seconds.
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients may probe every 10 seconds or less often; every 30 is usual.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.max_metadata_size", METADATA_BYTES + (METADATA_MORE if behind else 0)),
    ]
