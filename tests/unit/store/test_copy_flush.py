"""A compacted copy is on disk, folder and all, before it may take the database's place."""

import io
import os
import stat
from pathlib import Path

import pytest

from memsvc.service.builder_process import Builder
from memsvc.store.store import Store


def test_the_folder_of_a_copy_is_flushed_after_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    Store(tmp_path).close()
    flushed: list[tuple[bool, int]] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        found = os.fstat(fd)
        flushed.append((stat.S_ISDIR(found.st_mode), found.st_ino))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    to = tmp_path / "store.new"
    Builder(tmp_path, io.StringIO()).run({"job": "copy", "to": str(to)})
    assert flushed == [(False, (to / "data.mdb").stat().st_ino), (True, to.stat().st_ino)]
