"""A level set by hand, written down: it holds until it is given back, whoever restarts the
node meanwhile, and why."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Final

from memsvc.domain.errors import Unavailable
from memsvc.domain.types import Degraded, DegradedLevel
from memsvc.segments.files import fsync_directory
from memsvc.service.degradation import Degradation

log = logging.getLogger(__name__)

FILE: Final = "forced-level.json"


def kept_level(data_dir: Path) -> Degraded | None:
    """The level that was forced when the node ended, if one was. A file that cannot be read is
    passed over, with a word in the log: a node that does not start helps nobody."""
    try:
        found = json.loads((data_dir / FILE).read_bytes())
        return Degraded(DegradedLevel(found["level"]), str(found["reason"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.error("%s is passed over, no level is forced: %s", data_dir / FILE, error)
        return None


def keep_level(data_dir: Path, forced: Degraded | None) -> None:
    """Writes down what a person set, or (None) that the node is left to itself; on disk when
    this returns. Raises OSError."""
    path = data_dir / FILE
    if forced is None:
        path.unlink(missing_ok=True)
    else:
        fresh = path.with_suffix(".new")
        with fresh.open("w") as file:
            json.dump({"level": int(forced.level), "reason": forced.reason}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    fsync_directory(data_dir)


def force_level(
    degradation: Degradation,
    data_dir: Path,
    level: DegradedLevel | None,
    reason: str,
    *,
    stalled: bool,
) -> None:
    """Puts a level into force, or gives control back (None), and keeps it. ``stalled``: the disk
    does not answer, so that nothing is tried there. Raises Unavailable when it is in force but
    could not be written down."""
    degradation.force(level, reason)
    cause = "the disk does not answer"
    if not stalled:
        try:
            keep_level(data_dir, degradation.by_hand)
            return
        except OSError as error:
            cause = str(error)
    raise Unavailable(
        f"the level is in force, but could not be written down: {cause}",
        reason="LEVEL_NOT_KEPT",
        hint="it ends with the process; repeat it once the disk is well",
        retry_after_ms=5_000,
    )
