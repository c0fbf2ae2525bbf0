"""The last segment takes tails in, and does not where its graph must not live on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memsvc.service.workqueue import LANES
from tests.semantics.harness import World
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("small_graphs")

ROWS = 40


def fill(world: World, seed: int, rows: int = ROWS) -> list[str]:
    """Memories with random vectors, sealed; their ids."""
    rng = np.random.default_rng(seed)
    items = [
        {"content": f"memory{n} of{seed}", "vector": rng.standard_normal(8).tolist()}
        for n in range(rows)
    ]
    ids: list[str] = [result["id"] for result in world.write(*items)]
    world.seal()
    return ids


def ranges(world: World) -> list[list[int]]:
    """First row and row after the last of each segment."""
    return [segment["rows"] for segment in world.segments()]


def check(world: World, ids: list[str]) -> None:
    """These memories, and no others, are found in each way."""
    query = [1.0, 0.5, *[0.1] * 6]
    assert set(world.ids(vector=query, top_k=200, min_score=-1)) == set(ids)
    assert set(world.all()) == set(ids)
    assert world.node.maintenance.damaged_files == 0


def test_a_tail_joins_the_last_segment(world: World) -> None:
    ids = fill(world, 1)
    world.write({"touch": {"id": ids[0], "importance": 0.9}})
    (old,) = world.segments()
    ids += fill(world, 2)
    assert ranges(world) == [[1, 2 * ROWS + 1]]
    check(world, ids)
    assert set(world.ids(text="memory7", top_k=2)) == {ids[7], ids[ROWS + 7]}
    folders = world.folder / "segments" / "00000001"
    assert old["name"] not in [path.name for path in folders.iterdir()]
    world.restart()
    check(world, ids)


def test_a_segment_with_dead_rows_does_not_grow_and_is_rid_of_them(world: World) -> None:
    ids = fill(world, 1)
    world.forget(ids=ids[:1], mode="HARD")
    ids += fill(world, 2)
    assert ranges(world) == [[1, ROWS + 1], [ROWS + 1, 2 * ROWS + 1]]
    check(world, ids[1:])
    world.purge()
    assert ranges(world) == [[1, 2 * ROWS + 1]]
    ids += fill(world, 3)
    assert ranges(world) == [[1, 3 * ROWS + 1]]
    check(world, ids[1:])


def test_a_late_vector_of_a_sealed_row_is_in_the_grown_graph(world: World) -> None:
    late = world.put(content="late")
    ids = [late, *fill(world, 1)]
    world.write({"vector": {"id": late, "vector": [1.0] * 8}})
    ids += fill(world, 2)
    assert len(ranges(world)) == 1
    assert world.ids(vector=[1.0] * 8, top_k=1) == [late]
    check(world, ids)


def test_nothing_grows_while_a_rebuild_goes_on(world: World) -> None:
    ids = fill(world, 1)
    rebuilds, rebuilder = world.node.rebuilds, world.builders[len(LANES)]
    before = ranges(world)

    def meanwhile(_job: dict[str, Any]) -> None:
        rebuilder.before_job = lambda _job: None
        ids.extend(fill(world, 2))
        assert ranges(world) == [*before, [ROWS + 1, 2 * ROWS + 1]]

    rebuilder.before_job = meanwhile
    (old,) = world.segments()
    rebuilds.start(everything=True, only_tell=False)
    until(lambda: not rebuilds.facts().running)
    assert rebuilds.facts().progress.segments == 1
    assert old["name"] not in str(world.segments())
    ids += fill(world, 3)
    assert ranges(world) == [*before, [ROWS + 1, 3 * ROWS + 1]]
    check(world, ids)


def test_a_segment_that_grew_while_a_rebuild_began_is_not_taken(world: World) -> None:
    ids = fill(world, 1)
    rebuilds = world.node.rebuilds
    (old,) = world.segments()

    def meanwhile(_job: dict[str, Any]) -> None:
        for builder in world.builders[: len(LANES)]:
            builder.after_job = lambda _job: None
        rebuilds.start(everything=True, only_tell=False)

    for builder in world.builders[: len(LANES)]:
        builder.after_job = meanwhile
    ids += fill(world, 2)
    until(lambda: not rebuilds.facts().running)
    facts = rebuilds.facts()
    assert (facts.progress.segments, facts.progress.failures) == (1, ())
    assert old["name"] not in str(world.segments())
    assert ranges(world)[0] == [1, ROWS + 1], "the old graph lives on"
    check(world, ids)


def test_a_segment_that_is_being_merged_does_not_grow(world: World) -> None:
    ids = fill(world, 1)
    world.forget(ids=[ids.pop(0)], mode="HARD")
    ids += fill(world, 2)
    merger = world.builders[LANES.index("merge")]
    last = [ROWS + 1, 2 * ROWS + 1]
    assert ranges(world)[-1] == last
    sealed_apart: list[bool] = []

    def meanwhile(_job: dict[str, Any]) -> None:
        merger.before_job = lambda _job: None
        ids.append(world.put(content="tail", vector=[1.0] * 8))
        world.admin.maintain(1, False, False, 0)
        until(lambda: len(ranges(world)) == 3)
        sealed_apart.append(ranges(world)[1] == last)

    merger.before_job = meanwhile
    world.merge()
    assert sealed_apart == [True] and len(ranges(world)) == 1
    check(world, ids)
