"""What a rebuild made is looked at before it is taken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memsvc.domain.rebuild import RebuildState
from memsvc.segments.graph import GraphBuilder
from memsvc.service.builder import BuilderFailed
from tests.semantics.harness import World
from tests.semantics.rebuilding import (
    ROWS,
    builder_of,
    fill,
    folders,
    found,
    rebuilt,
)

pytestmark = pytest.mark.usefixtures("small_graphs")


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
