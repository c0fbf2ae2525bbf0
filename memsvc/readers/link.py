"""The pipes between the serving process and one reader: JSON, one message a line.

Down (standard input): ``{"start": {...}}`` first, then ``{"do": ..., "id": n}``. Up (standard
output): ``ready`` or ``refused`` once, then ``beat`` every second, ``done`` for each ``id``, and
what a reader found. When the input ends, the node is gone and the reader ends with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import threading
import time
from typing import IO, Any, Final

PIPE_BYTES: Final = 1 << 20
"""Room for messages, so that one is written at once even while the reader is busy."""
SEND_S: Final = 5.0
"""Longest time for which the serving process may leave a full pipe unread."""
WAITING_BYTES: Final = 64 << 20
"""Most that waits for one reader. What it is told first grows with the settings and tokens; what
comes later is small, and a reader that lets so much wait does not read."""


class LinkBroken(Exception):
    """The other side is gone, or does not take messages any more."""


def _widen(fd: int) -> None:
    os.set_blocking(fd, False)
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        # There is a bound for users without privileges; what it is will do.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


class Queue:
    """Messages to a reader, from any thread, none of which waits for it: one reader that does not
    read, as while it imports, must not hold up what the others are told. What the pipe does not
    take is written by ``flush``, which somebody calls when the pipe can take more. ``pipe`` is
    closed by ``close``, after which messages go nowhere."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self._waiting = bytearray()
        _widen(pipe.fileno())

    @property
    def waits(self) -> bool:
        """Whether there is something to flush."""
        return bool(self._waiting)

    def send(self, message: dict[str, Any]) -> None:
        """Raises LinkBroken; the link cannot be used after it."""
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            if self._pipe.closed:
                return
            self._waiting += data
            self._write()
            if len(self._waiting) > WAITING_BYTES:
                raise LinkBroken("it does not read its messages")

    def flush(self) -> None:
        """Writes what the pipe takes. Raises LinkBroken."""
        with self._lock:
            if not self._pipe.closed:
                self._write()

    def close(self) -> None:
        """Closes the pipe. Under the lock: its number may be that of another file at once, into
        which nobody may write."""
        with self._lock, contextlib.suppress(OSError):
            self._waiting.clear()
            self._pipe.close()

    def _write(self) -> None:
        try:
            while self._waiting:
                del self._waiting[: os.write(self._pipe.fileno(), self._waiting)]
        except BlockingIOError:
            pass
        except OSError as error:
            self._waiting.clear()
            raise LinkBroken(str(error)) from error


class Sender:
    """Writes messages to the serving process, from any thread, and never waits for long."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        _widen(fd)

    def send(self, message: dict[str, Any]) -> None:
        """Writes one message whole. Raises LinkBroken; the link cannot be used after it."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        until = time.monotonic() + SEND_S
        with self._lock:
            while data:
                try:
                    data = data[os.write(self._fd, data) :]
                except BlockingIOError:
                    left = until - time.monotonic()
                    if left <= 0:
                        raise LinkBroken("it does not read its messages") from None
                    poller = select.poll()
                    poller.register(self._fd, select.POLLOUT)
                    poller.poll(1_000 * left)
                except OSError as error:
                    raise LinkBroken(str(error)) from error


class Lines:
    """Puts messages together from what a pipe gives."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """The messages that are whole by now. Raises ValueError for what is none."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in whole]
