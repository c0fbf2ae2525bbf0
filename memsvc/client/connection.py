"""One channel to a service: where it is, how it is secured, how long a call may take."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc

from memsvc.client.errors import closed, from_rpc

Q = TypeVar("Q")
R = TypeVar("R")

DEFAULT_ADDRESS: Final = "127.0.0.1:8848"
DEFAULT_TOKEN_HEADER: Final = "X-Memory-Token"
MAX_TOKEN: Final = 4_096
"""Characters. Larger ones do not get through the servers' bound for all headers."""
MAX_MESSAGE_BYTES: Final = 256 * 1024 * 1024
"""Only a bound against a broken peer; the server sets the real one."""

IDLE_MS: Final = 240_000
"""A connection without calls is given up after this, and made anew by the next call: before
the server closes it, which would meet that call (it does so after 300 seconds)."""
PROBE_MS: Final = 30_000
"""A silent connection is probed this often; a dead peer is noticed within 10 seconds more."""

# Retried by gRPC itself when the connection broke: safe, since writes and forgets carry a
# request_id and everything else only reads or sets.
_SERVICE_CONFIG: Final = json.dumps(
    {
        "methodConfig": [
            {
                "name": [
                    {"service": "memsvc.v1.MemoryService"},
                    {"service": "memsvc.admin.v1.AdminService"},
                ],
                "retryPolicy": {
                    "maxAttempts": 3,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "0.5s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)


MAX_TIMEOUT_S: Final = 1_000_000.0
"""Eleven days: what "never" means to gRPC is over at once."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Longest times in seconds, above 0 and up to 1,000,000: to connect, for a read, for a write
    or forget, and for administration (export and erasure of a whole tenant). ValueError for
    others."""

    connect: float = 1.0
    read: float = 2.0
    write: float = 3.0
    admin: float = 600.0

    def __post_init__(self) -> None:
        for field in fields(self):
            seconds = getattr(self, field.name)
            if not 0 < seconds <= MAX_TIMEOUT_S:
                raise ValueError(
                    f"{field.name}: expected seconds above 0 and up to {MAX_TIMEOUT_S:,.0f}, not "
                    f"{seconds}"
                )


@dataclass(frozen=True, slots=True)
class Tls:
    """Encryption of the connection. All fields may be empty: then the server's certificate
    is checked against the authorities of the system."""

    ca_file: str = ""
    """Authorities that may have signed the server's certificate, PEM."""
    cert_file: str = ""
    """Certificate of this client, PEM, where the server wants one. Goes with key_file."""
    key_file: str = ""
    """Private key of cert_file, PEM."""
    server_name: str = ""
    """Name to expect in the server's certificate instead of the host in the address."""

    def credentials(self) -> grpc.ChannelCredentials:
        """For grpc.secure_channel. OSError when a file cannot be read, ValueError when one of
        cert_file and key_file is missing (gRPC would abort the process)."""
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("cert_file and key_file go together")

        def read(path: str) -> bytes | None:
            return Path(path).read_bytes() if path else None

        return grpc.ssl_channel_credentials(
            root_certificates=read(self.ca_file),
            private_key=read(self.key_file),
            certificate_chain=read(self.cert_file),
        )


def checked_token(token: str | None) -> str:
    """A token that can be sent, without the line break of the file it came from; "" = none.
    ValueError, which does not show it, for another."""
    token = (token or "").strip()
    if not (token.isascii() and (token.isprintable() or not token)):
        raise ValueError("token: expected printable ASCII characters")
    if len(token) > MAX_TOKEN:
        raise ValueError(f"token: expected at most {MAX_TOKEN:,} characters, not {len(token):,}")
    return token


class Connection:
    """A channel that connects at the first call. Safe to use from several threads."""

    def __init__(
        self,
        address: str,
        token: str | None,
        tls: Tls | None,
        timeouts: Timeouts,
        token_header: str = DEFAULT_TOKEN_HEADER,
        *,
        repeats: bool = True,
    ) -> None:
        """``repeats``: whether a call whose connection breaks is sent again by itself; not
        where somebody above knows better where to send it. ValueError for an address or token
        that cannot be one."""
        if not address or not address.isprintable():
            raise ValueError(f"address: expected HOST:PORT, not {address!r:.80}")
        token = checked_token(token)
        self.address = address
        self.timeouts = timeouts
        self._closed = False
        self._metadata = ((token_header.lower(), token),) if token else ()
        connect_ms = max(1, round(timeouts.connect * 1000))
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.service_config", _SERVICE_CONFIG),
            # A channel of its own for each client, not one shared by equal addresses:
            # closing one must not disturb another.
            ("grpc.use_local_subchannel_pool", 1),
            # This bounds an attempt to connect (20 s otherwise): a read of 2 s must not spend
            # them on an address that drops packets.
            ("grpc.min_reconnect_backoff_ms", connect_ms),
            ("grpc.initial_reconnect_backoff_ms", min(connect_ms, 200)),
            ("grpc.max_reconnect_backoff_ms", max(connect_ms, 2_000) if repeats else 500),
            ("grpc.enable_retries", int(repeats)),
            ("grpc.keepalive_time_ms", PROBE_MS),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.client_idle_timeout_ms", IDLE_MS),
        ]
        if tls is None:
            self.channel = grpc.insecure_channel(address, options)
        else:
            if tls.server_name:
                options.append(("grpc.ssl_target_name_override", tls.server_name))
            self.channel = grpc.secure_channel(address, tls.credentials(), options)

    def call(self, method: Callable[..., R], request: object, timeout: float) -> R:
        """One call; ClientError when it fails. ``timeout`` in seconds."""
        try:
            return method(request, timeout=timeout, metadata=self._metadata)
        except (grpc.RpcError, ValueError) as error:
            raise self._failure(error) from None

    def begin(
        self, method: grpc.UnaryUnaryMultiCallable[Q, R], request: Q, timeout: float
    ) -> grpc.Future[R]:
        """Begins a call and does not wait for it. ``timeout`` in seconds."""
        return method.future(request, timeout=timeout, metadata=self._metadata)

    def stream(
        self, method: Callable[..., Iterable[R]], request: object, timeout: float
    ) -> Iterator[R]:
        """A call that is answered with a stream; ClientError when it fails on the way."""
        try:
            yield from method(request, timeout=timeout, metadata=self._metadata)
        except (grpc.RpcError, ValueError) as error:
            raise self._failure(error) from None

    def _failure(self, error: grpc.RpcError | ValueError) -> Exception:
        if isinstance(error, grpc.RpcError):
            return closed() if self._closed else from_rpc(error, self.address)
        return closed() if self._closed else error  # gRPC's "Cannot invoke RPC on closed channel!"

    def close(self) -> None:
        """Breaks off calls in flight and closes the connection."""
        self._closed = True
        self.channel.close()
