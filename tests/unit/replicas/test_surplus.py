"""What a former primary alone has: how long it is kept."""

from __future__ import annotations

import os
from pathlib import Path

from replicas.surplus import drop_surplus


def test_surplus_is_not_kept_for_ever(tmp_path: Path) -> None:
    drop_surplus(tmp_path, 10_000)  # there is none
    folder = tmp_path / "surplus"
    folder.mkdir()
    old, new = folder / "epoch-1-from-3.memories.jsonl", folder / "epoch-2-from-9.entries.jsonl"
    for path, seconds in ((old, 9), (new, 10)):
        path.touch()
        os.utime(path, (seconds, seconds))
    drop_surplus(tmp_path, 10_000)
    assert list(folder.iterdir()) == [new]
