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
from typing import Any, Final

PIPE_BYTES: Final = 1 << 20
"""Room for messages, so that one is written at once even while the reader is busy."""
SEND_S: Final = 5.0
"""Longest time for which a reader may leave a full pipe unread."""


class LinkBroken(Exception):
    """The other side is gone, or does not take messages any more."""


class Sender:
    """Writes messages to a pipe, from any thread, and never waits for long."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()
        os.set_blocking(fd, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            # There is a bound for users without privileges; what it is will do.
            with contextlib.suppress(OSError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

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
                    select.select([], [self._fd], [], left)
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
