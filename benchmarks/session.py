"""What every benchmark is given: sizes, folders, and a way to report."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.report import Report
from benchmarks.workspace import Workspace

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """One run of ``python -m benchmarks``.

    ``level``: quick proves that it works, default takes minutes, full has the sizes that
    the requirements name. ``args`` are the options of the benchmark; None = by level.
    """

    level: str
    args: argparse.Namespace
    workspace: Workspace
    out: Path
    data: Path | None

    def size(self, option: str, quick: T, default: T, full: T) -> T:
        """The option if it was given, else what the level says."""
        given: T | None = getattr(self.args, option, None)
        if given is not None:
            return given
        return {"quick": quick, "default": default, "full": full}[self.level]

    def report(self, name: str, title: str) -> Report:
        """A new report."""
        command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
        return Report(name, title, self.out, command)
