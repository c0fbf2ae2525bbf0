"""A program that ingests (ingest_killed.py), started and killed."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import PIPE, Popen

from tests.scenarios.harness import REPOSITORY, Node


def ingesting(node: Node, space: str, spill: Path, turns: int, flushes: bool) -> Popen[str]:
    address = f"{node.host}:{node.port}"
    program = [sys.executable, "-m", "tests.client.ingest_killed"]
    return Popen(
        [*program, address, space, str(spill), str(turns), str(int(flushes))],
        stdout=PIPE,
        text=True,
        cwd=REPOSITORY,
    )


def taken_until_killed(process: Popen[str], after: int) -> int:
    """Kills it once so many turns were taken, or at its end; returns how many had been."""
    assert process.stdout is not None
    taken = 0
    for line in process.stdout:
        taken = taken if line == "done\n" else int(line)
        if taken >= after:
            process.kill()  # it goes on until the signal arrives, and tells
    process.wait()
    return taken
