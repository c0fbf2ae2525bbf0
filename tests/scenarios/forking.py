"""Server processes forked from one that has loaded everything (forkserver.py).

Loading is most of what a server needs to start, and the tests start hundreds. The process that
is forked has nothing but modules: no thread, connection, store or setting. From ``main`` on a
server made like this is the same as one that was started by itself, and ends in the same ways;
what comes before ``main`` is for tests that start a fresh interpreter.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
NUMBER: Final = 4
"""Bytes of a process id and of an exit status."""


class Forked:
    """A server process: the part of ``subprocess.Popen`` that tests of servers use."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        folder: Path,
        env: Mapping[str, str],
        network: str = "",
    ) -> None:
        """``arguments`` are those after ``python -m memsvc.server``; output is added to ``log``;
        ``network`` is a namespace, "" = that of this process."""
        self.returncode: int | None = None
        """The exit status as last seen; negative for a signal."""
        self._told, telling = os.pipe()
        wanted = {
            "arguments": list(arguments),
            "folder": str(folder),
            "env": dict(env),
            "network": network,
        }
        try:
            with log.open("ab") as out:
                _requests().send(json.dumps(wanted).encode(), [out.fileno(), telling])
        finally:
            os.close(telling)
        self.pid: Final = self._number()

    def _number(self) -> int:
        data = os.read(self._told, NUMBER)
        assert data, "there is nobody to fork servers; see what was written to standard error"
        return int.from_bytes(data, "little", signed=True)

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once there is one. Raises TimeoutExpired."""
        if (code := self._ended(timeout)) is None:
            raise subprocess.TimeoutExpired("memsvc.server", timeout or 0.0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            told = select.poll()  # select.select knows no more than 1,024 files
            told.register(self._told, select.POLLIN)
            if told.poll(None if timeout is None else 1_000 * timeout):
                self.returncode = self._number()
                os.close(self._told)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _Requests:
    """The process that forks, and the socket over which it is asked."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.scenarios.forkserver", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=REPOSITORY,
            )

    def send(self, data: bytes, files: list[int]) -> None:
        socket.send_fds(self._socket, [data], files)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_lock: Final = threading.Lock()


def _requests() -> _Requests:
    with _lock:
        return _started()


@functools.cache
def _started() -> _Requests:
    requests = _Requests()
    atexit.register(requests.close)
    return requests
