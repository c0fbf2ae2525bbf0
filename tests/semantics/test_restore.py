"""Restoring to a position gives the state of then, but for what was erased since."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from memsvc.domain.errors import FailedPrecondition, PositionLost
from memsvc.service.snapshots import restoring
from memsvc.service.snapshots.folders import FolderPlace
from memsvc.service.snapshots.restoring import Restored, restore
from memsvc.service.snapshots.taking import take
from memsvc.store.store import Store
from tests.semantics.harness import DAY, HOUR, World, vector
from tests.semantics.invariants import check_replay, check_store

SAME = ("names", "tenants", "ids", "versions", "states", "texts", "vectors", "dedup", "audit",
        "generations", "expiry", "requests")  # fmt: skip
Tables = dict[str, dict[bytes, bytes]]


def tables(store: Store) -> Tables:
    """Every table of a store."""
    with store.env.lmdb.begin() as txn:
        return {name: dict(txn.cursor(db)) for name, db in store.env.tables.items()}


@dataclass
class History:
    """A world with snapshots of it, and what its tables were at some positions."""

    world: World
    root: Path
    seen: dict[int, Tables] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    restored: int = 0
    taken: int = 0

    @property
    def snapshots(self) -> Path:
        return self.root / "snapshots"

    @property
    def position(self) -> int:
        with self.world.node.store.read() as snapshot:
            return snapshot.position

    def remember(self) -> int:
        """Notes the state now; returns the position."""
        at = self.position
        self.seen[at] = tables(self.world.node.store)
        self.times[at] = self.world.clock.now
        self.world.clock.turn(1_000)
        return at

    def snapshot(self) -> int:
        """Takes a snapshot; returns its position."""
        now = self.world.clock.now
        self.taken += 1
        folder = self.snapshots / f"{self.taken}"
        manifest = take(self.world.node.store, folder, now_ms=now)
        return manifest.position

    def restore(self, **wish: Any) -> tuple[Restored, Path]:
        """A new data directory."""
        self.restored += 1
        target = self.root / f"restored-{self.restored}"
        done = restore(FolderPlace(self.snapshots), target, now_ms=self.world.clock.now, **wish)
        return done, target

    def check_same(self, target: Path, position: int) -> None:
        """The restored tables are those of then."""
        store = Store(target)
        try:
            found = tables(store)
        finally:
            store.close()
        expected = self.seen[position]
        for name in SAME:
            assert found[name] == expected[name], f"table {name} at {position}"
        assert expected["log"].items() <= found["log"].items()
        for counter in (b"memories", b"bytes"):
            assert found["meta"].get(counter) == expected["meta"].get(counter)


@pytest.fixture
def history(world: World, folder: Path) -> History:
    return History(world, folder)


def test_restoring_to_any_position_equals_a_node_that_stopped_there(history: History) -> None:
    world, draw = history.world, random.Random(7)
    ids: list[str] = []
    for n in range(60):
        kind = draw.choice(["put", "put", "put", "update", "touch", "vector", "decay", "seal"])
        if kind == "put" or not ids:
            ids.append(world.put(summary=f"m{n}", dedup_key=f"k{n}", ttl_ms=draw.choice([0, HOUR])))
        elif kind == "update":
            world.write({"update": {"id": draw.choice(ids), "summary": f"u{n}"}})
        elif kind == "touch":
            world.write({"touch": {"id": draw.choice(ids), "kind": "USED"}}, request_id=f"r{n}")
        elif kind == "vector":
            world.write({"vector": {"id": draw.choice(ids), "vector": vector(n, 1)}})
        elif kind == "decay":
            world.forget(ids=[draw.choice(ids)], factor=0.5)
        else:
            world.seal()
        if n in (15, 30, 59):
            history.snapshot()
        history.remember()
    for position in history.seen:
        done, target = history.restore(position=position)
        assert (done.position, done.erased) == (position, 0)
        assert done.time == history.times[position] or done.time < history.times[position]
        history.check_same(target, position)


def test_restoring_to_a_time_gives_the_last_state_before_it(history: History) -> None:
    history.world.put(summary="one")
    at = history.remember()
    history.world.put(summary="two")
    history.snapshot()
    done, target = history.restore(at_ms=history.times[at] + 999)
    assert done.position == at
    history.check_same(target, at)
    assert history.restore(at_ms=history.times[at] + 1_000)[0].position == at + 1


def test_entries_after_the_last_snapshot_come_from_the_data_directory(history: History) -> None:
    world = history.world
    world.put(summary="one")
    first = history.snapshot()
    world.put(summary="two", vector=vector(1))
    last = history.remember()
    world.close()
    try:
        assert history.restore()[0].position == first
        done, target = history.restore(data_dir=world.folder)
        assert (done.position, done.replayed) == (last, last - first)
        history.check_same(target, last)
    finally:
        world.open()


def test_the_log_of_one_later_snapshot_is_enough(history: History) -> None:
    ids = [history.world.put(summary=f"m{n}") for n in range(5)]
    at = history.remember()
    history.world.write({"update": {"id": ids[0], "summary": "later"}})
    history.snapshot()
    done, target = history.restore(position=at)
    assert done.base is None
    history.check_same(target, at)


def test_a_restored_node_serves_and_stays_in_order(
    history: History, make_world: Callable[..., World]
) -> None:
    world = history.world
    ids = [world.put(summary=f"m{n}", vector=vector(n, 1)) for n in range(30)]
    world.seal()
    history.snapshot()
    late = world.put(summary="quokka", vector=vector(0, 0, 1))
    history.snapshot()
    again = open_restored(history, make_world)
    assert set(again.all()) == {*ids, late}
    assert again.ids(text="quokka") == [late]
    assert again.ids(vector=vector(3, 1), top_k=1, min_score=0.9) == [ids[3]]
    assert again.segments(), "the segments of the snapshot are used"
    again.put(summary="new")
    again.merge()
    check_store(again.node)
    check_replay(again.node, again.folder / "replay")


def open_restored(history: History, make_world: Callable[..., World], **wish: Any) -> World:
    """The node on a restored directory."""
    world = make_world(clock=history.world.clock)
    world.close()
    target = history.restore(**wish)[1]
    world.folder = target
    world.open()
    return world


def test_positions_that_were_given_up_are_lost(
    history: History, make_world: Callable[..., World]
) -> None:
    world = history.world
    world.put(summary="kept")
    kept = history.position
    history.snapshot()
    kept_text = world.query(mode="BROWSE")["position"]
    world.put(summary="given up")
    lost_text = world.query(mode="BROWSE")["position"]
    again = open_restored(history, make_world)
    for n in range(3):
        again.put(summary=f"other {n}")
    assert again.node.store.store_id == world.node.store.store_id
    assert again.query(mode="BROWSE", min_position=kept_text)["items"]
    with pytest.raises(PositionLost):
        again.query(mode="BROWSE", min_position=lost_text)
    with pytest.raises(PositionLost):
        world.query(mode="BROWSE", min_position=again.query(mode="BROWSE")["position"])
    assert kept < history.position


def test_two_restores_of_one_snapshot_are_two_histories(history: History) -> None:
    history.world.put(summary="one")
    history.snapshot()
    first = history.restore()[0]
    history.world.clock.turn(1_000)
    assert history.restore()[0].epoch > first.epoch > 1


@pytest.mark.parametrize("how", ["forgotten", "tenant erased"])
def test_what_was_erased_later_is_erased_again(
    history: History, make_world: Callable[..., World], how: str
) -> None:
    world = history.world
    kept = world.put(summary="tea", vector=vector(1))
    gone = world.put(("doomed", "agent"), summary="quokka secret", vector=vector(2))
    world.write({"update": {"id": gone, "content": "wombat secret"}}, ns=("doomed", "agent"))
    world.seal()
    history.snapshot()
    at = history.remember()
    if how == "forgotten":
        world.forget(("doomed", "agent"), ids=[gone], mode="HARD")
    else:
        world.memory.admin.erase_tenant(_caller(), "doomed", "", False, "")
    history.snapshot()
    again = open_restored(history, make_world, position=at)
    assert again.all() == [kept]
    assert again.all(("doomed", "agent")) == []
    assert again.get(gone, ("doomed", "agent")) is None
    database = (again.folder / "store" / "data.mdb").read_bytes()
    assert b"quokka" not in database
    assert b"wombat" not in database
    log: Any = again.admin.inspect("", "", False, 1, "")["log"]
    assert log[0]["action"] == "FORGET"
    again.purge()
    for path in again.folder.rglob("*"):
        assert path.is_dir() or b"quokka" not in path.read_bytes(), path
    check_store(again.node)
    check_replay(again.node, again.folder / "replay")


def _caller() -> Any:
    from memsvc.domain.types import Caller

    return Caller("admin", may_review=True, may_admin=True)


def test_segments_are_rid_of_it_within_hours_of_when_it_was_erased_first(
    history: History, make_world: Callable[..., World]
) -> None:
    world = history.world
    gone = world.put(summary="quokka")
    world.put(summary="tea")
    world.seal()
    history.snapshot()
    world.forget(ids=[gone], mode="HARD")
    erased = world.clock.now
    world.clock.turn(20 * HOUR)
    history.snapshot()
    again = open_restored(history, make_world, position=history.position - 1)
    with again.node.store.read() as snapshot:
        assert [time for *_, time in snapshot.erasures()] == [erased]


def test_what_expired_and_was_dropped_since_is_dropped_again(
    history: History, make_world: Callable[..., World]
) -> None:
    world = history.world
    world.put(summary="quokka", ttl_ms=HOUR)
    kept = world.put(summary="tea", ttl_ms=0)
    history.snapshot()
    at = history.remember()
    world.clock.turn(2 * HOUR)
    world.node.sweep()
    world.clock.turn(DAY)
    world.node.sweep()
    history.snapshot()
    again = open_restored(history, make_world, position=at)
    assert again.all() == [kept]
    assert b"quokka" not in (again.folder / "store" / "data.mdb").read_bytes()
    again.node.sweep()
    check_store(again.node)


def test_a_text_that_was_replaced_and_dropped_since_is_not_silently_missing(
    history: History,
) -> None:
    world = history.world
    kept = world.put(summary="before", ttl_ms=0)
    at = history.remember()
    world.write({"update": {"id": kept, "summary": "after"}})
    replaced = history.remember()
    world.clock.turn(8 * DAY)
    world.node.sweep()
    history.snapshot()
    with pytest.raises(FailedPrecondition, match=f"positions {replaced} to ") as caught:
        history.restore(position=at)
    assert caught.value.reason == "NOT_RESTORABLE"
    # What it can, it does: the version before is history there, and dropped again.
    done, _target = history.restore(position=replaced)
    assert done.memories == 1
    assert sorted(p.name for p in history.root.glob("restored-*")) == ["restored-2"]


def test_a_snapshot_of_then_still_has_what_was_only_replaced_since(history: History) -> None:
    world = history.world
    kept = world.put(summary="before", ttl_ms=0)
    history.snapshot()
    at = history.remember()
    world.write({"update": {"id": kept, "summary": "after"}})
    world.clock.turn(8 * DAY)
    world.node.sweep()
    history.snapshot()
    _done, target = history.restore(position=at)
    history.check_same(target, at)


@pytest.mark.parametrize("wish", [{"position": 999}, {"at_ms": 5}])
def test_a_point_that_no_log_has_is_refused_with_those_that_are(
    history: History, wish: dict[str, int]
) -> None:
    history.world.put(summary="x")
    history.snapshot()
    with pytest.raises(FailedPrecondition, match=f"positions 1 to {history.position}"):
        history.restore(**wish)


def test_nothing_is_ever_overwritten(history: History) -> None:
    history.world.put(summary="x")
    history.snapshot()
    target = history.root / "full"
    target.mkdir()
    restore(FolderPlace(history.snapshots), target, now_ms=0)
    with pytest.raises(FailedPrecondition, match="not an empty directory"):
        restore(FolderPlace(history.snapshots), target, now_ms=0)


def test_a_damaged_snapshot_is_not_restored_from(history: History) -> None:
    history.world.put(summary="x", vector=vector(1))
    history.world.seal()
    history.snapshot()
    (rows,) = history.snapshots.rglob("rows-1.bin")
    data = bytearray(rows.read_bytes())
    data[100] ^= 1
    rows.unlink()
    rows.write_bytes(data)
    with pytest.raises(FailedPrecondition, match=r"rows-1\.bin differs from its checksum"):
        history.restore()
    assert not list(history.root.glob("restored*"))


def test_what_a_killed_restore_left_is_in_nobodys_way(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.world.put(summary="x")
    history.snapshot()
    history.world.put(summary="y")
    history.snapshot()

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    target = history.root / "made"
    with monkeypatch.context() as patched:
        patched.setattr(restoring._Restoring, "_clean", die)
        patched.setattr(shutil, "rmtree", lambda *_a, **_k: None)
        with pytest.raises(Killed):
            restore(FolderPlace(history.snapshots), target, now_ms=0, position=1)
    assert (history.root / "made.restoring").exists()
    assert not target.exists()
    done = restore(FolderPlace(history.snapshots), target, now_ms=0)
    assert done.memories == 2
    assert not (history.root / "made.restoring").exists()
