"""The Python processes that a process of this package starts."""

from __future__ import annotations

import sys


def command(module: str, *arguments: str) -> list[str]:
    """What starts a module of this package in an interpreter of its own.

    A server does not import from its working directory (``-P``), where a ``queue.py`` would be
    taken for that of the standard library; then neither does what it starts.
    """
    safe = ["-P"] if sys.flags.safe_path else []
    return [sys.executable, *safe, "-m", module, *arguments]
