"""The Python processes that a process of this package starts."""

from __future__ import annotations

import signal
import sys


def command(module: str, *arguments: str) -> list[str]:
    """What starts a module of this package in an interpreter of its own.

    A server does not import from its working directory (``-P``), where a ``queue.py`` would be
    taken for that of the standard library; then neither does what it starts.
    """
    safe = ["-P"] if sys.flags.safe_path else []
    return [sys.executable, *safe, "-m", module, *arguments]


def described(code: int) -> str:
    """How a process ended, from what Popen tells: "exit code 1", "signal SIGKILL"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
