"""A process that has loaded everything a server needs, and forks servers on request.

Run by forking.py: ``python -m tests.scenarios.forkserver FD``, where FD is a socket over which
requests come. It ends when the socket is closed at the other end.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import socket
import sys
from dataclasses import dataclass
from typing import Final

import grpc._server  # noqa: F401  (this and the next: else each server loads them at its start)
import numpy.random  # noqa: F401

from memsvc import pinning, server, serving  # noqa: F401  (serving: loaded by main otherwise)
from memsvc.service import allocator

LARGEST: Final = 1 << 17
"""Bytes of a request."""
CLONE_NEWNET: Final = 0x40000000
NUMBER: Final = 4
"""Bytes of a process id and of an exit status."""


@dataclass(frozen=True, slots=True)
class Request:
    """A server that is wanted; in JSON. With it come two file descriptors: where its output goes,
    and where its process id is told and, when it has ended, its exit status."""

    arguments: list[str]
    """Those after ``python -m memsvc.server``."""
    folder: str
    """Where it is to run."""
    env: dict[str, str]
    network: str
    """Network namespace; "" = that of this process."""


def next_server(requests: socket.socket) -> Request | None:
    """Returns in a new process, for each request; in this one None when there will be no more."""
    running: dict[int, tuple[int, int]] = {}  # by file descriptor: process, where to tell of it
    ready = selectors.DefaultSelector()
    ready.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fd in running:
                pid, told = running.pop(key.fd)
                ready.unregister(key.fd)
                os.close(key.fd)
                _tell(told, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(told)
                continue
            data, given, _, _ = socket.recv_fds(requests, LARGEST, 2)
            if not data:
                return None
            out, told = given
            pid = os.fork()
            if not pid:
                ready.close()
                requests.close()
                for number, (_, other) in running.items():
                    os.close(number)
                    os.close(other)
                os.close(told)
                _become(out)
                return Request(**json.loads(data))
            os.close(out)
            _tell(told, pid)
            watched = os.pidfd_open(pid)
            running[watched] = pid, told
            ready.register(watched, selectors.EVENT_READ)


def _tell(where: int, number: int) -> None:
    os.write(where, number.to_bytes(NUMBER, "little", signed=True))


def _become(out: int) -> None:
    os.setsid()
    for number in (1, 2):
        os.dup2(out, number)
    os.close(out)


def _enter(network: str) -> None:
    with open(f"/run/netns/{network}") as there:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"network namespace {network}")


def main() -> int:
    """The exit status of the server, in the process that becomes one."""
    # Else the first collection of each server would copy all pages that hold a module.
    allocator.settle()
    request = next_server(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return 0
    if request.network:
        _enter(request.network)
    os.chdir(request.folder)
    set_by_loading = {name: os.environ[name] for name in pinning.VARIABLES}
    os.environ.clear()
    os.environ.update(set_by_loading | request.env)
    sys.argv = ["memsvc.server", *request.arguments]
    return server.main(request.arguments)


if __name__ == "__main__":
    sys.exit(main())
