"""What happens while segments are rebuilt is lost by nobody."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

from memsvc.domain.rebuild import RebuildState, StepState
from memsvc.service.builder import BuilderFailed
from tests.semantics.harness import World
from tests.semantics.rebuilding import (
    ROWS,
    builder_of,
    change,
    ended,
    fill,
    found,
    graphs,
    rebuilt,
)
from tests.semantics.runner import SHARE, Run

pytestmark = pytest.mark.usefixtures("small_graphs")


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
