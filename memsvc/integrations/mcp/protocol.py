"""HTTP/1.1 as uvicorn speaks it, with a time limit for those who ask."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedProtocol(H11Protocol):
    """Closes a connection on which no whole request has come for a while. uvicorn waits for ever,
    and whoever opens as many connections as it takes, without a token and without a request, keeps
    everybody else out."""

    request_s: ClassVar[float] = 20.0
    """A connection is looked at this often: it may send a request for once to twice as long."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to look at it."""
        super().connection_made(transport)
        self._answered = self._seen = 0
        self._look = self.loop.call_later(self.request_s, self._look_at)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends that."""
        self._look.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Counts what was answered."""
        self._answered += 1
        super().on_response_complete()

    def _look_at(self) -> None:
        asking = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if asking and self._answered == self._seen:
            self.transport.close()
            return
        self._seen = self._answered
        self._look = self.loop.call_later(self.request_s, self._look_at)
