"""Exact scores and scans against brute force."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from memsvc.segments import vectors as vectors_module
from memsvc.segments.quantise import int8_dots, quantise, quantise_one
from memsvc.segments.segment import Segment
from memsvc.segments.topk import best, cosines, unit
from memsvc.segments.vectors import VectorRows
from tests.unit.segments.helpers import GENERATION, build, units

COUNT, DIMENSION = 3000, 64


def opened(root: Path, vectors: list[NDArray[np.float32] | None], **more: object) -> VectorRows:
    meta = build(root, vectors, graph_min_rows=1 << 60, **more)
    rows = Segment.open(root, meta).rows(GENERATION)
    assert rows is not None
    return rows


@pytest.fixture(scope="module")
def all_rows(tmp_path_factory: pytest.TempPathFactory) -> VectorRows:
    return opened(tmp_path_factory.mktemp("all"), list(units(COUNT, DIMENSION)))


@pytest.fixture(scope="module")
def some_rows(tmp_path_factory: pytest.TempPathFactory) -> VectorRows:
    """Every third row has no vector."""
    vectors = [v if i % 3 else None for i, v in enumerate(units(COUNT, DIMENSION))]
    return opened(tmp_path_factory.mktemp("some"), vectors)


def brute(
    query: NDArray[np.float32], mask: NDArray[np.bool_], k: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    matching = np.flatnonzero(mask)
    sims = cosines(units(COUNT, DIMENSION)[matching], query)
    order = np.lexsort((matching, -sims))[:k]
    return matching[order], sims[order]


masks = st.tuples(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.001, 0.02, 0.2, 0.5, 0.9, 1.0]),
    st.booleans(),
)


def make_mask(parameters: tuple[int, float, bool]) -> NDArray[np.bool_]:
    seed, density, clumped = parameters
    rng = np.random.default_rng(seed)
    if clumped:
        start = rng.integers(0, COUNT)
        return np.arange(COUNT) - start < density * COUNT
    return rng.random(COUNT) < density


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("full", [False, True])
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(parameters=masks, k=st.sampled_from([0, 1, 7, 40, 200]), by_index=st.booleans())
def test_a_scan_finds_what_brute_force_finds(
    all_rows: VectorRows,
    some_rows: VectorRows,
    partial: bool,
    full: bool,
    parameters: tuple[int, float, bool],
    k: int,
    by_index: bool,
) -> None:
    rows = some_rows if partial else all_rows
    mask = make_mask(parameters)
    query = unit(np.random.default_rng(parameters[0]).standard_normal(DIMENSION).astype("f4"))
    has = (np.arange(COUNT) % 3 != 0) if partial else np.ones(COUNT, bool)
    expected, sims = brute(query, mask & has, k)
    found, found_sims = rows.scan(
        query, np.flatnonzero(mask) if by_index else mask, k, full_precision=full
    )
    assert found.tolist() == expected.tolist()
    assert found_sims.tolist() == sims.tolist()


@pytest.mark.parametrize("busy", [False, True])
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(parameters=st.none() | masks, k=st.sampled_from([1, 40, 200]))
def test_two_threads_find_what_one_finds(
    all_rows: VectorRows,
    monkeypatch: pytest.MonkeyPatch,
    busy: bool,
    parameters: tuple[int, float, bool] | None,
    k: int,
) -> None:
    monkeypatch.setattr(vectors_module, "SHARED_LEAST_BYTES", 1)
    mask = None if parameters is None else make_mask(parameters)
    query, let_go = units(1, DIMENSION, seed=5)[0], threading.Event()
    with ThreadPoolExecutor(1) as beside:
        if busy:
            beside.submit(let_go.wait)
        try:
            for full in (False, True):
                alone = all_rows.scan(query, mask, k, full_precision=full)
                shared = all_rows.scan(query, mask, k, full_precision=full, beside=beside)
                assert shared[0].tolist() == alone[0].tolist()
                assert shared[1].tolist() == alone[1].tolist()
        finally:
            let_go.set()


def test_small_blocks_and_buffers_change_nothing(
    all_rows: VectorRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors_module, "_SPAN_BYTES", 1)
    query = units(COUNT, DIMENSION)[17]
    for density in (0.01, 0.3, 0.45, 1.0):
        mask = np.random.default_rng(3).random(COUNT) < density
        expected, sims = brute(query, mask, 40)
        found, found_sims = all_rows.scan(query, mask, 40)
        assert found.tolist() == expected.tolist()
        assert found_sims.tolist() == sims.tolist()


def test_a_row_scores_the_same_to_the_last_bit_on_every_path(all_rows: VectorRows) -> None:
    query = units(COUNT, DIMENSION)[5]
    found, sims = all_rows.scan(query, None, 60)
    _, full = all_rows.scan(query, None, 60, full_precision=True)
    alone = [all_rows.score(found[i : i + 1], query)[0] for i in range(60)]
    assert sims.tolist() == full.tolist() == alone
    assert all_rows.score(found, query).tolist() == alone


def test_equal_similarities_come_in_row_order_and_are_not_lost(tmp_path: Path) -> None:
    vector = units(1, 16)[0]
    rows = opened(tmp_path, [vector] * 500)
    for full in (False, True):
        found, sims = rows.scan(vector, None, 40, full_precision=full)
        assert found.tolist() == list(range(40))
        assert len(set(sims.tolist())) == 1


def test_rows_without_a_vector_score_nan_instead_of_anothers_value(some_rows: VectorRows) -> None:
    vectors = units(COUNT, DIMENSION)
    sims = some_rows.score(np.array([0, 1, 3, 2]), vectors[1])
    assert np.isnan(sims).tolist() == [True, False, True, False]
    assert sims[1] == pytest.approx(1, abs=1e-6)
    present = some_rows.present
    assert present is not None
    assert present.tolist() == (np.arange(COUNT) % 3 != 0).tolist()


def test_many_rows_are_scored_in_pieces_that_fit_the_buffer(
    all_rows: VectorRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = units(COUNT, DIMENSION)[5]
    whole = all_rows.score(np.arange(COUNT), query)
    monkeypatch.setattr("memsvc.segments.guarded.SCRATCH_BYTES", 1000)
    assert all_rows.score(np.arange(COUNT), query).tolist() == whole.tolist()


@pytest.mark.parametrize("density", [0.1, 1.0])
def test_a_cancelled_scan_stops_between_blocks(
    all_rows: VectorRows, density: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors_module, "_SPAN_BYTES", 1)
    monkeypatch.setattr("memsvc.segments.guarded.SCRATCH_BYTES", 64 * DIMENSION * 4)
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise TimeoutError

    mask = np.random.default_rng(0).random(COUNT) < density
    with pytest.raises(TimeoutError):
        all_rows.scan(units(COUNT, DIMENSION)[0], mask, 5, check, full_precision=True)
    assert calls == 3


def test_threads_do_not_share_buffers(all_rows: VectorRows) -> None:
    vectors = units(COUNT, DIMENSION)
    mask = np.random.default_rng(0).random(COUNT) < 0.2
    expected = {i: all_rows.scan(vectors[i], mask, 10)[0].tolist() for i in range(20)}
    wrong: list[int] = []

    def work(seed: int) -> None:
        for i in np.random.default_rng(seed).integers(0, 20, 200).tolist():
            if all_rows.scan(vectors[i], mask, 10)[0].tolist() != expected[i]:
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_8_bit_copy_keeps_the_neighbours_of_a_far_query(tmp_path: Path) -> None:
    vectors = units(5000, 256, 1)
    rows = opened(tmp_path, list(vectors))
    agreed = 0
    for query in units(30, 256, 2):
        sims = vectors @ query
        far = sims < np.median(sims)
        fast, _ = rows.scan(query, far, 10)
        true, _ = rows.scan(query, far, 10, full_precision=True)
        agreed += len(set(fast.tolist()) & set(true.tolist()))
    assert agreed >= 299


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (3, 7), (50, 1536), (2, 8192)])
def test_8_bit_products_are_right_for_every_shape(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(-127, 128, shape, np.int8)
    query = rng.integers(-127, 128, shape[1], np.int8)
    out = np.full(shape[0], np.nan, np.float32)
    int8_dots(rows, query, out)
    assert out.tolist() == (rows.astype(np.int64) @ query).astype(np.float32).tolist()


def test_quantising_does_not_clip_a_row_with_one_large_component() -> None:
    vector = np.full(1536, 0.01, np.float32)
    vector[7] = 0.9
    levels, scale = quantise_one(vector)
    assert levels[7] == 127
    assert np.abs(levels * (0.9 / 127) - vector).max() <= 0.9 / 127 / 2 * 1.001
    assert float(levels.astype(np.float32) @ vector) * scale == pytest.approx(vector @ vector)
    zero, _ = quantise(np.zeros((2, 4), np.float32))
    assert not zero.any()


def test_unit_survives_numbers_near_the_ends_of_float32() -> None:
    for size in (1e-38, 1e-20, 1.0, 3e38):
        vector = unit(np.full(4, size, np.float32))
        assert vector == pytest.approx([0.5] * 4)
    for bad in (0.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="no direction"):
            unit(np.full(4, bad, np.float32))


@given(
    st.lists(st.integers(-3, 3), max_size=40), st.integers(0, 45), st.randoms(use_true_random=False)
)
def test_best_is_a_sorted_prefix_for_any_ties(scores: list[int], k: int, random: Random) -> None:
    order = list(range(len(scores)))
    random.shuffle(order)
    rows, sims = best(
        np.array([scores[i] for i in order], np.float32), np.array(order, np.int64), k
    )
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]
    assert rows.tolist() == expected
    assert sims.tolist() == [scores[i] for i in expected]


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(masks, st.integers(1, 60), st.floats(0.0, 1.0))
def test_a_floor_leaves_out_nothing_that_reaches_it(
    all_rows: VectorRows, parameters: tuple[int, float, bool], k: int, share: float
) -> None:
    mask, query = make_mask(parameters), units(1, DIMENSION, seed=9)[0]
    rows, sims = brute(query, mask, k)
    # From a floor above all to one below all, and often exactly a cosine.
    floor = float(sims[int(share * (len(sims) - 1))]) if len(sims) else 0.0
    found, scores = all_rows.scan(query, mask, k, floor=floor)
    wanted = sims >= floor
    reaching = scores >= floor
    assert found[reaching].tolist() == rows[wanted].tolist()
    assert scores[reaching].tolist() == sims[wanted].tolist()
