"""When snapshots are taken, how many are kept, and that none holds what was erased too long."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memsvc.domain.errors import FailedPrecondition, Unavailable
from memsvc.domain.replication import MAX_SKEW_MS
from memsvc.service.builder import BuilderFailed
from memsvc.service.leading import Primary
from memsvc.service.snapshots import keeping
from memsvc.service.snapshots.keeping import Snapshots, snapshot_settings
from memsvc.service.snapshots.places import place_of
from memsvc.service.snapshots.restoring import restore
from memsvc.service.snapshots.verifying import verify
from tests.semantics.harness import HOUR, World

MINUTE = 60_000
MakeWorld = Callable[..., World]


def _make(make_world: MakeWorld, **more: Any) -> tuple[World, Snapshots]:
    settings = {"storage__snapshot_interval_min": 30, **more}
    world = make_world(**settings)
    return world, world.node.snapshots


def _names(snapshots: Snapshots) -> list[str]:
    return [found.name for found in snapshots.kept()]


def test_one_is_taken_each_interval_and_the_last_ones_are_kept(make_world: MakeWorld) -> None:
    world, snapshots = _make(make_world)
    seen: list[str] = []
    for n in range(30):
        world.put(summary=f"m{n}")
        snapshots.tick()
        seen += [name for name in _names(snapshots) if name not in seen]
        world.clock.turn(10 * MINUTE)
    assert len(seen) == 9
    assert _names(snapshots) == seen[-3:]
    assert seen[0] == "20231114T224320.000Z"
    assert all(verify(found).sound for found in snapshots.kept())


def test_none_is_taken_when_nothing_was_written_and_none_by_default_of_zero(
    make_world: MakeWorld,
) -> None:
    world, snapshots = _make(make_world)
    world.put(summary="x")
    for _ in range(6):
        world.clock.turn(31 * MINUTE)
        snapshots.tick()
    assert len(_names(snapshots)) == 1
    assert world.clock.now - snapshots.last_time < MINUTE, "it is current all the same"
    world, snapshots = _make(make_world, storage__snapshot_interval_min=0)
    world.clock.turn(100 * HOUR)
    snapshots.tick()
    assert _names(snapshots) == []


def test_a_restart_does_not_begin_the_interval_anew(make_world: MakeWorld) -> None:
    world, snapshots = _make(make_world)
    world.clock.turn(31 * MINUTE)
    snapshots.tick()
    for n in range(3):
        world.restart()
        world.put(summary=f"m{n}")
        world.node.snapshots.tick()
        world.clock.turn(15 * MINUTE)
    assert len(_names(world.node.snapshots)) == 2


def test_another_folder_is_used_when_it_is_set(make_world: MakeWorld, tmp_path: Path) -> None:
    world, snapshots = _make(make_world, storage__snapshot_dir=str(tmp_path / "elsewhere"))
    world.put(summary="x")
    world.seal()
    found = snapshots.take_now()
    assert Path(found.where).parent == tmp_path / "elsewhere"
    assert verify(found).sound
    assert len(found.manifest.files) > 1


def test_what_others_put_there_is_left_alone(make_world: MakeWorld) -> None:
    world, snapshots = _make(make_world, storage__snapshot_keep=1)
    other, others = _make(make_world)
    folder = Path(snapshots.settings.where)
    others.apply(snapshots.settings)
    world.put(summary="x")
    other.put(summary="y")
    (folder / "notes").mkdir(parents=True)
    foreign = Path(others.take().where)
    for _ in range(3):
        world.clock.turn(1_000)
        snapshots.take_now()
    assert foreign.exists()
    assert (folder / "notes").exists()
    assert len(_names(snapshots)) == 1


@pytest.mark.parametrize("sealed", [False, True], ids=["in the tail", "in a segment"])
def test_what_was_erased_leaves_the_snapshots_in_time(make_world: MakeWorld, sealed: bool) -> None:
    """Also when snapshots are seldom, and when all of them hold it."""
    world, snapshots = _make(make_world, storage__snapshot_interval_min=7 * 24 * 60)
    gone = world.put(summary="quokka secret")
    world.put(summary="tea")
    if sealed:
        world.seal()
    snapshots.take_now()
    world.clock.turn(1_000)
    snapshots.take_now()
    world.forget(ids=[gone], mode="HARD")
    world.clock.turn(1_000)
    snapshots.take_now()
    erased = world.clock.now
    while world.clock.now < erased + 24 * HOUR:
        world.node.tick()
        assert world.node.maintenance.wait_idle(30)
        snapshots.tick()
        world.clock.turn(HOUR)
    kept = snapshots.kept()
    assert kept, "there is one to restore from"
    for path in Path(snapshots.settings.where).rglob("*"):
        assert path.is_dir() or b"quokka" not in path.read_bytes(), path
    made = world.folder.parent / "restored"
    assert restore(place_of(snapshots.settings.where), made, now_ms=world.clock.now).memories == 1


def test_snapshots_are_not_replaced_when_nothing_was_erased(make_world: MakeWorld) -> None:
    world, snapshots = _make(make_world, storage__snapshot_interval_min=0)
    world.put(summary="x", ttl_ms=0)
    only = snapshots.take_now()
    for n in range(40):
        world.put(summary=f"m{n}", ttl_ms=0)
        world.clock.turn(6 * HOUR)
        snapshots.tick()
    assert [found.where for found in snapshots.kept()] == [only.where]


def test_one_that_cannot_be_replaced_goes_all_the_same(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The promise to erase is kept even when that leaves no snapshot."""
    world, snapshots = _make(make_world, storage__snapshot_interval_min=0)
    gone = world.put(summary="quokka")
    snapshots.take_now()
    world.forget(ids=[gone], mode="HARD")

    def fail() -> None:
        raise BuilderFailed("no room")

    monkeypatch.setattr(snapshots, "take", fail)
    world.clock.turn(20 * HOUR)
    snapshots.tick()
    assert len(snapshots.kept()) == 1
    world.clock.turn(4 * HOUR)
    snapshots.tick()
    assert snapshots.kept() == []


