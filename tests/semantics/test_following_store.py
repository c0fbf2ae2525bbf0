"""A reader in another process must not miss what was committed, whatever file it is in.

One process must not open one LMDB file twice, so the follower here is a process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from memsvc.domain.log import Action, Entry
from memsvc.store.env import Env
from memsvc.store.store import Store

FOLLOWER = """
import sys
from pathlib import Path
from memsvc.store.following import FollowingStore
store = FollowingStore(Path(sys.argv[1]))
for line in sys.stdin:
    if line.strip() == "nested":
        with store.read() as outer:
            print(outer.position, flush=True)
            sys.stdin.readline()
            with store.read() as inner:
                print(inner.position, flush=True)
    else:
        with store.read() as snapshot:
            print(snapshot.position, flush=True)
"""


class _Follower:
    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", FOLLOWER, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def say(self, word: str = "read") -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def _append(store: Store) -> int:
    with store.write(1) as txn:
        txn.append(Entry("acme", "bot", Action.RECALL, (), actor="test"))
        return txn.position


def _swap(store: Store, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    with (copy / "data.mdb").open("wb") as file:
        store.compact_copy(file.fileno())
    Env(copy, readonly=False).close()
    store.swap_file(copy)


def test_every_commit_is_seen_through_any_number_of_swaps(tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    follower = _Follower(tmp_path / "data")
    try:
        for _ in range(5):
            assert follower.say() == store_position(store)
            position = _append(store)
            assert follower.say() == position
            _swap(store, tmp_path)
            assert follower.say() == position
            position = _append(store)
            assert follower.say() == position
    finally:
        follower.close()
        store.close()


def test_a_read_inside_another_does_not_wait_for_itself_when_the_file_was_replaced(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "data")
    follower = _Follower(tmp_path / "data")
    try:
        before = _append(store)
        assert follower.say("nested") == before
        _swap(store, tmp_path)
        position = _append(store)
        assert follower.say() == before, "the outer read is for its own position"
        assert follower.say() == position
    finally:
        follower.close()
        store.close()


def test_a_reader_that_died_gives_its_slot_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "data")
    follower = _Follower(tmp_path / "data")
    try:
        follower.say("nested")
        follower.close()
        assert store.reader_check() >= 1
        assert store.reader_check() == 0
    finally:
        store.close()


def store_position(store: Store) -> int:
    with store.read() as snapshot:
        return snapshot.position
