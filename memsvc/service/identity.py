"""The name of a node."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

_NODE_ID: Final = "node_id"


def node_id(data_dir: Path) -> str:
    """The name of the node that has a data directory, drawn once and kept there. It is in no
    snapshot: what is restored or copied gets another."""
    path = data_dir / _NODE_ID
    name = path.read_text().strip() if path.exists() else ""
    if not name:  # a crash may have left an empty file, and nodes without a name look like one
        name = f"{random.SystemRandom().getrandbits(64):016x}"
        temporary = path.with_suffix(".new")
        temporary.write_text(f"{name}\n")
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.rename(path)
    return name
