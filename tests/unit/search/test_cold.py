"""Cold segments: what they cost the planner, and how much of them stays in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from memsvc.domain.manifest import COLD
from memsvc.segments.costs import ScanCosts
from memsvc.segments.residency import ORDER
from memsvc.segments.segment import Segment
from memsvc.service.search.cold_pages import ColdPages
from memsvc.service.search.costs import CostBook, Missing, SegmentCosts
from tests.semantics.harness import DAY, World
from tests.unit.segments.helpers import GENERATION, build, units

COUNT = 2_000
COSTS = ScanCosts(0.1, 0.2, 0.03, 0.06, 0.05, 50_000.0)


def costs_of(segment: Segment, missing: Missing | None) -> SegmentCosts:
    vectors, graph = segment.rows(GENERATION), segment.graph(GENERATION)
    assert vectors is not None and graph is not None
    return CostBook(COSTS).of(vectors, graph, missing)


def test_waiting_for_the_disk_counts_by_what_is_missing(tmp_path: Path) -> None:
    segment = Segment.open(tmp_path, build(tmp_path, list(units(COUNT, 256))))
    hot = costs_of(segment, None)
    warm = costs_of(segment, Missing(0, 0, 0))
    away = costs_of(segment, Missing(1, 1, 1))
    for rows in (100, 1_000, COUNT):
        assert warm.exact(rows) == hot.exact(rows) < away.exact(rows)
    assert warm.graph(64) == hot.graph(64) < away.graph(64)
    # Rows are read, and the copy is not, where few match; and the graph alone by the other way.
    assert costs_of(segment, Missing(0, 1, 1)).exact(100) == hot.exact(100)
    assert costs_of(segment, Missing(1, 1, 0)).graph(64) == hot.graph(64)
    # Reading every row in turn is no dearer for more matches.
    limit = COUNT * (256 * 1.0) / 1e3 + 200 * 40_000 / 2 / 1e3
    assert away.exact(COUNT) - hot.exact(COUNT) == pytest.approx(limit)


def test_what_the_disk_took_does_not_spoil_the_figures_of_the_machine(tmp_path: Path) -> None:
    segment = Segment.open(tmp_path, build(tmp_path, list(units(COUNT, 64))))
    away = costs_of(segment, Missing(1, 1, 1))
    away.saw_exact(5.0, COUNT)
    away.saw_graph(5.0, 64)
    assert (away.book.exact_factor, away.book.graph_factor) == (1.0, 1.0)


def test_a_cold_segment_finds_the_same_as_a_hot_one(tmp_path: Path) -> None:
    """Also when its pages were let go of in between."""
    vectors = list(units(COUNT, 64))
    hot = Segment.open(tmp_path, build(tmp_path, vectors, "hot"))
    cold = Segment.open(tmp_path, build(tmp_path, vectors, "cold", tier=COLD))
    assert hot.mapped == [] and hot.missing("graph", GENERATION) == 0
    assert {file.kind for file in cold.mapped} == set(ORDER)
    for query in units(5, 64, 3):
        found = []
        for segment in (hot, cold):
            rows = segment.rows(GENERATION)
            assert rows is not None
            local, sims = rows.scan(query, None, 10)
            found.append((local.tolist(), sims.tolist(), rows.score(local, query).tolist()))
        assert found[0] == found[1]
        for file in cold.mapped:
            file.drop(1 << 40)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A store with 300 cold memories."""
    made = World(tmp_path / "data")
    rng = np.random.default_rng(2)
    made.write(
        *(
            {"content": f"n{n}", "vector": rng.standard_normal(8).tolist(), "ttl_ms": 0}
            for n in range(300)
        )
    )
    made.clock.turn(121 * DAY)
    made.merge()
    yield made
    made.close()


def test_cold_files_are_held_to_their_budget_once_they_are_in_use(world: World) -> None:
    pages = world.node.cold_pages
    world.node.views.clear()
    pages.tick()
    assert pages.resident == 0
    before = world.query(vector=[1.0] * 8, top_k=20, min_score=-1)["items"]
    pages.tick()
    whole = pages.resident
    assert 0 < whole <= world.node.health().store.cold_bytes + 5 * 4_096
    tight = ColdPages(world.node.views, whole)
    tight.tick()
    assert tight.resident == whole
    tight.budget = whole - 1
    tight.tick()
    assert tight.resident <= whole * 7 / 8
    tight.budget = 0
    tight.tick()
    pages.tick()
    assert tight.resident == pages.resident == 0
    assert world.query(vector=[1.0] * 8, top_k=20, min_score=-1)["items"] == before


def test_health_tells_of_the_cold_tier(world: World) -> None:
    store = world.node.health().store
    assert (store.cold_segments, store.cold_rows) == (1, 300)
    assert 0 < store.cold_bytes < store.segment_bytes
    world.forget(filters={"ts": {"gt": 0}}, mode="HARD")
    world.purge()
    assert world.node.health().store.cold_rows == 0
