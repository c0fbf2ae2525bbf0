"""An embedding model that is dropped: it leaves everything, and nothing else goes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memsvc.domain.generations import NewGeneration
from memsvc.service import dropped_files, generations
from memsvc.service.node import Node
from memsvc.service.snapshots.folders import FolderPlace
from memsvc.service.snapshots.restoring import restore
from memsvc.service.snapshots.taking import take
from memsvc.service.snapshots.verifying import verify
from tests.semantics.embeddings import (
    ADMIN,
    WIDE,
    configure,
    create,
    drop,
    files,
    fill,
    make_default,
    models,
    stored,
    wide,
)
from tests.semantics.harness import DAY, World, error_of, vector
from tests.semantics.invariants import check_replay, check_store
from tests.semantics.test_snapshots import at


def switched(world: World, memories: int = 30) -> list[str]:
    """A store that has gone over to the new model; the old one is still there."""
    ids = [world.put(summary=f"m{n}", vector=vector(n, 1)) for n in range(memories)]
    world.seal()
    world.write({"update": {"id": ids[0], "summary": "another text"}})
    create(world)
    fill(world, ids)
    make_default(world)
    configure(world, "new", WIDE)
    return ids


def test_what_is_in_use_cannot_be_dropped(world: World) -> None:
    world.put(summary="tea", vector=vector(1))
    create(world)
    assert error_of(lambda: drop(world, "old")).reason == "GENERATION_IS_DEFAULT"
    assert error_of(lambda: drop(world, "other")).reason == "EMBEDDING_UNKNOWN"
    make_default(world, force=True)
    error = error_of(lambda: drop(world, "old"))
    assert error.reason == "CONFIG_OUTDATED"
    assert "index.dimension: 12 and index.embedding: new" in error.hint
    configure(world, "new", WIDE)
    error = error_of(lambda: models(world).drop(ADMIN, "old", "new", False))
    assert error.violations[0].field == "confirm"
    assert models(world).drop(ADMIN, "old", "", True).coverage.vectors == 1
    assert stored(world) == {1}
    drop(world, "old")


def test_what_was_dropped_leaves_records_and_files_and_everything_else_stays(
    world: World,
) -> None:
    switched(world)
    world.seal()
    assert {"rows-1.bin", "rows-2.bin"} <= files(world)
    query = {"vector": wide(1), "min_score": -1, "top_k": 50}
    before = world.ids(**query), world.ids(text="another"), world.all()
    position = world.query(**query)["position"]
    size = world.admin.inspect("", "", False, 0, "")["accounted_bytes"]
    drop(world)
    assert files(world) == {"rows-2.bin", "scan-2.bin"} & files(world)
    assert "rows-2.bin" in files(world)
    assert stored(world) == {2}
    assert (world.ids(**query), world.ids(text="another"), world.all()) == before
    assert world.query(**query, min_position=position)["items"], "positions stay"
    after = world.admin.inspect("", "", False, 0, "")
    assert after["accounted_bytes"] == size - 31 * 32, "also of the version that was replaced"
    assert [f.erasing for f in models(world).facts()] == [False, False]
    for call in (
        lambda: world.query(vector=vector(1), embedding="old"),
        lambda: world.write({"summary": "x"}, embedding="old"),
    ):
        assert error_of(call).reason == "EMBEDDING_UNKNOWN"
    assert after["damaged_files"] == 0
    world.merge()
    world.restart()
    assert (world.ids(**query), world.ids(text="another"), world.all()) == before
    assert world.admin.inspect("", "", True, 0, "")["damaged_found"] == 0
    check_store(world.node)
    check_replay(world.node, world.folder / "replay")


def test_dropped_vectors_are_gone_from_the_database_file_on_the_schedule_of_erasure(
    world: World,
) -> None:
    needle = np.array(vector(0.123456, 0.654321), np.float32).tobytes()
    kept = world.put(summary="tea", vector=vector(0.123456, 0.654321))
    create(world)
    world.write({"vector": {"id": kept, "vector": wide(1)}}, embedding="new")
    make_default(world)
    configure(world, "new", WIDE)
    drop(world)
    facts = world.admin.inspect("", "", False, 0, "")
    assert facts["dirty_since"] == world.clock.now
    world.purge()
    assert needle not in (world.folder / "store" / "data.mdb").read_bytes()
    assert world.ids(vector=wide(1)) == [kept]


def test_a_drop_that_was_cut_off_is_gone_on_with_after_a_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = switched(world)
    world.seal()
    monkeypatch.setattr(generations, "PURGE_BATCH", 7)
    monkeypatch.setattr(dropped_files, "SEGMENTS_AT_ONCE", 1)
    models(world).drop(ADMIN, "old", "old", False)
    assert models(world).facts()[0].erasing
    world.node.writer.run(generations.purge_vectors)
    assert stored(world) == {1, 2}
    world.restart()
    assert models(world).facts()[0].erasing
    assert len(world.ids(vector=wide(1), min_score=-1, top_k=50)) == len(ids)
    for _ in range(4):
        world.node.tick()
    assert stored(world) == {2}
    assert not any("-1." in name for name in files(world))
    assert not models(world).facts()[0].erasing
    check_store(world.node)
    check_replay(world.node, world.folder / "replay")


def test_files_that_a_crash_left_beside_the_manifest_are_removed(world: World) -> None:
    switched(world)
    world.seal()
    (first, *_) = world.folder.glob("segments/*/*/rows-1.bin")
    data = first.read_bytes()
    drop(world)
    first.write_bytes(data)
    first.with_name("rows-1.bin.damaged").write_bytes(data)
    world.restart()
    world.node.tick()
    assert not any("-1." in name for name in files(world))


def test_a_segment_that_was_being_built_when_its_model_was_dropped_lacks_it(
    world: World,
) -> None:
    switched(world)
    builder = world.builders[1]

    def dropping(job: dict[str, Any]) -> None:
        if job["job"] == "build":
            builder.after_job = lambda _job: None
            drop(world)

    for one in world.builders:
        one.after_job = dropping
    world.put(summary="more")
    world.merge()
    # Upkeep had its turn while it was built, and has nothing more to do.
    assert not any("-1." in name for name in files(world))
    assert len(world.ids(vector=wide(1), min_score=-1, top_k=50)) == 30


def test_a_write_that_was_under_way_when_its_model_was_dropped_is_refused(world: World) -> None:
    switched(world)
    gate, release = threading.Event(), threading.Event()

    def hold(_txn: object) -> None:
        gate.set()
        release.wait(10)

    held = world.node.writer.submit(hold, internal=True)
    assert gate.wait(10)
    found: list[str] = []
    models_ = models(world)
    dropping = threading.Thread(target=lambda: models_.drop(ADMIN, "old", "old", False))
    dropping.start()
    while world.node.writer.queued < 1:
        pass
    writing = threading.Thread(
        target=lambda: found.append(
            error_of(
                lambda: world.write({"summary": "x", "vector": vector(1)}, embedding="old")
            ).reason
        )
    )
    writing.start()
    while world.node.writer.queued < 2:
        pass
    release.set()
    held.result()
    for thread in (dropping, writing):
        thread.join(10)
    assert found == ["EMBEDDING_UNKNOWN"]
    world.node.tick()
    assert stored(world) == {2}


def test_a_name_may_be_used_again_and_means_the_new_vectors(world: World) -> None:
    ids = switched(world)
    drop(world)
    models(world).create(ADMIN, NewGeneration("old", 8, ""), False)
    assert [f.generation.number for f in models(world).facts()] == [1, 2, 3]
    assert world.ids(vector=vector(1), embedding="old", min_score=-1) == []
    world.write({"vector": {"id": ids[4], "vector": vector(1)}}, embedding="old")
    assert world.ids(vector=vector(1), embedding="old") == [ids[4]]
    world.merge()
    world.purge()
    assert world.ids(vector=vector(1), embedding="old") == [ids[4]]
    check_store(world.node)
    check_replay(world.node, world.folder / "replay")


def test_late_vectors_of_a_dropped_model_do_not_stop_a_replay(world: World) -> None:
    """Their entries bring nothing any more, and the payloads' hashes cannot be computed."""
    kept = world.put(summary="tea", vector=vector(1))
    bare = world.put(summary="coffee")
    create(world)
    world.write({"vector": {"id": bare, "vector": vector(2)}})
    world.write({"vector": {"id": kept, "vector": vector(0, 1)}})
    for one in (kept, bare):
        world.write({"vector": {"id": one, "vector": wide(1)}}, embedding="new")
    make_default(world)
    configure(world, "new", WIDE)
    drop(world)
    world.forget(ids=[kept], mode="HARD")
    world.clock.turn(30 * DAY)
    world.purge()
    check_store(world.node)
    check_replay(world.node, world.folder / "replay")


