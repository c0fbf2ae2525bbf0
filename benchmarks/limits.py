"""A memory limit that holds for processes and the page cache they fill: a control group."""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

ROOT: Final = Path("/sys/fs/cgroup")


class NoLimits(RuntimeError):
    """This machine lets nobody here make control groups of memory."""


class MemoryGroup:
    """A control group of its own, removed at the end; version 2 where there is one for memory,
    else version 1. Raises NoLimits."""

    def __init__(self, name: str) -> None:
        self._second = "memory" in _read(ROOT / "cgroup.controllers").split()
        top = ROOT if self._second else ROOT / "memory"
        self._folder = top / f"{name}-{os.getpid()}"
        try:
            if self._second:
                (top / "cgroup.subtree_control").write_text("+memory")
            self._folder.mkdir()
        except OSError as error:
            raise NoLimits(f"{self._folder}: {error}") from error

    def limit(self, most: int | None) -> None:
        """Bytes that may be in use, page cache included; None = no limit."""
        name = "memory.max" if self._second else "memory.limit_in_bytes"
        none = "max" if self._second else "-1"
        (self._folder / name).write_text(none if most is None else str(most))

    @property
    def usage(self) -> int:
        """Bytes in use, page cache included."""
        name = "memory.current" if self._second else "memory.usage_in_bytes"
        return int(_read(self._folder / name))

    def command(self, words: list[str]) -> list[str]:
        """A command that does the same in the group."""
        procs = shlex.quote(str(self._folder / "cgroup.procs"))
        return ["sh", "-c", f'echo $$ > {procs}; exec "$@"', "sh", *words]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            # Processes that have just ended are still counted for a moment.
            with contextlib.suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(0.1)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
