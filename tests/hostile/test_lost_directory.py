"""A data directory that cannot be used, or goes away under a running node."""

from __future__ import annotations

from pathlib import Path

import pytest

from memsvc.domain.errors import FailedPrecondition, MemsvcError
from memsvc.store.store import Store
from tests.scenarios.harness import Node
from tests.semantics.harness import World


def test_acknowledged_writes_do_not_go_into_a_directory_that_was_deleted(tmp_path: Path) -> None:
    world = World(tmp_path / "data")
    try:
        kept = world.put(summary="kept")
        assert world.node.health().ready
        world.folder.rename(tmp_path / "away")
        world.node.tick()
        health = world.node.health()
        assert not health.ready
        assert "no longer there" in health.reasons[0]
        for change in (
            lambda: world.put(summary="lost"),
            lambda: world.forget(ids=[kept], mode="HARD"),
        ):
            with pytest.raises(MemsvcError) as caught:
                change()
            assert caught.value.reason == "DATA_DIR_GONE"
        assert world.get(kept) is not None
        # Another directory in its place is not it.
        world.folder.mkdir()
        (world.folder / "LOCK").touch()
        world.node.tick()
        assert not world.node.health().ready
        (world.folder / "LOCK").unlink()
        world.folder.rmdir()
        (tmp_path / "away").rename(world.folder)
        world.node.tick()
        assert world.node.health().ready
        assert world.put(summary="goes on")
    finally:
        world.close()


def test_directory_that_is_a_file_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "deep")
    for name in ("file", "dangling", "file/below"):
        with pytest.raises(FailedPrecondition) as caught:
            Store(tmp_path / name)
        assert caught.value.reason == "DATA_DIR_UNUSABLE"
        assert str(tmp_path / name) in caught.value.message


def test_server_that_cannot_use_its_directory_is_not_started_again_and_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("x")
    node = Node(tmp_path / "node", data_dir=tmp_path / "file")
    try:
        node.start(wait=False)
        assert node.process is not None
        assert node.process.wait(60) == 78
        assert "Traceback" not in node.log_file.read_text()
        assert "cannot be used" in node.log_tail(2)
    finally:
        node.close()


def test_one_directory_under_two_names_is_one_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "data")
    (tmp_path / "data").mkdir()
    store = Store(tmp_path / "data")
    try:
        with pytest.raises(FailedPrecondition) as caught:
            Store(tmp_path / "link")
        assert caught.value.reason == "DATA_DIR_IN_USE"
    finally:
        store.close()
