"""The name of a node."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

_NODE_ID: Final = "node_id"


def node_id(data_dir: Path) -> str:
    """The name of the node that has a data directory, drawn once and kept there. It is in no
    snapshot: what is restored or copied gets another."""
    path = data_dir / _NODE_ID
    if not path.exists():
        path.write_text(f"{random.SystemRandom().getrandbits(64):016x}\n")
    return path.read_text().strip()
