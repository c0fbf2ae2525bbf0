"""Parts searched one after the other: what one has found spares work in the next, never rows."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from memsvc.domain.records import STATE_DTYPE
from memsvc.domain.types import ExplainPart
from memsvc.segments import vectors as vectors_module
from memsvc.segments.costs import ScanCosts
from memsvc.segments.graph import Glances
from memsvc.segments.rescore import ANY
from memsvc.segments.segment import Segment
from memsvc.service.search.costs import CostBook
from memsvc.service.search.extra import ExtraBuilder
from memsvc.service.search.mutable import from_states
from memsvc.service.search.parts import Part
from memsvc.service.search.scope import Scope
from memsvc.service.search.slots import OutOfTime
from memsvc.service.search.vector import BROADER_MOST, Bar, VectorSearch, broader
from memsvc.store.snapshot import Snapshot
from tests.unit.segments.helpers import GENERATION, build, units

COUNT, DIMENSION, K, EF = 1_500, 64, 10, 64
Rows = NDArray[np.float32]


def normed(rows: NDArray[Any]) -> Rows:
    unit: Rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def part_of(root: Path, name: str, vectors: Rows, **options: Any) -> Part:
    meta = build(root, list(vectors), name, **options)
    segment = Segment.open(root, meta)
    assert segment.graph(GENERATION) is not None and segment.columns is not None
    states = from_states(np.zeros(len(vectors), STATE_DTYPE))
    return Part(name, segment.columns.rows, states, {}, segment)


# So dear are scans that a graph is always taken where there is one.
DEAR_SCANS = ScanCosts(1e3, 1e3, 1e3, 1e3, 0.001, 1.0)


def searching(
    query: Rows,
    explain: list[ExplainPart],
    beside: Executor | None = None,
    book: CostBook | None = None,
) -> VectorSearch:
    book = book or CostBook(DEAR_SCANS)
    nothing = cast(Snapshot, None)
    return VectorSearch(
        nothing, 7, GENERATION, query, book, lambda: 10.0, explain, lambda *_: None, beside
    )


def best_of(
    parts: list[Part], query: Rows, masks: list[NDArray[np.bool_]], ef: int = EF
) -> tuple[list[tuple[float, int, int]], list[ExplainPart]]:
    """The K best as (cosine, part, row), found as a query finds them."""
    explain: list[ExplainPart] = []
    search, bar = searching(query, explain), Bar(K, ANY)
    found: list[tuple[float, int, int]] = []
    for number, (part, mask) in enumerate(zip(parts, masks, strict=True)):
        scope = Scope(mask, int(mask.sum()), True)
        result = search.search(part, scope, K, ef, bar.floor, known=bar.known)
        bar.saw(result.sims)
        found.extend(
            (float(sim), number, int(row))
            for sim, row in zip(result.sims, result.local, strict=True)
        )
    return sorted(found, reverse=True)[:K], explain


def truth(vectors: list[Rows], query: Rows, masks: list[NDArray[np.bool_]]) -> set[tuple[int, int]]:
    every = [
        (float(sim), number, row)
        for number, (rows, mask) in enumerate(zip(vectors, masks, strict=True))
        for row, sim in enumerate(np.vecdot(rows, query))
        if mask[row]
    ]
    return {(number, row) for _, number, row in sorted(every, reverse=True)[:K]}


@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize("dtype", ["i8", "bf16", "f16", "f32"])
def test_a_narrow_search_of_later_graphs_loses_no_neighbour(
    tmp_path: Path, dtype: str, share: float
) -> None:
    vectors = [units(COUNT, DIMENSION, seed) for seed in range(3)]
    masks = [np.random.default_rng(n).random(COUNT) < share for n in range(3)]
    parts = [part_of(tmp_path, f"p{n}", v, dtype=dtype) for n, v in enumerate(vectors)]
    hits = narrow = 0
    for query in units(40, DIMENSION, 50):
        found, explain = best_of(parts, query, masks)
        hits += len({(n, row) for _, n, row in found} & truth(vectors, query, masks))
        narrow += sum("few reach" in e.why for e in explain)
        assert all(sim == np.vecdot(vectors[n][row], query) for sim, n, row in found)
    assert hits >= 0.985 * 40 * K
    assert narrow > 0


def test_memories_that_belong_together_are_found_in_a_later_part(tmp_path: Path) -> None:
    query = units(1, DIMENSION, 77)[0]
    noise = np.random.default_rng(8).standard_normal((60, DIMENSION))
    vectors = [units(COUNT, DIMENSION, 1), units(COUNT, DIMENSION, 2)]
    vectors[1][:60] = normed(query + 0.05 * noise)
    everything = [np.ones(COUNT, np.bool_)] * 2
    parts = [part_of(tmp_path, f"p{n}", v) for n, v in enumerate(vectors)]
    found, explain = best_of(parts, query, everything)
    assert {(n, row) for _, n, row in found} == truth(vectors, query, everything)
    assert "few reach" not in explain[1].why


@pytest.mark.parametrize("ef", [16, 24])
def test_a_breadth_that_is_narrow_already_is_searched_whole(tmp_path: Path, ef: int) -> None:
    vectors = units(COUNT, DIMENSION, 1)
    part, everything = part_of(tmp_path, "p", vectors), np.ones(COUNT, np.bool_)
    _, explain = best_of([part, part], units(1, DIMENSION, 5)[0], [everything] * 2, ef)
    assert "few reach" not in explain[1].why


def test_a_larger_ef_also_widens_the_search_of_later_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, everything = part_of(tmp_path, "p", units(COUNT, DIMENSION, 1)), np.ones(COUNT, np.bool_)
    assert part.segment is not None
    graph = part.segment.graph(GENERATION)
    assert graph is not None
    breadths: list[int] = []
    original = graph.search

    def watched(query: Rows, count: int, ef: int, *more: Any) -> Any:
        breadths.append(ef)
        return original(query, count, ef, *more)

    monkeypatch.setattr(graph, "search", watched)
    scope = Scope(everything, COUNT, True)
    for ef in (64, 400):
        searching(units(1, DIMENSION, 5)[0], []).search(part, scope, K, ef, 0.999, known=True)
    assert breadths == [24, 150]


@pytest.mark.parametrize("dtype", ["i8", "bf16", "f16", "f32"])
def test_rough_cosines_of_a_graph_are_never_further_off_than_taken_for(
    tmp_path: Path, dtype: str
) -> None:
    rng = np.random.default_rng(4)
    for number, dimension in enumerate((2, 8, 64)):
        rows = rng.standard_normal((400, dimension))
        rows[:200, 0] += 5.0  # one number far above the others
        vectors = normed(rows)
        part = part_of(tmp_path, f"{dtype}-{number}", vectors, dtype=dtype)
        kept, graph = part.vectors(GENERATION), part.graph(GENERATION)
        assert kept is not None and graph is not None
        for query in vectors[::40]:
            search = searching(query, [])
            local, rough = graph.search(query, 200, 200)
            for floor in np.sort(np.vecdot(vectors[local], query))[::20].tolist():
                hopeful = kept.hopeful(local, rough, search._quantised[1], floor)
                reaching = local[np.vecdot(vectors[local], query) >= floor]
                assert set(reaching.tolist()) <= set(hopeful.tolist())


@pytest.mark.parametrize("busy", [False, True])
def test_a_tail_scanned_beside_gives_what_it_gives_alone(busy: bool) -> None:
    count, dimension = 6_000, 96
    vectors = units(count, dimension, 3)
    builder = ExtraBuilder(dimension)
    builder.add((row, vector.tobytes()) for row, vector in enumerate(vectors))
    states = from_states(np.zeros(count, STATE_DTYPE))
    tail = Part("tail", np.arange(count), states, {GENERATION: builder.snapshot()})
    mask = np.random.default_rng(2).random(count) < 0.7
    scope, let_go = Scope(mask, int(mask.sum()), True), threading.Event()
    with ThreadPoolExecutor(1) as beside:
        if busy:
            beside.submit(let_go.wait)
        try:
            for floor in (ANY, 0.5, 0.999):
                query = units(1, dimension, 9)[0]
                alone = searching(query, []).search(tail, scope, K, EF, floor)
                search = searching(query, [], beside)
                search.begin(tail, scope, K)
                assert "tail" in search.beside.scans
                shared = search.search(tail, scope, K, EF, floor)
                assert shared.local.tolist() == alone.local.tolist()
                assert shared.sims.tolist() == alone.sims.tolist()
        finally:
            let_go.set()


@pytest.mark.parametrize("share", [1.0, 0.9, 0.3])
@pytest.mark.parametrize("busy", [False, True])
def test_a_graph_searched_beside_gives_what_it_gives_alone(
    tmp_path: Path, busy: bool, share: float
) -> None:
    part = part_of(tmp_path, "p", units(COUNT, DIMENSION, 3))
    mask = np.random.default_rng(2).random(COUNT) < share
    scope, let_go = Scope(mask, int(mask.sum()), True), threading.Event()
    with ThreadPoolExecutor(1) as beside:
        if busy:
            beside.submit(let_go.wait)
        try:
            for query in units(20, DIMENSION, 9):
                alone = searching(query, []).search(part, scope, K, EF)
                search = searching(query, [], beside)
                search.begin_graph(part, scope, K, EF)
                assert bool(search.beside.graphs) is (share > 0.5)
                shared = search.search(part, scope, K, EF, 0.0, known=True)
                assert shared.sims.tolist() == alone.sims.tolist()
                assert shared.local.tolist() == alone.local.tolist()
                assert not search.beside.graphs
        finally:
            let_go.set()


class _Busy(Executor):
    """Takes work and never begins it."""

    def __init__(self) -> None:
        self.taken: list[Future[Any]] = []

    def submit(self, *_args: Any, **_more: Any) -> Future[Any]:
        self.taken.append(Future())
        return self.taken[-1]


def test_a_scan_that_fails_leaves_nothing_for_the_other_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors_module, "SHARED_LEAST_BYTES", 1)
    rows = part_of(tmp_path, "p", units(COUNT, DIMENSION, 1)).vectors(GENERATION)
    assert rows is not None

    def stop() -> None:
        raise OutOfTime

    beside = _Busy()
    with pytest.raises(OutOfTime):
        rows.scan(units(1, DIMENSION, 5)[0], None, K, stop, beside=beside)
    assert [future.cancelled() for future in beside.taken] == [True]


def neighbours(dimension: float) -> Rows:
    """Cosines, best first, of 64 neighbours spread as in a space of so many dimensions."""
    ranks = np.arange(1, 65) / 64
    distances = 0.8 * ranks ** (1 / dimension)
    return (1 - distances**2 / 2).astype(np.float32)


@pytest.mark.parametrize(
    ("dimension", "least", "most"),
    [(5, 1.0, 1.0), (20, 1.0, 1.0), (35, 2.2, 2.9), (50, 3.2, 4.0), (500, 4.0, 4.0)],
)
def test_a_hard_neighbourhood_is_searched_broader_and_an_easy_one_is_not(
    dimension: float, least: float, most: float
) -> None:
    assert least <= broader(neighbours(dimension)) <= most


@pytest.mark.parametrize("sims", [[], [0.5], [1.0, 1.0], [1.0000001, 1.0, 0.9]])
def test_equal_vectors_and_few_of_them_have_no_dimension_to_go_by(sims: list[float]) -> None:
    assert broader(np.array(sims, np.float32)) == 1.0


def test_neighbours_all_at_one_distance_are_as_hard_as_can_be() -> None:
    assert broader(np.full(64, 0.3, np.float32)) == BROADER_MOST


def test_what_a_narrow_search_misses_among_vectors_without_structure_a_broad_one_finds(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(11)
    vectors = normed(rng.standard_normal((4_000, DIMENSION)))
    part = part_of(tmp_path, "noise", vectors)
    graph = part.graph(GENERATION)
    assert graph is not None
    narrow = found = 0
    for query in normed(rng.standard_normal((30, DIMENSION))):
        true = set(np.argsort(-(vectors @ query))[:K].tolist())
        narrow += len(true & set(graph.search(query, EF, EF)[0].tolist()))
        ranked, _ = best_of([part], query, [np.ones(len(vectors), np.bool_)])
        found += len(true & {row for _, _, row in ranked})
    assert narrow < found and found >= 0.9 * 30 * K


def test_a_hard_query_is_scanned_where_a_broad_search_would_cost_more(tmp_path: Path) -> None:
    class Fixed:
        """What a search costs: one for each row of a graph's breadth, 100 for a scan."""

        def of(self, *_: object) -> Fixed:
            return self

        def exact(self, _matching: int) -> float:
            return 100.0

        def graph(self, width: int) -> float:
            return float(width)

        def saw_graph(self, _seconds: float, _width: int) -> None:
            pass

        saw_exact = saw_graph

    rng = np.random.default_rng(11)
    vectors = normed(rng.standard_normal((COUNT, 256)))
    part = part_of(tmp_path, "noise", vectors)
    query, explain = normed(rng.standard_normal((1, 256)))[0], list[ExplainPart]()
    search = searching(query, explain, book=cast(CostBook, Fixed()))
    everything = Scope(np.ones(len(vectors), np.bool_), len(vectors), True)
    found = search.search(part, everything, K, EF)
    assert [explained.plan for explained in explain] == ["exact"]
    assert "as broad it is dearer" in explain[0].why
    assert found.local.tolist() == np.argsort(-(vectors @ query))[:K].tolist()


def test_a_hard_query_loses_no_neighbour_to_narrow_searches_of_later_graphs(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(5)
    vectors = [normed(rng.standard_normal((COUNT, DIMENSION))) for _ in range(3)]
    parts = [part_of(tmp_path, str(number), rows) for number, rows in enumerate(vectors)]
    masks = [np.ones(COUNT, np.bool_)] * 3
    found = 0
    for query in normed(rng.standard_normal((30, DIMENSION))):
        ranked, _ = best_of(parts, query, masks)
        found += len({(part, row) for _, part, row in ranked} & truth(vectors, query, masks))
    assert found >= 0.95 * 30 * K


def test_a_narrow_search_that_is_rarely_enough_is_left_out_and_tried_again_later() -> None:
    glances = Glances()
    tried = []
    for _ in range(400):
        tried.append(glances.worth)
        if tried[-1]:
            glances.saw(False)
    assert all(tried[:15]) and 0 < sum(tried[100:]) < 100
    for _ in range(40):
        glances.saw(True)
    assert glances.worth
