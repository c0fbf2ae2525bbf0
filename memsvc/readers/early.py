"""Reader processes that are begun before their node.

Most of a reader's start is the interpreter and what it imports. So the serving process begins its
readers before it imports and opens anything itself: on another core they come as far as waiting
to be told what they serve. This module imports nothing heavy.
"""

from __future__ import annotations

import logging
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from memsvc import children, pinning

log = logging.getLogger("memsvc.readers")


HELD: Final = frozenset({signal.SIGINT, signal.SIGHUP, signal.SIGTERM})
"""Signals that a reader takes in once it has imported what handles them. Ctrl-C in a terminal
reaches it as well as its node, and would end it with a traceback until then."""


def begin(data_dir: Path) -> subprocess.Popen[bytes]:
    """A reader that waits at its standard input for what it is to serve; it ends when that is
    closed. Raises OSError."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        return subprocess.Popen(
            children.command("memsvc.readers.process", str(data_dir)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=pinning.environment(),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class EarlyReaders:
    """``count`` readers, to be taken one by one; a context manager, which ends those that nobody
    took. To be made in the main thread: on Linux a reader ends with the thread that began it."""

    def __init__(self, count: int, data_dir: Path) -> None:
        self.count = count
        self._data_dir = data_dir
        self._waiting: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            for _ in range(self.count):
                self._waiting.append(begin(self._data_dir))
        except OSError as error:
            # Who takes one begins it then, and tries again as long as that fails.
            log.warning("a reader could not be begun early: %s", error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._waiting:
            with self._waiting.pop() as process:  # closes its pipes, and waits for its end
                process.kill()

    def take(self) -> subprocess.Popen[bytes]:
        """One that waits, or a new one when none is left. Raises OSError."""
        try:
            return self._waiting.pop()
        except IndexError:
            return begin(self._data_dir)
