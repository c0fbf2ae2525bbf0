"""A level set by hand, written down: it holds until it is given back, whoever restarts the
node meanwhile, and why."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Final

from memsvc.domain.types import Degraded, DegradedLevel
from memsvc.segments.files import fsync_directory

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
