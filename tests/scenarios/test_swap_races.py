"""Segments built side by side and what happens to the rows meanwhile; crashes while the
database file is replaced."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import memsvc
from memsvc.domain.manifest import SegmentMeta
from memsvc.embedded import Embedded
from memsvc.store import store as store_module
from memsvc.store.env import Env

SPACE = ("acme", "bot")
PARTITION = 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Embedded]:
    """A store with six memories in rows 1 to 6 and no segment."""
    with memsvc.open(tmp_path / "data", dimension=4) as opened:
        opened.write(SPACE, [{"content": f"memory {n}"} for n in range(6)])
        yield opened


def _segment(name: str, low: int, high: int, position: int) -> SegmentMeta:
    return SegmentMeta(name, PARTITION, low, high, position, high - low, ())


def _position(store: Embedded) -> int:
    with store.node.store.read() as snapshot:
        return snapshot.position


def _swap(store: Embedded, segment: SegmentMeta, *replaces: str) -> bool:
    return store.node.writer.run(lambda txn: txn.swap_segments(PARTITION, replaces, segment))


def _forget_row(store: Embedded, row: int) -> None:
    with store.node.store.read() as snapshot:
        state = snapshot.state(PARTITION, row)
    assert state is not None
    found = store.query(SPACE, mode="BROWSE")["items"]
    one = next(i["id"] for i in found if i["summary"] == f"memory {row - 1}")
    assert store.forget(SPACE, ids=[one], mode="HARD")["changed"] == 1


def test_a_segment_that_missed_dropped_changes_is_refused(store: Embedded) -> None:
    """Otherwise it answers with states from before those changes for ever."""
    assert _swap(store, _segment("a", 1, 4, _position(store)))
    read_at = _position(store)  # the builder of "b" reads here
    _forget_row(store, 5)
    # Meanwhile "a" is rewritten at a later position, which drops the change of row 5.
    assert _swap(store, _segment("a2", 1, 4, _position(store)), "a")
    assert not _swap(store, _segment("b", 4, 7, read_at))
    assert _swap(store, _segment("b2", 4, 7, _position(store)))


def test_what_is_erased_while_a_segment_is_built_is_noted_for_erasure(store: Embedded) -> None:
    """Otherwise its bytes stay in the segment although nothing remembers them."""
    read_at = _position(store)
    _forget_row(store, 2)
    assert _swap(store, _segment("a", 1, 7, read_at))
    with store.node.store.read() as snapshot:
        assert [row for _, row, _, _ in snapshot.erasures_of(PARTITION)] == [2]
    # A segment that was read later is rid of it.
    assert _swap(store, _segment("b", 1, 7, _position(store)), "a")
    with store.node.store.read() as snapshot:
        assert not list(snapshot.erasures_of(PARTITION))


def _crashed(tmp_path: Path, *, at: str) -> Path:
    """A data directory as a crash leaves it while the database file is replaced."""
    folder = tmp_path / "data"
    with memsvc.open(folder, dimension=4) as opened:
        opened.write(SPACE, [{"content": f"memory {n}"} for n in range(6)])
    shutil.copytree(folder / "store", folder / "store.new")
    if at == "copying":
        os.truncate(folder / "store.new" / "data.mdb", 5_000)
        return folder
    os.rename(folder / "store", folder / "store.old")
    if at == "after both renames":
        os.rename(folder / "store.new", folder / "store")
    return folder


@pytest.mark.parametrize("at", ["copying", "between the renames", "after both renames"])
def test_a_crash_while_the_database_is_replaced_loses_nothing(tmp_path: Path, at: str) -> None:
    folder = _crashed(tmp_path, at=at)
    for _ in range(2):
        with memsvc.open(folder, dimension=4) as opened:
            assert len(opened.query(SPACE, mode="BROWSE")["items"]) == 6
        assert sorted(p.name for p in folder.iterdir() if p.name.startswith("store")) == ["store"]


def test_a_reader_whose_database_moves_while_it_opens_opens_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file with the old reader table: the writer would not know of this reader, and
    use pages again that it still reads."""
    with memsvc.open(tmp_path / "data", dimension=4) as opened:
        opened.write(SPACE, [{"content": "memory"}])
    opened_paths = []
    real = store_module.Env

    def moving(path: Path, *, readonly: bool) -> Env:
        env = real(path, readonly=readonly)
        if not opened_paths:
            shutil.copytree(path, tmp_path / "data" / "store.new")
            os.rename(path, tmp_path / "data" / "store.old")
            os.rename(tmp_path / "data" / "store.new", path)
        opened_paths.append(path.stat().st_ino)
        return env

    monkeypatch.setattr(store_module, "Env", moving)
    reader = store_module.Store(tmp_path / "data", readonly=True)
    assert len(opened_paths) == 2
    with reader.read() as snapshot:
        assert snapshot.memories == 1
    reader.close()
