"""Moves old memories to the cold tier and ends by kill -9 at a named step. Run as a program:
DIRECTORY STEP."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import memsvc
from memsvc.service.damage import Damages
from memsvc.service.segment_builds import SegmentBuilds

STEPS = (
    "building the cold segment",
    "the cold segment is built",
    "the cold segment is swapped in",
    "building the hot segment",
    "the hot segment is built",
    "the hot segment is swapped in",
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(step: str) -> None:
    """Makes the process end at a step."""
    tier = "cold" if "cold" in step else "hot"
    build: Callable[..., Any] = SegmentBuilds.build

    def built(self: SegmentBuilds, builder: Any, spec: Any, **named: Any) -> Any:
        mine = spec.tier == tier
        if mine and step.startswith("building"):
            named["progress"] = lambda _share: die()
        meta = build(self, builder, spec, **named)
        if mine and step.endswith("built"):
            die()
        if mine and step.endswith("swapped in"):
            # The first thing after the transaction.
            Damages.replaced = lambda *_args: die()  # type: ignore[method-assign]
        return meta

    SegmentBuilds.build = built  # type: ignore[method-assign]


def main(folder: str, step: str) -> None:
    """Does it; does not return."""
    arm(step)
    with memsvc.open(folder, dimension=4) as store:
        store.admin.maintain(0, True, False, 60)
    raise AssertionError(f"it did not come to: {step}")


if __name__ == "__main__":
    main(*sys.argv[1:])
