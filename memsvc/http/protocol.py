"""HTTP connections that end by themselves when their client is slow on purpose.

Uvicorn bounds the time between two requests, not that of a request's head: a client that
opens connections and sends little or nothing would keep every place there is, for ever.
"""

from __future__ import annotations

import asyncio
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS: Final = 10.0
"""Time from the opening of a connection, or from the first byte of a further request, until
the head of the request is whole."""
UNREAD_SECONDS: Final = 60.0
"""Time in which a client must take something of an answer that waits for it."""


class Protocol(H11Protocol):
    """One connection."""

    _head_timer: asyncio.TimerHandle | None = None
    _unread_timer: asyncio.TimerHandle | None = None
    _idle_since = 0.0
    _served = False

    # Narrower than what asyncio declares, as uvicorn's is: a listening server has Transports.
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the clock, and makes room for itself when all places are taken."""
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._await_head()
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Counts the time of a head from its first byte."""
        if self._idle:
            self._await_head()
        super().data_received(data)
        if not self._idle:
            self._stop_head_timer()

    def on_response_complete(self) -> None:
        """The connection waits for its next request."""
        self._served = True
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """The client does not read: it has a while to begin."""
        super().pause_writing()
        if self._unread_timer is None:
            self._unread_timer = self.loop.call_later(UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads."""
        self._stop_unread_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._stop_head_timer()
        self._stop_unread_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no request; after an answer has begun only the end is left to send."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Upgrades are ignored, as HTTP says; a line of the log for each helps nobody."""

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _make_room(self) -> None:
        # Whoever has never asked for anything goes first, then whoever was idle for longest.
        idle = [
            other
            for other in self.connections
            if isinstance(other, Protocol)
            and other is not self
            and other._idle
            and not other.transport.is_closing()
        ]
        if idle:
            oldest = min(idle, key=lambda other: (other._served, other._idle_since))
            oldest.transport.abort()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_unread_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None
