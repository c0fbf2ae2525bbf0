"""Ports for servers of tests."""

from __future__ import annotations

import os
import socket
from itertools import count
from typing import Final

# Below those that systems give to outgoing connections, which might take a port while the
# server that is to listen on it is not up; each worker of pytest has its own.
_FIRST: Final = 10_000
_EACH: Final = 2_000
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 10
_turns = count(os.getpid())


def free_port() -> int:
    """A port that nobody listens on now, and that was not given lately."""
    while True:
        port = _FIRST + _worker * _EACH + next(_turns) % _EACH
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
