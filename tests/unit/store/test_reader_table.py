"""The table of readers: in memory, and the same one for all processes of a node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memsvc.store.env import LOCK_BYTES, Env
from memsvc.store.store import Store

READ = """
import sys
from pathlib import Path
from memsvc.store.store import Store
store = Store(Path(sys.argv[1]), readonly=True)
with store.read() as snapshot:
    print(snapshot.position, len(store.env.lmdb.readers().splitlines()), flush=True)
    sys.stdin.read()
"""


def test_the_table_is_no_file_of_the_disk_that_may_stall(tmp_path: Path) -> None:
    store = Store(tmp_path)
    link = store.path / "lock.mdb"
    assert os.readlink(link).startswith(f"/proc/{os.getpid()}/fd/")
    facts = os.stat(link)
    assert facts.st_dev != os.stat(store.path).st_dev
    # All of it is there: a page that found no room would end the process.
    assert facts.st_blocks * 512 >= LOCK_BYTES
    store.close()
    assert [file.name for file in store.path.iterdir()] == ["data.mdb"]


def test_another_process_joins_the_table_of_the_writer(tmp_path: Path) -> None:
    """A reader that the writer does not know of would find pages used for other things."""
    store = Store(tmp_path)
    command = [sys.executable, "-c", READ, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline().split()[0] == b"0"
        assert str(reader.pid) in store.env.lmdb.readers()
        reader.communicate(b"")
    store.close()


def test_the_table_of_a_killed_process_is_not_joined(tmp_path: Path) -> None:
    """Its number may be another process's by now, and that of the descriptor another file's."""
    Store(tmp_path).close()
    other = tmp_path / "other"
    other.write_bytes(b"of somebody else")
    with other.open("rb") as file:
        link = tmp_path / "store" / "lock.mdb"
        link.symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        Store(tmp_path, readonly=True).close()
        assert not link.is_symlink()
        link.unlink()
        link.symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        Store(tmp_path).close()
    assert other.read_bytes() == b"of somebody else"


def test_a_reader_without_the_writers_table_is_refused(tmp_path: Path) -> None:
    """In another container the writer's table cannot be reached."""
    store = Store(tmp_path)
    link = store.path / "lock.mdb"
    elsewhere = tmp_path / "elsewhere"
    link.rename(elsewhere)
    with pytest.raises(BlockingIOError):
        Env(store.path, readonly=True)
    link.symlink_to("/proc/1/fd/999")
    with pytest.raises(BlockingIOError):
        Env(store.path, readonly=True)
    assert link.is_symlink()  # it may be a good one, seen from elsewhere
    elsewhere.rename(link)
    store.close()


def test_a_table_on_disk_of_an_earlier_version_is_replaced(tmp_path: Path) -> None:
    Store(tmp_path).close()
    link = tmp_path / "store" / "lock.mdb"
    link.write_bytes(bytes(LOCK_BYTES))
    store = Store(tmp_path)
    assert link.is_symlink()
    store.close()


def test_without_files_of_memory_the_table_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    store = Store(tmp_path)
    link = store.path / "lock.mdb"
    assert not link.is_symlink() and link.stat().st_blocks * 512 >= LOCK_BYTES
    command = [sys.executable, "-c", READ, str(tmp_path)]
    found = subprocess.run(command, input=b"", stdout=subprocess.PIPE, check=True)
    assert found.stdout.split()[0] == b"0"
    store.close()
    shutil.rmtree(tmp_path)
