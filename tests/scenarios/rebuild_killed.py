"""Rebuilds a store and ends by kill -9 at a named step. Run as a program: DIRECTORY STEP."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import memsvc
from memsvc.service import segment_builds
from memsvc.service.damage import Damages
from memsvc.service.rebuild import Rebuilds
from memsvc.service.segment_builds import SegmentBuilds

STEPS = ("planned", "building", "built", "checked", "swapped", "marked", "reclaiming")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str) -> None:
    """Ends the process when a function is called."""
    setattr(owner, name, lambda *_args, **_named: die())


def after(owner: Any, name: str) -> None:
    """Ends the process when a function has done its work."""
    work: Callable[..., Any] = getattr(owner, name)

    def wrapped(*args: Any, **named: Any) -> None:
        work(*args, **named)
        die()

    setattr(owner, name, wrapped)


def arm(step: str) -> None:
    """Makes the process end at a step."""
    if step == "planned":
        before(SegmentBuilds, "build")
    elif step == "building":
        before(Rebuilds, "_progressed")
    elif step == "built":
        before(Rebuilds, "_problem")
    elif step == "checked":
        after(Rebuilds, "_problem")
    elif step == "swapped":
        before(Damages, "replaced")  # the first thing after the transaction
    elif step == "marked":
        after(Rebuilds, "_ended")


def main(folder: str, step: str) -> None:
    """Does it; does not return."""
    arm(step)
    with memsvc.open(folder, dimension=4, settings={"storage.reclaim_after_min": 0.005}) as store:
        rebuilds = store.node.rebuilds
        rebuilds.start(everything=True, only_tell=False)
        while rebuilds.facts().running:
            time.sleep(0.01)
        if step == "reclaiming":
            after(segment_builds.shutil, "rmtree")
        time.sleep(30)
    raise AssertionError(f"it did not come to {step}")


if __name__ == "__main__":
    main(*sys.argv[1:])