def test_a_failure_is_counted_and_tried_again(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, snapshots = _make(make_world)
    monkeypatch.setattr(keeping, "RETRY_S", 0.0)
    world.put(summary="x")
    world.clock.turn(HOUR)
    builder = world.builders[-1]

    def refuse(_job: dict[str, Any]) -> None:
        raise BuilderFailed("no room")

    builder.before_job = refuse
    snapshots.tick()
    assert world.node.health().reasons == ("the last snapshot failed: no room",)
    builder.before_job = lambda _job: None
    snapshots.tick()
    assert len(snapshots.kept()) == 1
    assert world.node.health().reasons == ()
    told = world.node.metrics.exposition().decode()
    assert 'memsvc_snapshots_total{result="failed"} 1.0' in told
    assert 'memsvc_snapshots_total{result="ok"} 1.0' in told
    (line,) = (x for x in told.splitlines() if x.startswith("memsvc_snapshot_last_timestamp"))
    assert float(line.split()[1]) * 1_000 == world.clock.now


def test_a_failure_of_one_that_was_asked_for_is_told_until_one_is_taken(
    make_world: MakeWorld,
) -> None:
    world, snapshots = _make(make_world, storage__snapshot_interval_min=0)
    world.put(summary="x")
    builder = world.builders[-1]

    def refuse(_job: dict[str, Any]) -> None:
        raise BuilderFailed("no room")

    builder.before_job = refuse
    with pytest.raises(Unavailable):
        snapshots.take_now()
    snapshots.tick()
    assert world.node.health().reasons == ("the last snapshot failed: no room",)
    builder.before_job = lambda _job: None
    snapshots.take_now()
    assert world.node.health().reasons == ()


def test_a_process_takes_it_and_is_gone_afterwards(make_world: MakeWorld) -> None:
    world, snapshots = _make(make_world, inline=False)
    world.put(summary="x")
    assert verify(snapshots.take_now()).sound
    process = snapshots._builder._process
    assert process is not None and process.poll() is not None
    assert verify(snapshots.take_now()).sound


def test_a_replica_and_its_primary_do_not_remove_each_others(make_world: MakeWorld) -> None:
    """The same snapshot_dir, and the same store."""
    world, snapshots = _make(make_world, storage__snapshot_keep=1)
    world.put(summary="x")
    settings = world.node.settings
    follower = snapshot_settings(settings, follows=True)
    assert (follower.where, follower.also) == (snapshots.settings.also[0], ())
    mine = snapshots.take_now()
    snapshots.apply(follower)
    as_replica = snapshots.take_now()
    snapshots.tick()
    assert snapshots.kept() == [as_replica]
    assert verify(mine).sound
    # Promoted, it looks after those that it took before.
    snapshots.apply(snapshot_settings(settings, follows=False))
    world.clock.turn(1_000)
    last = snapshots.take_now()
    assert [found.where for found in snapshots.kept()] == [last.where]


def test_after_a_promotion_the_folder_of_the_primary_does_not_fall_behind(
    make_world: MakeWorld,
) -> None:
    world, snapshots = _make(make_world)
    base = Path(snapshots.settings.where)
    world.node.leading.freeze()
    world.node.leading.follow()
    assert snapshots.settings.where != str(base)
    world.clock.turn(31 * MINUTE)
    snapshots.tick()
    assert [found.place for found in snapshots.kept()] == [snapshots._places[0]]
    assert not place_of(base).snapshots(), "it is the primary's"
    world.node.leading.lead(1 << 16)
    world.put(summary="written after it")
    snapshots.tick()
    assert [found.where for found in place_of(base).snapshots()] == [snapshots.kept()[-1].where]
    # The role counts, not what the configuration says, also when that is read again.
    world.node.apply(world.node.settings)
    assert snapshots.settings.where == str(base)


def test_what_a_former_primary_left_behind_is_rid_of_what_was_erased(
    make_world: MakeWorld,
) -> None:
    world, snapshots = _make(make_world, storage__snapshot_interval_min=0)
    id_ = world.put(summary="x")
    left = snapshots.take_now()
    world.forget(ids=[id_], mode="HARD")
    world.node.leading.freeze()
    world.node.leading.follow()
    unheard, troubled = Primary(), Primary("10.0.0.1:8848", trouble="its log is another")
    skewed = Primary("10.0.0.1:8848", skew_ms=MAX_SKEW_MS + 1)
    level, behind = Primary("10.0.0.1:8848"), Primary("10.0.0.1:8848", lag_positions=1)
    for hours, primary, there in (
        (0, level, True),
        (23, level, True),
        (2, unheard, True),
        (0, troubled, True),
        (0, skewed, True),
        (0, behind, True),
        (0, level, False),
    ):
        world.clock.turn(hours * HOUR)
        world.node.leading.primary = lambda primary=primary: primary
        snapshots._others_until = 0.0
        snapshots.tick()
        assert Path(left.where).exists() == there, (hours, primary)


def test_a_place_of_snapshots_that_is_none_changes_no_setting(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of role would have been broken off by it, and the node have followed nobody."""
    world, snapshots = _make(make_world)
    # As where the extra is not installed.
    monkeypatch.delitem(sys.modules, "memsvc.service.snapshots.objects", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    before, place = world.node.settings, snapshots.settings
    storage = before.storage.model_copy(update={"snapshot_dir": "s3://backups/memsvc"})
    with pytest.raises(FailedPrecondition):
        world.node.apply(before.model_copy(update={"storage": storage}))
    assert world.node.settings is before and snapshots.settings == place
