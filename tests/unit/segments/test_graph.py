"""The graph: right answers under threads, and files that are not what they should be."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from usearch.index import Index as UsearchIndex

from memsvc.segments import graph as graph_module
from memsvc.segments.errors import BadFile, FilesUnavailable
from memsvc.segments.files import map_file
from memsvc.segments.graph import DTYPES, Graph, GraphBuilder
from tests.unit.segments.helpers import units

COUNT, DIMENSION = 2000, 96


def made(path: Path, dtype: str, count: int = COUNT) -> Graph:
    builder = GraphBuilder(DIMENSION, dtype, 16, 100)
    vectors = units(count, DIMENSION)
    for low in range(0, count, 500):
        builder.add(np.arange(low, min(low + 500, count)), vectors[low : low + 500])
    builder.save(path)
    return Graph(map_file(path), {"dimension": DIMENSION, "dtype": dtype, "vectors": count})


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_finds_the_neighbours(tmp_path: Path, dtype: str) -> None:
    graph = made(tmp_path / "g", dtype)
    vectors, queries = units(COUNT, DIMENSION), units(50, DIMENSION, 3)
    truth = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    hits = 0
    for query, true in zip(queries, truth, strict=True):
        found, sims = graph.search(query, 40, 64)
        hits += len(set(found.tolist()) & set(true.tolist()))
        assert sims == pytest.approx(vectors[found] @ query, abs=0.02)
    assert hits >= 490


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_row_is_out_of_reach_on_busy_cores(tmp_path: Path, dtype: str) -> None:
    # Two threads left some in every third graph or so, when others wanted the cores, too.
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        graph = made(tmp_path / "g", dtype)
    finally:
        for other in others:
            other.kill()
            other.wait()
    lost = [
        row
        for row, vector in enumerate(units(COUNT, DIMENSION))
        if row not in graph.search(vector, 10, 64)[0]
    ]
    assert not lost


def test_asking_for_more_than_there_are_gives_no_padding(tmp_path: Path) -> None:
    graph = made(tmp_path / "g", "i8", 30)
    found, sims = graph.search(units(1, DIMENSION)[0], 200, 64)
    assert sorted(found.tolist()) == list(range(30))
    assert np.isfinite(sims).all()
    for count in (0, -1):
        assert len(graph.search(units(1, DIMENSION)[0], count, 64)[0]) == 0


def test_concurrent_searches_with_different_ef_do_not_disturb_each_other(tmp_path: Path) -> None:
    graph = made(tmp_path / "g", "i8")
    queries = units(30, DIMENSION, 3)
    efs = (16, 64, 300)
    expected = {
        (i, ef): graph.search(queries[i], 10, ef)[0].tolist() for i in range(30) for ef in efs
    }
    wrong: list[tuple[int, int]] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(300):
            key = int(rng.integers(30)), efs[int(rng.integers(3))]
            if graph.search(queries[key[0]], 10, key[1])[0].tolist() != expected[key]:
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(graph._free) <= graph_module.MAX_VIEWS


def test_a_failing_search_gives_its_view_back(tmp_path: Path) -> None:
    graph = made(tmp_path / "g", "f32")
    for _ in range(2 * graph_module.MAX_VIEWS):
        with pytest.raises(ValueError):
            graph.search(np.zeros(DIMENSION + 1, np.float32), 10, 64)
    assert len(graph.search(units(1, DIMENSION)[0], 10, 64)[0]) == 10


def test_a_search_without_memory_for_a_view_of_its_own_waits_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = made(tmp_path / "g", "i8")
    query = units(1, DIMENSION, 3)[0]
    alone = graph.search(query, 10, 64)
    tried = threading.Semaphore(0)

    def nothing_left() -> UsearchIndex:
        tried.release()
        raise FilesUnavailable(12, "no memory")

    monkeypatch.setattr(graph, "_open", nothing_left)
    found: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: found.append(graph.search(query, 10, 64)[0].tolist()))
        for _ in range(2 * graph_module.MAX_VIEWS)
    ]
    with graph._view():
        for thread in threads:
            thread.start()
        for _ in threads:
            assert tried.acquire(timeout=30)
        assert not found
    for thread in threads:
        thread.join(30)
    assert found == [alone[0].tolist()] * len(threads)


@pytest.mark.parametrize(
    "wrong", [{"dimension": 95}, {"dtype": "f32"}, {"vectors": 1999}], ids=lambda w: next(iter(w))
)
def test_a_graph_that_is_not_as_expected_is_refused(
    tmp_path: Path, wrong: dict[str, object]
) -> None:
    made(tmp_path / "g", "i8")
    expected = {"dimension": DIMENSION, "dtype": "i8", "vectors": COUNT, **wrong}
    with pytest.raises(BadFile, match=f"{next(iter(wrong))} is"):
        Graph(map_file(tmp_path / "g"), expected)


def test_another_metric_is_refused_although_usearch_would_take_it(tmp_path: Path) -> None:
    index = UsearchIndex(ndim=8, metric="l2sq", dtype="f32")
    index.add(np.arange(10), units(10, 8))
    index.save(tmp_path / "g")
    with pytest.raises(BadFile):
        Graph(map_file(tmp_path / "g"), {})


def test_something_else_than_a_graph_is_refused(tmp_path: Path) -> None:
    (tmp_path / "g").write_bytes(b"x" * 1000)
    with pytest.raises(BadFile):
        Graph(map_file(tmp_path / "g"), {})