def test_a_snapshot_has_both_models_and_restores_before_and_after_a_drop(
    world: World, folder: Path
) -> None:
    ids = switched(world)
    world.seal()
    snapshots = folder / "snapshots"
    take(world.node.store, snapshots / "1", now_ms=world.clock.now)
    assert verify(at(snapshots / "1")).sound
    with world.node.store.read() as snapshot:
        before = snapshot.position
    world.clock.turn(1_000)
    models(world).drop(ADMIN, "old", "old", False)
    take(world.node.store, snapshots / "2", now_ms=world.clock.now)
    assert verify(at(snapshots / "2")).sound, "while it is being erased"
    world.node.tick()
    world.clock.turn(1_000)
    take(world.node.store, snapshots / "3", now_ms=world.clock.now)
    assert verify(at(snapshots / "3")).sound
    for number, wish in enumerate(({"position": before}, {})):
        target = folder / f"restored-{number}"
        restore(FolderPlace(snapshots), target, now_ms=world.clock.now, **wish)
        again = World(target, world.clock, index__embedding="new", index__dimension=WIDE)
        again.node.tick()
        assert len(again.ids(vector=wide(1), min_score=-1, top_k=50)) == len(ids)
        if wish:
            assert len(again.ids(vector=vector(1), embedding="old", min_score=-1, top_k=50)) == 30
        else:
            assert stored(again) == {2}
        check_store(again.node)
        again.close()


def test_a_stored_format_of_two_models_is_refused_by_software_that_knows_one(
    world: World,
) -> None:
    def formats(node: Node) -> int:
        with node.store.env.lmdb.begin() as txn:
            return int.from_bytes(txn.get(b"format", db=node.store.env.tables["meta"]), "big")

    assert formats(world.node) == 1
    create(world)
    assert formats(world.node) == 2
    world.restart()
