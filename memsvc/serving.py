"""A node behind gRPC and HTTP, put together, started, reloaded and stopped."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import memsvc
from memsvc.config import Effective, Settings, load, merge_reload, reload_diff
from memsvc.config.loading import ConfigError
from memsvc.domain.errors import FailedPrecondition
from memsvc.http.app import AppOptions, HttpApp, metrics_app
from memsvc.http.server import HttpOptions, HttpServer
from memsvc.readers.crew import Crew
from memsvc.readers.early import EarlyReaders
from memsvc.readers.place import MeetingPlace, SharedPort
from memsvc.rpc.group import add_group
from memsvc.rpc.replication import ReplicationOptions, ReplicationServer
from memsvc.rpc.server import RpcOptions, RpcServer
from memsvc.service import logs, traces
from memsvc.service.access import Access, Gate
from memsvc.service.admin import AdminService
from memsvc.service.certificates import Ending, days_left
from memsvc.service.limits import CallPool, RateLimiter
from memsvc.service.listening import ListenError, tls_of
from memsvc.service.metrics import Metrics
from memsvc.service.node import Node
from memsvc.service.shared_limits import SharedRateLimiter
from memsvc.service.tokens import TokensFileError, TokenStore
from replicas.group import Group
from replicas.promotion import Promotion
from replicas.replica import prepare
from replicas.role import read_role

log = logging.getLogger("memsvc.server")

REFUSALS: Final = (FailedPrecondition, ListenError, TokensFileError)
"""What a Server raises when it cannot start, for reasons that starting again would not mend."""


def make_ready(settings: Settings) -> None:
    """Sees to it that a node of a group has a store to begin with: one without copies that of its
    primary, and waits for it, however long. May be broken off anywhere. Raises FailedPrecondition
    when a person is needed."""
    if settings.node.role != "standalone":
        prepare(settings)


class NodeApi:
    """The node as the gate calls it."""

    def __init__(self, node: Node) -> None:
        self.write = node.memory.write
        self.query = node.memory.query
        self.forget = node.memory.forget
        self.health = node.health


class Server:
    """A node and its listeners. ``start`` once, ``stop`` once; ``reload`` at any time.

    ``config_file`` and ``overrides`` are what ``effective`` was read from, with the process
    environment; a reload reads them again. After ``make_ready``. Raises what is in REFUSALS.
    """

    def __init__(
        self,
        effective: Effective,
        config_file: Path | None,
        overrides: Mapping[str, object],
        early: EarlyReaders,
    ) -> None:
        self._effective = effective
        self._config_file = config_file
        self._overrides = dict(overrides)
        self._reload_lock = threading.Lock()
        settings = effective.settings
        self.metrics = Metrics()
        self._tokens: TokenStore | None = None
        if settings.auth.mode == "token":
            self._tokens = TokenStore(
                settings.tokens_path, namespace_scope=settings.auth.namespace_scope
            )
        self.restart = threading.Event()
        """Set when the process should end and be started again, to copy its primary anew."""
        self._stopping = threading.Event()
        with ExitStack() as undo:
            self._put_together(settings, early, undo)
            undo.pop_all()

    def _put_together(self, settings: Settings, early: EarlyReaders, undo: ExitStack) -> None:
        """``undo`` closes again what was opened, when the rest fails: threads that go on would keep
        the process from ending."""
        self.node = Node(
            settings,
            metrics=self.metrics,
            follows=not read_role(settings.storage.data_dir, settings).leads,
            asks_first=settings.node.role != "standalone",
        )
        undo.callback(self.node.stop)
        self._group, self._feed = self._replication(settings)
        self._promotion = None if self._group is None else Promotion(self._group)
        self._crew, place = self._readers(settings, early, undo)
        rate, burst = settings.limits.requests_per_second, settings.limits.burst
        self._limiter = (
            SharedRateLimiter(place.limits, rate, burst) if place else RateLimiter(rate, burst)
        )
        self._pool = CallPool(settings.server.workers, settings.server.max_connections)
        self._tracing = traces.start(settings.telemetry.otlp_endpoint, memsvc.__version__)
        promote = self._promotion.promote if self._promotion is not None else None
        gate = Gate(
            NodeApi(self.node),
            access=Access(self._tokens, header=settings.auth.token_header, now_ms=self.node.clock),
            limiter=self._limiter,
            metrics=self.metrics,
            admin=AdminService(self.node, self.reload, promote),
        )
        rpc = RpcOptions.from_settings(settings, self._current)
        if place is not None:
            rpc = RpcOptions.behind_readers(settings, self._current, place.socket)
        self._rpc = RpcServer(gate, self._pool, rpc, self._tracing)
        self._http_app: HttpApp | None = None
        if settings.server.http_listen:
            options = AppOptions.from_settings(settings, memsvc.__version__, self._current)
            self._http_app = HttpApp(gate, self._pool, options, tracing=self._tracing)
            if (crew := self._crew) is not None:
                self._http_app.others_serve = lambda: crew.ready > 0
        self._http = self._listeners(settings, gate)

    def _look_at_certificate(self, settings: Settings) -> None:
        """Says so where clients will refuse it, now or soon. The node serves all the same."""
        if (files := tls_of(settings)) is None:
            return
        files.check()
        self.node.certificate_until = until = Ending(files).until
        if soon := days_left(until(), self.node.clock()):
            log.warning("%s", soon)

    def _readers(
        self, settings: Settings, early: EarlyReaders, undo: ExitStack
    ) -> tuple[Crew | None, MeetingPlace | None]:
        if not early.count:
            return None, None
        place = MeetingPlace(settings.storage.data_dir)
        undo.callback(place.close)
        port = SharedPort(settings.server.listen)
        undo.callback(port.close)
        return Crew(self.node, self._tokens, early, port, place), place

    def _listeners(self, settings: Settings, gate: Gate) -> list[HttpServer]:
        found = []
        main, metrics = HttpOptions.from_settings(settings), HttpOptions.for_metrics(settings)
        if self._http_app is not None and main is not None:
            found.append(HttpServer(self._http_app.app, main))
        if metrics is not None:
            found.append(HttpServer(metrics_app(gate), metrics))
        return found

    def _begin_anew(self, _reason: str) -> None:
        self.restart.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def _replication(self, settings: Settings) -> tuple[Group | None, ReplicationServer | None]:
        if settings.node.role == "standalone":
            return None, None
        group = Group(self.node, settings, self._begin_anew)
        if not settings.replication.listen:
            return group, None
        options = ReplicationOptions.from_settings(settings)
        server = ReplicationServer(self.node.feed, self.node.bootstraps, options)
        server.add(lambda to, door: add_group(group, to, door))
        return group, server

    def _current(self) -> Settings:
        return self._effective.settings

    @property
    def port(self) -> int:
        """Port of the gRPC listener."""
        return self._crew.port if self._crew is not None else self._rpc.port

    @property
    def http_port(self) -> int:
        """Port of the HTTP listener; 0 without one."""
        return self._http[0].port if self._http_app is not None else 0

    def start(self, ending: Callable[[], bool]) -> None:
        """Listens and serves. ``ending`` says whether the process was told to end meanwhile."""
        try:
            self._look_at_certificate(self._current())
            if self._feed is not None:
                self._feed.start()
            if self._group is not None:
                # Before calls are taken: another node may be primary by now.
                self._group.start()
            self._rpc.start()
            for server in self._http:
                server.start()
            # Before readers ask: they would say for another second that the node serves nothing.
            self._rpc.follow_health()
            if self._crew is not None:
                self._crew.start(ending)
        except BaseException:
            self.stop(0.0)
            raise
        if self._promotion is not None:
            self._promotion.start()
        self.node.leading.on_changed.append(self._rpc.look_now)
        log.info("memsvc %s serves %s", memsvc.__version__, self.node.store.data_dir)

    @property
    def alive(self) -> bool:
        """Whether the process does its work. One that is stopping in good order is alive."""
        return self._stopping.is_set() or self.node.alive

    def stop(self, grace_seconds: float | None = None) -> None:
        """Finishes or refuses every call, then closes the store."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        if grace_seconds is None:
            grace_seconds = self._effective.settings.server.graceful_shutdown_ms / 1_000
        until = time.monotonic() + grace_seconds
        self.node.drain()
        if self._http_app is not None:
            self._http_app.draining = True
        if self._crew is not None:
            # First: until they have finished, this process answers what they pass on.
            self._crew.stop(grace_seconds)
        self._rpc.stop(max(0.0, until - time.monotonic()))
        for server in self._http:
            server.stop(max(0.0, until - time.monotonic()))
        self._pool.close(max(1.0, until - time.monotonic()))
        if self._feed is not None:
            self._feed.stop()
        if self._promotion is not None:
            self._promotion.stop()
        if self._group is not None:
            self._group.stop()
        self.node.stop()
        self._tracing.close()
        log.info("stopped")

    def reload(self) -> tuple[list[str], list[str]]:
        """Reads configuration and tokens again; returns what took effect, and what needs a
        restart. Raises FailedPrecondition when the file is not valid; nothing changes then."""
        with self._reload_lock:
            try:
                fresh = load(self._config_file, os.environ, self._overrides)
            except ConfigError as error:
                raise FailedPrecondition(
                    f"the configuration is not valid: {error}",
                    reason="CONFIG_INVALID",
                    hint="the settings in force stay; correct the file and reload again",
                ) from error
            changed, fixed = reload_diff(self._effective.settings, fresh.settings)
            merged = merge_reload(self._effective, fresh)
            settings = merged.settings
            self.node.apply(settings)
            self._effective = merged
            self._limiter.configure(settings.limits.requests_per_second, settings.limits.burst)
            logs.set_level(settings.log.level)
            if self._tokens is not None:
                self._tokens.reload()
            if self._crew is not None:
                self._crew.reload(settings)
            log.info("reloaded; changed: %s; need a restart: %s", changed, fixed)
            return changed, fixed
