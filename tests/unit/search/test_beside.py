"""Work that another thread has begun for a query: what becomes of it when something goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from memsvc.domain.log import Generation
from memsvc.domain.types import Degraded, Mode, Namespace, QueryRequest
from memsvc.segments.errors import FilesUnavailable, SegmentDamaged
from memsvc.segments.graph import Graph
from memsvc.service.search import beside as beside_module
from memsvc.service.search.costs import CostBook
from memsvc.service.search.execution import Execution
from memsvc.service.search.extra import ExtraBuilder
from memsvc.service.search.mutable import EMPTY
from memsvc.service.search.parts import Part
from memsvc.service.search.plan import Plan, SearchSettings
from memsvc.service.search.scope import Reader, Scope
from memsvc.service.search.slots import OutOfTime
from memsvc.service.search.vector import VectorSearch
from memsvc.service.search.view import PartitionView
from memsvc.store.keys import Partition
from memsvc.store.snapshot import Snapshot
from tests.unit.search.test_vector_search import COUNT, DEAR_SCANS, DIMENSION, EF, K, part_of
from tests.unit.segments.helpers import GENERATION, units

QUERY = units(1, DIMENSION, 9)[0]
NOTHING = cast(Snapshot, None)


class Busy(Executor):
    """Takes work and never begins it."""

    def __init__(self) -> None:
        self.taken: list[Future[Any]] = []

    def submit(self, *_args: Any, **_more: Any) -> Future[Any]:
        self.taken.append(Future())
        return self.taken[-1]


def everything(part: Part) -> Scope:
    return Scope(np.ones(len(part), np.bool_), len(part), True)


def searching(beside: Executor, check: Callable[[], float] = lambda: 10.0) -> VectorSearch:
    book = CostBook(DEAR_SCANS)
    return VectorSearch(
        NOTHING, 7, GENERATION, QUERY, book, check, [], lambda *_: None, beside
    )  # fmt: skip


def tail(count: int = COUNT) -> Part:
    builder = ExtraBuilder(DIMENSION)
    builder.add((row, v.tobytes()) for row, v in enumerate(units(count, DIMENSION, 8)))
    return Part("tail", np.arange(count), EMPTY, {GENERATION: builder.snapshot()})


def execution(parts: list[Part], beside: Executor, check: Callable[[], float]) -> Execution:
    """A search for QUERY in these parts, all of whose rows match."""
    plan = Plan(
        QueryRequest(Namespace("t", "a"), vectors=(QUERY,)), Reader(None, 0, False), Mode.VECTOR,
        Generation(GENERATION, "m", DIMENSION, True), K, -1.0, EF, (), Degraded(),
    )  # fmt: skip
    view = PartitionView(cast(Partition, _Numbered()), tuple(parts))
    found = Execution(
        plan, NOTHING, view, SearchSettings(K, EF, 800, 0), CostBook(DEAR_SCANS), check,
        lambda *_: None, beside,
    )  # fmt: skip
    found._scopes = [everything(part) for part in parts]
    return found


class _Numbered:
    number = 7


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Part]:
    """Two graphs and a tail, of which the second and the third are begun at once."""
    monkeypatch.setattr(beside_module, "LEAST", 1)
    return [*(part_of(tmp_path, f"p{n}", units(COUNT, DIMENSION, n)) for n in (1, 2)), tail()]


@pytest.mark.parametrize("after", range(6))
def test_a_query_that_ends_early_leaves_nothing_for_the_other_threads(
    three: list[Part], after: int
) -> None:
    beside, left = Busy(), [after]

    def check() -> float:
        left[0] -= 1
        if left[0] < 0:
            raise OutOfTime
        return 10.0

    with pytest.raises(OutOfTime):
        one = execution(three, beside, check)
        one._candidates(cast(PartitionView, one._view), QUERY, None)
        raise OutOfTime  # it was done already
    assert len(beside.taken) == 2
    assert all(job.cancelled() for job in beside.taken)


def test_three_parts_with_helpers_give_what_they_give_alone(three: list[Part]) -> None:
    def found(beside: Executor) -> list[list[Any]]:
        one = execution(three, beside, lambda: 10.0)
        pairs = one._candidates(cast(PartitionView, one._view), QUERY, None)
        best = [
            (float(score), part.name, int(row))
            for part, candidates in pairs
            for score, row in zip(candidates.scores, candidates.rows, strict=True)
        ]
        return [list(one) for one in sorted(best, reverse=True)[:K]]

    alone = found(Busy())
    with ThreadPoolExecutor(4) as beside:
        for _ in range(20):
            assert found(beside) == alone


def test_a_helper_that_hangs_does_not_hold_a_query_past_its_time(
    three: list[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of a graph come from a disk that no longer answers."""
    let_go, hangs, mine = threading.Event(), threading.Event(), threading.get_ident()
    search = Graph.search

    def slow(self: Graph, *args: Any) -> Any:
        if threading.get_ident() != mine:
            hangs.set()
            let_go.wait()
        return search(self, *args)

    monkeypatch.setattr(Graph, "search", slow)
    looks: list[int] = []

    def check() -> float:
        looks.append(1)
        if len(looks) > 20:
            raise OutOfTime
        return 0.0

    # Or this test would never end where a query waits for it.
    timer = threading.Timer(20, let_go.set)
    timer.start()
    with ThreadPoolExecutor(1) as beside:
        one = searching(beside, check)
        try:
            one.begin_graph(three[1], everything(three[1]), K, EF)
            assert hangs.wait(30)
            with pytest.raises(OutOfTime):
                one.search(three[1], everything(three[1]), K, EF)
        finally:
            timer.cancel()
            let_go.set()


@pytest.mark.parametrize("error", [FilesUnavailable(12, "no memory"), RuntimeError("a bug")])
def test_what_fails_in_a_helper_fails_the_query(
    three: list[Part], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    began = threading.Event()

    def begin(*_: Any) -> Any:
        began.set()
        return fail()

    monkeypatch.setattr(Graph, "search", begin)
    with ThreadPoolExecutor(1) as beside:
        one = searching(beside)
        one.begin_graph(three[1], everything(three[1]), K, EF)
        assert began.wait(30)
        with pytest.raises(type(error)) as raised:
            one.search(three[1], everything(three[1]), K, EF)
        assert raised.value is error


def test_damage_that_a_helper_meets_is_told_and_searched_around(
    three: list[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    part, mine, began = three[1], threading.get_ident(), threading.Event()
    assert part.segment is not None
    file, search = part.segment.meta.files[0], Graph.search

    def broken(self: Graph, *args: Any) -> Any:
        if threading.get_ident() != mine:
            began.set()
            raise SegmentDamaged("p2", file, "not as written")
        return search(self, *args)

    with ThreadPoolExecutor(1) as beside:
        alone = searching(Busy()).search(part, everything(part), K, EF)
        monkeypatch.setattr(Graph, "search", broken)
        one = searching(beside)
        one.begin_graph(part, everything(part), K, EF)
        assert began.wait(30)
        found = one.search(part, everything(part), K, EF)
    assert found.lost
    assert found.local.tolist() == alone.local.tolist()
