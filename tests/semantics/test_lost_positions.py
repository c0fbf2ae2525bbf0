"""Positions that a lazy node told and then lost are never answered for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memsvc.store.store import Store
from tests.semantics.harness import NS, World, error_of

Make = Callable[..., World]


def _epoch(world: World) -> int:
    with world.node.store.read() as snapshot:
        return snapshot.epoch


def _written(world: World, summary: str) -> str:
    answer: Any = world.memory.write(list(NS), [{"summary": summary}])
    position: str = answer["position"]
    return position


def _crashed(world: World, folder: Path) -> None:
    """Puts another life of the node into a folder: that of the last commit."""
    (folder / "store").mkdir(parents=True)
    with world.node.store.read() as _pinned:
        shutil.copy(world.folder / "store" / "data.mdb", folder / "store" / "data.mdb")


@pytest.mark.parametrize("sync", ["every_1000ms", "always"])
def test_a_position_lost_in_a_crash_stays_lost_when_its_number_is_given_again(
    make_world: Make, folder: Path, sync: str
) -> None:
    world = make_world(storage__wal_sync="every_1000ms")
    kept = _written(world, "kept")
    world.node.writer.settle()
    _crashed(world, folder / "crashed")
    lost = [_written(world, f"lost {n}") for n in range(3)]
    world.close()
    after = World(folder / "crashed", world.clock, storage__wal_sync=sync)
    try:
        for _ in range(5):
            last = _written(after, "new")
        for position in lost:
            error = error_of(
                lambda position=position: after.query(mode="BROWSE", min_position=position)
            )
            assert error.reason == "POSITION_LOST"
        assert after.query(mode="BROWSE", min_position=kept)["items"]
        assert len(after.query(mode="BROWSE", min_position=last)["items"]) == 6
        assert _epoch(after) == 2
        after.restart()
        assert _epoch(after) == 2
        assert after.query(mode="BROWSE", min_position=last)["position"] == last
    finally:
        after.close()


def test_a_position_of_an_aborted_lazy_transaction_is_lost(
    make_world: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(storage__wal_sync="every_1000ms")
    world.node.writer.settle()

    def broken(_txn: object) -> None:
        raise OSError("gone")

    lost = _written(world, "lost")
    with pytest.raises(OSError, match="gone"):
        world.node.writer.run(broken)
    new = _written(world, "new")
    assert len(world.query(mode="BROWSE", min_position=new)["items"]) == 1
    error = error_of(lambda: world.query(mode="BROWSE", min_position=lost))
    assert error.reason == "POSITION_LOST"
    assert _epoch(world) == 2


def test_a_stop_in_order_begins_no_epoch(make_world: Make) -> None:
    world = make_world(storage__wal_sync="every_1000ms")
    last = _written(world, "tea")
    world.restart()
    _written(world, "more")
    assert _epoch(world) == 1
    assert world.query(mode="BROWSE", min_position=last)["items"]


def test_a_compacted_file_knows_lost_positions(make_world: Make) -> None:
    world = make_world(storage__wal_sync="every_1000ms")
    lost = _written(world, "lost")

    def broken(_txn: object) -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        world.node.writer.run(broken)
    gone = world.put()
    world.forget(ids=[gone], mode="HARD")
    _written(world, "kept")
    world.purge()
    error = error_of(lambda: world.query(mode="BROWSE", min_position=lost))
    assert error.reason == "POSITION_LOST"
    store: Store = world.node.store
    assert store.unsettled()
