"""Rebuilding segments while the node serves: what is replaced, what is refused, what is found."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from memsvc.domain.manifest import segment_from_json
from memsvc.domain.rebuild import RebuildState, StepState
from memsvc.segments.graph import GraphBuilder
from memsvc.service import derived, node, rebuild
from memsvc.service.builder import BuilderFailed
from memsvc.service.rebuild import RebuildFacts
from memsvc.service.workqueue import LANES
from tests.semantics.harness import HOUR, NS, InlineBuilder, World, error_of
from tests.semantics.runner import SHARE, Run

ROWS = 60


@pytest.fixture(autouse=True)
def small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs from five vectors on."""
    monkeypatch.setattr(
        node, "index_settings", lambda s: replace(derived.index_settings(s), graph_min_rows=5)
    )
    monkeypatch.setattr(rebuild, "RETRY_S", 0.02)


def fill(world: World, rows: int = ROWS, ns: tuple[str, ...] = NS) -> list[str]:
    """Memories with random vectors, sealed into one segment; their ids."""
    rng = np.random.default_rng(5)
    items = [
        {"content": f"memory {n}", "vector": rng.standard_normal(8).tolist()} for n in range(rows)
    ]
    ids = [result["id"] for result in world.write(*items, ns=ns)]
    world.seal()
    return ids


def change(world: World, **index: object) -> None:
    """Reloads settings of the index."""
    settings = world.node.settings
    world.node.apply(settings.model_copy(update={"index": settings.index.model_copy(update=index)}))


def builder_of(world: World) -> InlineBuilder:
    """The builder of rebuilds."""
    return world.builders[len(LANES)]


def ended(world: World, seconds: float = 20.0) -> RebuildFacts:
    """The rebuild when it has ended."""
    until = time.monotonic() + seconds
    while (facts := world.node.rebuilds.facts()).running:
        assert time.monotonic() < until, f"still running: {facts}"
        time.sleep(0.005)
    return facts


def rebuilt(world: World, **scope: Any) -> RebuildFacts:
    """A whole rebuild."""
    world.node.rebuilds.start(**scope, only_tell=False)
    return ended(world)


def graphs(world: World, ns: tuple[str, ...] = NS) -> list[tuple[str, int, int]]:
    """Settings of the graphs of an agent."""
    with world.node.store.read() as snapshot:
        partition = snapshot.partition(*ns[:2])
        assert partition is not None
        files = [f for s in snapshot.segments(partition.number) for f in s.files]
    built = [f.graph for f in files if f.kind == "graph"]
    return [(g.dtype, g.m, g.ef_construction) for g in built if g is not None]


def folders(world: World) -> list[str]:
    """Segment folders of the first agent."""
    return sorted(p.name for p in (world.folder / "segments" / "00000001").iterdir())


def found(world: World) -> list[tuple[str, float]]:
    """What a fixed query finds."""
    items = world.query(vector=[1.0, 0.5, *[0.1] * 6], top_k=20, min_score=-1)["items"]
    return [(item["id"], item["similarity"]) for item in items]


# -- what is replaced --------------------------------------------------------------------


def test_a_changed_number_format_reaches_segments_that_are_there(world: World) -> None:
    fill(world)
    before, (old,) = found(world), world.segments()
    change(world, dtype="f16", m=24)
    facts = rebuilt(world)
    assert facts.plan is not None and facts.plan.state is RebuildState.DONE
    assert (facts.progress.segments, facts.progress.share) == (1, 1.0)
    assert graphs(world) == [("f16", 24, 200)]
    assert world.segments()[0]["name"] != old["name"]
    assert found(world) == before


def test_what_is_as_it_would_be_built_is_left_alone(world: World) -> None:
    fill(world)
    (old,) = world.segments()
    assert rebuilt(world).progress.segments == 0
    assert world.segments()[0]["name"] == old["name"]
    assert rebuilt(world, everything=True).progress.segments == 1
    assert world.segments()[0]["name"] != old["name"]


def test_one_tenant_is_rebuilt_without_the_others(world: World) -> None:
    other = ("globex", "helper", "s1")
    fill(world)
    fill(world, ns=other)
    change(world, dtype="bf16")
    assert rebuilt(world, tenant="globex").progress.segments == 1
    assert (graphs(world)[0][0], graphs(world, other)[0][0]) == ("i8", "bf16")
    assert rebuilt(world, tenant="acme", agent="nobody").progress.segments == 0
    assert rebuilt(world).progress.segments == 1


