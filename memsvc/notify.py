"""Tells the service manager (systemd) how the service is, by the protocol of sd_notify(3).

The manager gives the address of a datagram socket in ``NOTIFY_SOCKET``; a message is lines of
``KEY=value``. Without a manager nothing happens.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "NOTIFY_SOCKET"
READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"


class Manager:
    """The service manager, if there is one. Raises nothing: a manager that does not listen must
    not end the service."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """``env`` is the environment that this process was started with."""
        address = env.get(VARIABLE, "")
        # "@" stands for the NUL byte of an abstract socket.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def tell(self, *lines: str, status: str = "") -> bool:
        """Sends READY, STOPPING and, for people, one line of ``status``; whether it was sent."""
        if not self._address:
            return False
        message = "\n".join([*lines, *([f"STATUS={status}"] if status else [])])
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender,
        ):
            # A manager whose socket is full would hold the watch over the server up.
            sender.setblocking(False)
            sender.sendto(message.encode(), self._address)
            return True
        return False
