"""What a node does beside calls, and how it goes on when some of it fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memsvc.domain.manifest import SegmentMeta
from memsvc.segments.errors import Damage
from memsvc.service import damage, maintenance, node
from memsvc.service.builder import BuilderFailed
from memsvc.service.node import Node
from memsvc.service.upkeep import Upkeep
from tests.semantics.harness import HOUR, NS, InlineBuilder, World, make_settings

OTHER = ("acme", "other", "s1")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "check_index", lambda _settings: None)
    monkeypatch.setattr(maintenance, "RETRY_S", 0.02)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def _refuse(world: World, wanted: Callable[[dict[str, Any]], bool]) -> threading.Event:
    """Builders refuse some jobs; set when they did."""
    refused = threading.Event()

    def before(job: dict[str, Any]) -> None:
        if wanted(job):
            refused.set()
            raise BuilderFailed("held by the test")

    for builder in world.builders:
        builder.before_job = before
    return refused


def _let(world: World) -> None:
    for builder in world.builders:
        builder.before_job = lambda _job: None


def _erase_one(world: World, ns: tuple[str, str, str] = NS) -> None:
    first = world.put(ns, summary="to be erased")
    world.put(ns, summary="to stay")
    world.seal()
    world.forget(ns, ids=[first], mode="HARD")


def test_a_build_that_keeps_failing_does_not_stop_database_compaction(world: World) -> None:
    _erase_one(world)
    copied = threading.Event()
    for builder in world.builders:
        builder.after_job = lambda job: copied.set() if job["job"] == "copy" else None
    refused = _refuse(world, lambda job: job["job"] == "build")
    world.clock.turn(13 * HOUR)
    world.node.tick()
    assert refused.wait(60)
    assert copied.wait(60)
    _let(world)
    assert world.node.maintenance.wait_idle(60)
    with world.node.store.read() as snapshot:
        assert snapshot.dirty_since == 0
        assert snapshot.count("erasures") == 0


def test_an_erasure_that_is_overdue_is_told_until_it_is_done(world: World) -> None:
    _erase_one(world)
    _refuse(world, lambda _job: True)
    world.clock.turn(13 * HOUR)
    world.node.tick()
    assert world.node.health().reasons == ()
    world.clock.turn(12 * HOUR)
    world.node.tick()
    (reason,) = world.node.health().reasons
    assert "lifecycle.purge_within_hours" in reason
    assert world.node.health().ready
    _let(world)
    assert world.node.maintenance.wait_idle(60)
    world.node.tick()
    assert world.node.health().reasons == ()


def test_the_oldest_erasure_is_found_whatever_its_partition(world: World) -> None:
    _erase_one(world, OTHER)  # the first partition, erased from last
    late = world.put(OTHER, summary="erased later")
    world.seal()
    first = world.put(NS, summary="a")
    kept = world.put(NS, summary="b")
    world.seal()
    world.purge()
    with world.node.store.read() as snapshot:
        assert snapshot.next_erasure(0) is None
    world.forget(NS, ids=[kept], mode="HARD")
    oldest = world.clock.now
    world.clock.turn(HOUR)
    world.forget(NS, ids=[first], mode="HARD")
    world.forget(OTHER, ids=[late], mode="HARD")
    with world.node.store.read() as snapshot:
        assert snapshot.next_erasure(0) == (1, oldest + HOUR)
        assert snapshot.next_erasure(1) == (2, oldest)
        assert snapshot.next_erasure(2) is None
    world.node.erasures.look(world.clock.now, HOUR)
    assert world.node.erasures.due(oldest) == [2]
    assert world.node.erasures.due(world.clock.now) == [2, 1]
    assert world.node.erasures.oldest == oldest


def test_erasures_are_not_looked_through_every_second(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _erase_one(world)
    looks: list[int] = []
    find = world.node.erasures._find
    monkeypatch.setattr(world.node.erasures, "_find", lambda: looks.append(1) or find())
    for _ in range(30):
        world.node.tick()
        world.clock.turn(1_000)
    assert len(looks) == 1
    world.node.tick()
    assert len(looks) == 2


def test_upkeep_and_a_stop_do_not_wait_for_the_scrub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def verify(_root: Path, _meta: SegmentMeta) -> list[Damage]:
        reading.set()
        go_on.wait()
        return []

    monkeypatch.setattr(damage, "verify", verify)
    world = World(tmp_path)
    world.put()
    world.seal()
    scrubbed: list[list[damage.DamagedFile]] = []
    scrub = threading.Thread(target=lambda: scrubbed.append(world.node.maintenance.scrub()))
    scrub.start()
    assert reading.wait(60)
    world.node.tick()
    world.close()
    assert scrub.is_alive()
    go_on.set()
    scrub.join()
    assert scrubbed == [[]]


def test_the_daily_scrub_sets_damaged_files_aside_and_goes_slowly(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put()
    world.seal()
    (segment,) = world.segments()
    files = world.folder / "segments" / "00000001" / segment["name"]
    victim = next(files.iterdir())
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.unlink()
    victim.write_bytes(bytes(data))
    pauses: list[float] = []
    damages = world.node.maintenance.damages
    monkeypatch.setattr(damages._stopping, "wait", lambda s: pauses.append(s) or False)
    _refuse(world, lambda _job: True)
    (found,) = damages.scrub(1_000.0)
    assert found.path == str(victim.relative_to(world.folder))
    assert sum(pauses) == pytest.approx(segment["bytes"] / 1_000.0)
    assert victim.with_name(victim.name + ".damaged").exists()


def test_a_damaged_file_is_named_not_only_counted(world: World) -> None:
    world.put()
    world.seal()
    (segment,) = world.segments()
    victim = world.folder / "segments" / "00000001" / segment["name"] / "columns.bin"
    victim.unlink()
    _refuse(world, lambda _job: True)
    wanted = {"file": str(victim.relative_to(world.folder)), "namespace": "acme/helper"}
    facts = world.admin.inspect("", "", True, 0, "")
    assert facts["damaged_found"] == 1
    assert facts["damaged"] == [{**wanted, "found": facts["damaged"][0]["found"]}]
    assert facts["damaged"][0]["found"]
    # Also afterwards, as long as it is not built anew.
    assert world.admin.inspect("", "", False, 0, "")["damaged"] == facts["damaged"]


@pytest.mark.parametrize("name", [".DS_Store", "lost+found", "0000000G", "1"])
def test_stray_files_among_segments_do_not_stop_a_start(tmp_path: Path, name: str) -> None:
    world = World(tmp_path)
    world.put()
    world.seal()
    folder = tmp_path / "segments"
    (folder / "00000001" / "left-over").mkdir()
    (folder / "00000001" / ".DS_Store").write_text("x")
    stray = folder / name
    if name == "lost+found":
        stray.mkdir()
    else:
        stray.write_text("x")
    world.restart()
    assert stray.exists()
    assert not (folder / "00000001" / "left-over").exists()
    assert len(world.segments()) == 1
    world.close()


def test_a_start_that_fails_late_gives_everything_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: maintenance.Maintenance) -> None:
        raise OSError("no such luck")

    before = set(threading.enumerate())
    with monkeypatch.context() as patch, pytest.raises(OSError, match="no such luck"):
        patch.setattr(maintenance.Maintenance, "start", fail)
        Node(make_settings(tmp_path), upkeep=False, builders=InlineBuilder)
    assert set(threading.enumerate()) <= before
    World(tmp_path).close()  # the directory is free again


def test_liveness_does_not_wait_behind_the_gate_of_the_store(tmp_path: Path) -> None:
    alive = Node(make_settings(tmp_path), builders=InlineBuilder)
    answers: list[bool] = []
    with alive.store._gate.exclusive():
        asked = threading.Thread(target=lambda: answers.append(alive.alive), daemon=True)
        asked.start()
        asked.join(60)
    assert answers == [True]
    alive.stop()
    assert not alive.alive


def test_upkeep_that_hangs_is_not_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging, go_on = threading.Event(), threading.Event()

    def hang(_self: Upkeep) -> None:
        hanging.set()
        go_on.wait()

    monkeypatch.setattr(Upkeep, "tick", hang)
    opened = Node(make_settings(tmp_path), builders=InlineBuilder)
    assert hanging.wait(60)
    assert opened.alive
    opened.checkup._upkeep_seen -= node.SILENT_S
    assert not opened.alive
    opened.maintenance._queue.compacting = True
    assert opened.alive
    go_on.set()
    opened.stop()


def test_views_settle_after_a_segment_is_swapped_in(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[int] = []
    monkeypatch.setattr(world.node.views, "settle", settled.append, raising=False)
    world.put()
    world.seal()
    assert settled == [1]


def test_a_certificate_that_ends_soon_is_told_before_clients_refuse_the_node(world: World) -> None:
    day = 24 * HOUR
    assert world.node.health().reasons == ()
    until = world.clock.now + 20 * day
    world.node.certificate_until = lambda: until
    assert world.node.health().reasons == ()
    world.clock.turn(10 * day)
    assert "expires in 10 days" in world.node.health().reasons[0]
    world.clock.turn(9 * day)
    assert "expires in 1 day;" in world.node.health().reasons[0]
    world.clock.turn(day)
    assert ": expired" in world.node.health().reasons[0]
    assert world.node.health().ready, "those who check no certificate are served"


def test_what_a_former_primary_left_on_the_disk_is_counted(world: World) -> None:
    world.put()
    world.seal()
    surplus = world.folder / "surplus"
    surplus.mkdir()
    (surplus / "1.memories.jsonl").write_bytes(b"x" * 300_000)
    world.node.snapshots.take_now()
    disk = world.admin.inspect("", "", False, 0, "")["disk"]
    assert 300_000 <= disk["surplus"] <= 320_000
    assert list(disk.values()) == sorted(disk.values(), reverse=True)
    assert {"store", "segments", "snapshots"} <= disk.keys()
    # The database is sparse, and a snapshot shares its segment files.
    assert sum(disk.values()) < 50 << 20
    (files,) = (world.folder / "segments").glob("*/*")
    shared = sum(path.stat().st_blocks * 512 for path in files.iterdir())
    assert disk["segments"] >= shared > 0