def test_dead_rows_are_left_out_of_what_is_rebuilt(world: World) -> None:
    ids = fill(world)
    world.forget(ids=ids[:10], mode="HARD")
    rebuilt(world, everything=True)
    assert world.segments()[0]["count"] == ROWS - 10


def test_graphs_of_earlier_settings_are_told(world: World) -> None:
    fill(world)
    change(world, m=8)
    until = time.monotonic() + 5
    while world.node.rebuilds.survey.outdated != 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert world.node.rebuilds.survey.outdated == 1
    assert world.node.telling.readings().graphs_outdated == 1
    rebuilt(world)
    while world.node.rebuilds.survey.outdated and time.monotonic() < until:
        time.sleep(0.01)
    assert world.node.telling.readings().graphs_outdated == 0
    assert world.node.telling.readings().rebuild_progress == 1.0


# -- old files ---------------------------------------------------------------------------


def test_replaced_files_stay_for_a_while_and_then_go(world: World) -> None:
    fill(world)
    (old,) = world.segments()
    rebuilt(world, everything=True)
    assert len(folders(world)) == 2
    world.node.tick()
    assert len(folders(world)) == 2
    world.restart()  # they are no orphans
    assert old["name"] in folders(world)
    world.clock.turn(5 * 60_000)
    world.node.tick()
    assert folders(world) == [world.segments()[0]["name"]]


def test_replaced_files_do_not_keep_what_is_purged(world: World) -> None:
    ids = fill(world)
    rebuilt(world, everything=True)
    world.forget(ids=ids[:1], mode="HARD")
    world.purge()
    assert folders(world) == [s["name"] for s in world.segments()]


def test_a_segment_with_erased_rows_is_removed_at_once(world: World) -> None:
    """The swap strikes the erasure off, so nothing else would remember the old files."""
    ids = fill(world)
    world.forget(ids=ids[:1], mode="HARD")
    rebuilt(world, everything=True)
    assert folders(world) == [world.segments()[0]["name"]]
    assert world.admin.inspect("", "", False, 0, "")["waiting_for_erasure"] == 0


def test_replaced_files_are_removed_before_the_time_of_erasure(
    make_world: Callable[..., World],
) -> None:
    world = make_world(lifecycle__purge_within_hours=0.02)
    fill(world)
    rebuilt(world, everything=True)
    world.clock.turn(int(0.01 * HOUR))
    world.node.tick()
    assert len(folders(world)) == 1


# -- refusals ----------------------------------------------------------------------------


def test_a_disk_that_cannot_hold_both_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world)
    needed = world.node.rebuilds.start(everything=True, only_tell=True).needed_bytes
    assert needed >= world.segments()[0]["bytes"]
    usage = SimpleNamespace(free=needed - 1)
    monkeypatch.setattr(rebuild.shutil, "disk_usage", lambda _path: usage)
    start = lambda: world.node.rebuilds.start(everything=True, only_tell=False)  # noqa: E731
    assert error_of(start).reason == "DISK_TOO_SMALL"
    assert world.node.rebuilds.facts().plan is None
    usage.free = 1 << 40
    assert rebuilt(world, everything=True).progress.segments == 1


def test_one_rebuild_at_a_time_and_none_to_cancel(world: World) -> None:
    fill(world)
    rebuilds = world.node.rebuilds
    assert error_of(rebuilds.cancel).reason == "NO_REBUILD"
    again: list[str] = []
    builder_of(world).before_job = lambda _job: again.append(
        error_of(lambda: rebuilds.start(only_tell=False)).reason
    )
    rebuilt(world, everything=True)
    assert set(again) == {"REBUILD_RUNNING"}


