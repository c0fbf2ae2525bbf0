"""Serves an application over HTTP from a thread of this process.

The socket is bound before the thread starts, so that a taken port is an error of ``start``
and the port is known at once. Signals are the business of whoever runs the process.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import uvicorn

from memsvc.config import Settings, parse_listen
from memsvc.http.protocol import Protocol
from memsvc.service.certificates import Renewal
from memsvc.service.listening import ListenError, TlsFiles, tls_of

START_SECONDS: Final = 10.0
KEEP_ALIVE_SECONDS: Final = 75
"""A connection without requests is closed after this; clients replace theirs earlier."""

_log = logging.getLogger("memsvc.http")


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """How to listen. ``key`` names the setting in error messages."""

    host: str = "127.0.0.1"
    port: int = 8849
    max_connections: int = 512
    tls: TlsFiles | None = None
    key: str = "server.http_listen"

    @classmethod
    def from_settings(cls, settings: Settings) -> HttpOptions | None:
        """The listener of ``server.http_listen``; None when it is off."""
        server = settings.server
        if not server.http_listen:
            return None
        host, port = parse_listen(server.http_listen)
        return cls(host, port, server.max_connections, tls_of(settings))

    @classmethod
    def for_metrics(cls, settings: Settings) -> HttpOptions | None:
        """The listener of ``metrics.listen``, without TLS; None when it is off."""
        if not settings.metrics.listen:
            return None
        host, port = parse_listen(settings.metrics.listen)
        return cls(host, port, 64, key="metrics.listen")


class HttpServer:
    """One HTTP server in a thread. ``start`` once, ``stop`` once."""

    def __init__(self, app: Any, options: HttpOptions) -> None:
        self._app = app
        self._options = options
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.port = 0

    def start(self) -> int:
        """Listens and serves; returns the port. Raises ListenError."""
        options = self._options
        if options.tls:
            options.tls.check()
        bound = _bind(options)
        self.port = int(bound.getsockname()[1])
        config = uvicorn.Config(
            self._app,
            http=Protocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            # The pool refuses earlier, with a problem document; this bounds the rest.
            limit_concurrency=options.max_connections + 64,
            h11_max_incomplete_event_size=16 * 1024,
            **_tls(options.tls),
        )
        if options.tls:
            config.load()
            _renew(config, options.tls)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [bound]}, name="memsvc-http", daemon=True
        )
        self._thread.start()
        until = time.monotonic() + START_SECONDS
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until:
                raise ListenError(f"{options.key}: the server did not start; see the log")
            time.sleep(0.002)
        _log.info("HTTP listens on %s, port %d (%s)", options.host, self.port, options.key)
        return self.port

    def stop(self, grace_seconds: float) -> bool:
        """Takes no new connections, lets running requests finish, breaks off the rest after
        ``grace_seconds``. Returns whether it ended by itself."""
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return True
        server.config.timeout_graceful_shutdown = max(0, round(grace_seconds))
        server.should_exit = True
        thread.join(grace_seconds + 1.0)
        if thread.is_alive():
            server.force_exit = True
            thread.join(2.0)
            return False
        return True


def _bind(options: HttpOptions) -> socket.socket:
    try:
        found = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ListenError(f"{options.key}: {options.host} is no address: {error}") from error
    family, kind, protocol, _, address = found[0]
    # With the protocol named: asyncio turns Nagle's delay (40 ms an answer) off only then.
    bound = socket.socket(family, kind, protocol)
    try:
        # Lets a restarted server have the port while old connections time out. On Linux two
        # listeners can still not share it.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(1024)
        bound.set_inheritable(False)
    except OSError as error:
        bound.close()
        raise ListenError(
            f"{options.key}: cannot listen on {options.host} port {options.port}: "
            f"{error.strerror or error} (is another memsvc running?)"
        ) from error
    return bound


def _tls(files: TlsFiles | None) -> dict[str, Any]:
    if files is None:
        return {}
    settings: dict[str, Any] = {
        "ssl_certfile": files.cert_file,
        "ssl_keyfile": files.key_file,
    }
    if files.client_ca_file:
        settings["ssl_ca_certs"] = files.client_ca_file
        settings["ssl_cert_reqs"] = ssl.CERT_REQUIRED
    return settings


def _renew(config: uvicorn.Config, files: TlsFiles) -> None:
    """Has a certificate that is replaced on disk shown to whoever connects from then on."""
    context, renewal = config.ssl, Renewal(files)
    assert context is not None
    shown = context

    def greeted(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal shown
        if renewal.renewed():
            # Another one: a connection that has begun takes no changes of its own.
            fresh = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            try:
                fresh.load_cert_chain(files.cert_file, files.key_file)
                shown = fresh
            except (OSError, ssl.SSLError) as error:  # replaced once more
                _log.warning("the certificate was not taken: %s", error)
        if shown is not context:
            connection.context = shown

    # Called at the beginning of each handshake, with a name or without.
    context.sni_callback = greeted
