"""The serving process's side of one reader: started, listened to, asked, killed."""

from __future__ import annotations

import itertools
import logging
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Final

from memsvc.readers.link import Lines, LinkBroken, Queue
from memsvc.service.metrics_sum import Sample

log = logging.getLogger("memsvc.readers")

STARTUP_S: Final = 120.0
"""Time to the first sign of life of a reader."""
SILENT_S: Final = 10.0
"""Silence after which a reader is killed: a process that is stopped keeps its connections, and
is given new ones."""
_TICK_S: Final = 1.0
_OVERSLEPT_S: Final = 5.0
"""A pause of this process that long was one of the whole machine, and the reader's too."""


class Child:
    """One reader ``process`` (see early.py), to its end. ``told`` is what it is told first,
    ``heard`` is called with what it says by itself."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        told: dict[str, Any],
        heard: Callable[[Child, dict[str, Any]], None],
    ) -> None:
        self._heard = heard
        self.samples: list[Sample] = []
        """What it has counted, as of the last beat."""
        self.ready = False
        self.refused = ""
        """Why it would not start; set when it has said so."""
        self.started = self._last = time.monotonic()
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[dict[str, Any] | None]] = {}
        self._lock = threading.Lock()
        self._ended = False
        self._process = process
        assert self._process.stdin is not None and self._process.stdout is not None
        self._queue = Queue(self._process.stdin)
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout
        self.send({"start": told})

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, message: dict[str, Any]) -> None:
        """Sends a message, without waiting. One that cannot be sent ends the reader: it would not
        know what the others know."""
        try:
            self._queue.send(message)
        except LinkBroken as error:
            self._broken(error)

    def _broken(self, error: LinkBroken) -> None:
        if self._process.poll() is None:
            log.error("reader pid %d: %s; killing it", self.pid, error)
            self.kill()

    def ask(self, message: dict[str, Any]) -> Future[dict[str, Any] | None]:
        """Sends a message; the result is what it answers, None when it ends before."""
        future: Future[dict[str, Any] | None] = Future()
        with self._lock:
            if self._ended:
                future.set_result(None)
                return future
            number = next(self._numbers)
            self._asked[number] = future
        self.send({**message, "id": number})
        return future

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()

    def run(self) -> int:
        """Listens to it until it has ended; its exit status, negative for a signal. It is
        killed when it falls silent."""
        lines = Lines()
        last = time.monotonic()
        # Not select(), which knows no descriptor above 1,023: a node has seven for each segment.
        poller = select.poll()
        poller.register(self._out, select.POLLIN)
        while True:
            if self._queue.waits:
                poller.register(self._in, select.POLLOUT)
            happened = {fd for fd, _ in poller.poll(1_000 * _TICK_S)}
            now = time.monotonic()
            if self._in in happened:
                poller.unregister(self._in)
                try:
                    self._queue.flush()
                except LinkBroken as error:
                    self._broken(error)
            if now - last > _OVERSLEPT_S:
                self._last += now - last
            last = now
            if self._out.fileno() in happened:
                data = os.read(self._out.fileno(), 1 << 16)
                if not data:
                    break
                self._last = now
                for message in lines.feed(data):
                    self._take(message)
            elif now - self._last > (SILENT_S if self.ready else STARTUP_S):
                log.error("reader pid %d hung: no sign of life; killing it", self.pid)
                self.kill()
        code = self._process.wait()
        self._queue.close()
        self._out.close()
        with self._lock:
            self._ended = True
            asked, self._asked = self._asked, {}
        for future in asked.values():
            future.set_result(None)
        return code

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("samples") is not None:
            self.samples = [(name, labels, value) for name, labels, value in message["samples"]]
        if "done" in message:
            with self._lock:
                future = self._asked.pop(message["done"], None)
            if future is not None:
                future.set_result(message)
            return
        if "ready" in message:
            self.ready = True
        elif "refused" in message:
            self.refused = message["refused"]
        self._heard(self, message)


def answered(
    futures: list[Future[dict[str, Any] | None]], seconds: float
) -> list[dict[str, Any] | None]:
    """What was answered within so many seconds; None for the others."""
    until = time.monotonic() + seconds
    found: list[dict[str, Any] | None] = []
    for future in futures:
        try:
            found.append(future.result(timeout=max(0.0, until - time.monotonic())))
        except FutureTimeout:
            found.append(None)
    return found