def test_what_is_cancelled_stops_and_keeps_what_was_done(world: World) -> None:
    fill(world)
    fill(world, ns=("globex", "helper", "s1"))

    def cancel(job: dict[str, Any]) -> None:
        if job["job"] == "build" and job["spec"]["partition"] == 2:
            world.node.rebuilds.cancel()

    builder_of(world).before_job = cancel
    change(world, dtype="f16")
    facts = rebuilt(world)
    assert facts.plan is not None and facts.plan.state is RebuildState.CANCELLED
    world.node.rebuilds._wake.set()
    time.sleep(0.1)
    assert (graphs(world), graphs(world, ("globex", "helper"))) == (
        [("f16", 16, 200)],
        [("i8", 16, 200)],
    )
    world.restart()  # it is not gone on with
    assert world.node.rebuilds.facts().plan == facts.plan
    assert rebuilt(world).progress.segments == 1


# -- checks before the swap --------------------------------------------------------------


def spoil(world: World, vectors: Callable[[int], np.ndarray]) -> None:
    """Makes every graph that is built one of other vectors than those of its rows."""
    builder = builder_of(world)
    run = builder.run

    def spoiled(job: dict[str, Any], *args: Any, **named: Any) -> Any:
        done = run(job, *args, **named)
        if job["job"] == "build":
            folder = Path(job["root"]) / done["name"]
            (file,) = (f for f in done["files"] if f["kind"] == "graph")
            (folder / file["name"]).unlink()
            graph = GraphBuilder(8, job["spec"]["dtype"], 16, 100)
            graph.add(np.arange(done["count"]), vectors(done["count"]))
            file["bytes"], file["checksum"] = graph.save(folder / file["name"])
        return done

    builder.run = spoiled  # type: ignore[method-assign]


def test_a_graph_that_does_not_find_what_is_there_is_not_taken(world: World) -> None:
    fill(world, rows=400)
    before, old = found(world), world.segments()
    rng = np.random.default_rng(1)

    def foreign(rows: int) -> np.ndarray:
        made = rng.standard_normal((rows, 8), np.float32)
        return made / np.linalg.norm(made, axis=1, keepdims=True)

    spoil(world, foreign)
    facts = rebuilt(world, everything=True)
    assert facts.plan is not None and facts.plan.state is RebuildState.FAILED
    (failure,) = facts.progress.failures
    assert "recall of the new graph" in failure.reason
    assert (world.segments(), found(world)) == (old, before)
    assert len(folders(world)) == 1


def test_a_corrupted_file_is_not_taken(world: World) -> None:
    fill(world)
    old = world.segments()

    def flip(job: dict[str, Any]) -> None:
        if job["job"] == "build":
            file = Path(job["root"]) / job["spec"]["name"] / "graph-1.usearch"
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.unlink()
            file.write_bytes(data)

    builder_of(world).after_job = flip
    facts = rebuilt(world, everything=True)
    assert "graph-1.usearch checksum" in facts.progress.failures[0].reason
    assert world.segments() == old


def test_a_segment_that_lacks_rows_is_not_taken(world: World) -> None:
    fill(world)
    old = world.segments()
    builder = builder_of(world)
    run = builder.run

    def short(job: dict[str, Any], *args: Any, **named: Any) -> Any:
        if job["job"] == "build":
            job = {**job, "spec": {**job["spec"], "row_hi": ROWS - 3}}
        return run(job, *args, **named)

    builder.run = short  # type: ignore[method-assign]
    facts = rebuilt(world, everything=True)
    assert facts.progress.failures[0].reason == f"4 of {ROWS} rows are missing"
    assert world.segments() == old


def test_a_builder_that_dies_is_started_again(world: World) -> None:
    fill(world)
    left = [2]

    def die(_job: dict[str, Any]) -> None:
        if left[0]:
            left[0] -= 1
            raise BuilderFailed("it died")

    builder_of(world).before_job = die
    facts = rebuilt(world, everything=True)
    assert facts.plan is not None and facts.plan.state is RebuildState.DONE
    left[0] = 3
    facts = rebuilt(world, everything=True)
    assert facts.plan is not None and facts.plan.state is RebuildState.FAILED
    assert facts.progress.failures[0].reason == "it died"


# -- what happens meanwhile --------------------------------------------------------------


def test_a_stop_in_the_middle_is_gone_on_with(world: World) -> None:
    fill(world)
    fill(world, ns=("globex", "helper", "s1"))
    change(world, dtype="bf16")
    world.changes["index__dtype"] = "bf16"
    rebuilds = world.node.rebuilds

    def stop(job: dict[str, Any]) -> None:
        if job["job"] == "build" and job["spec"]["partition"] == 2:
            rebuilds._stopping.set()
            raise BuilderFailed("the node is shutting down")

    builder_of(world).before_job = stop
    rebuilds.start(only_tell=False)
    rebuilds._thread.join(20)
    states = [s.state for s in rebuilds._steps.values()]
    assert states == [StepState.DONE, StepState.WAITING]
    world.restart()
    assert ended(world).progress.segments_left == 0
    assert (graphs(world)[0][0], graphs(world, ("globex", "helper"))[0][0]) == ("bf16", "bf16")


def test_settings_that_change_again_are_those_in_the_end(world: World) -> None:
    fill(world)
    fill(world, ns=("globex", "helper", "s1"))
    change(world, dtype="bf16")
    builder_of(world).before_job = lambda job: (
        change(world, dtype="f16") if job.get("spec", {}).get("partition") == 2 else None
    )
    rebuilt(world)
    assert (graphs(world)[0][0], graphs(world, ("globex", "helper"))[0][0]) == ("f16", "f16")


def test_rows_that_are_merged_meanwhile_are_not_lost(world: World) -> None:
    fill(world)
    fill(world)
    builder_of(world).after_job = lambda job: world.merge() if job["job"] == "build" else None
    facts = rebuilt(world, everything=True)
    assert facts.plan is not None and facts.plan.state is RebuildState.DONE
    assert len(world.segments()) == 1
    assert len(world.all()) == 2 * ROWS


def test_changes_during_a_rebuild_are_in_force_after_it(world: World) -> None:
    ids = fill(world)
    held = world.query(ids=[ids[3]], include={"vector": True})["items"][0]

    def change_some(job: dict[str, Any]) -> None:
        if job["job"] == "build":
            world.forget(ids=ids[:2], mode="HARD")
            world.write({"update": {"id": ids[2], "content": "changed before the swap"}})
        else:
            world.forget(ids=[ids[3]], mode="HARD")
            world.put(content="written before the swap", vector=[1.0, *[0.0] * 7])

    builder_of(world).after_job = change_some
    rebuilt(world, everything=True)
    assert held["id"] == ids[3]
    assert all(world.get(one) is None for one in (ids[0], ids[1], ids[3]))
    changed = world.get(ids[2], include={"content": True})
    assert changed is not None and changed["content"] == "changed before the swap"
    assert len(world.all()) == ROWS - 3 + 1
    listed = {one for one, _ in found(world)}
    assert not listed & {ids[0], ids[1], ids[3]}


class RebuildingRun(Run):
    """A random life in which segments are rebuilt beside everything else."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self.world.changes["index__rebuild_min_recall"] = 0.0
        self._slow()

    def _slow(self) -> None:
        # So that other steps fall into it.
        pause = random.Random(self.seed)
        builder_of(self.world).before_job = lambda _job: time.sleep(0.02 * pause.random())
        builder_of(self.world).after_job = builder_of(self.world).before_job

    def _rebuild(self) -> None:
        self._note("rebuild")
        change(self.world, dtype=self.draw.rng.choice(("f32", "f16", "bf16", "i8")))
        if not self.world.node.rebuilds.facts().running:
            self.world.node.rebuilds.start(everything=True, only_tell=False)

    def _restart(self) -> None:
        super()._restart()
        self._slow()


@pytest.mark.parametrize("seed", range(12), ids=lambda n: f"seed-{n}")
def test_a_life_with_rebuilds_is_as_the_model_says(
    seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHARE, "rebuild", 12)
    monkeypatch.setitem(SHARE, "seal", 6)
    RebuildingRun(seed, folder).go(70)


def test_the_manifest_of_an_earlier_version_is_read() -> None:
    """Graphs of which nothing is known, and fields that a later version added."""
    text = (
        '{"format": 1, "name": "a", "partition": 1, "row_lo": 1, "row_hi": 9, "position": 3,'
        ' "count": 8, "later": 1, "files": [{"kind": "graph", "generation": 1, "name": "g",'
        ' "bytes": 5, "checksum": "00"%s}]}'
    )
    (file,) = segment_from_json(text % "").files
    assert file.graph is None
    (file,) = segment_from_json(text % ', "later": 2').files
    assert (file.bytes, file.graph) == (5, None)
