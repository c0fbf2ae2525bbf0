"""Exact scans whose true neighbours are closer together than the error of 8-bit numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from memsvc.segments.quantise import int8_dots, quantise, quantise_one
from memsvc.segments.rescore import ANY, margins
from memsvc.segments.segment import Segment
from memsvc.segments.vectors import VectorRows
from tests.unit.segments.helpers import GENERATION, build

COUNT, DIMENSION = 4000, 256


def clustered(cosine: float, clusters: int, count: int = COUNT) -> NDArray[np.float32]:
    """Unit vectors whose cosine within a cluster is about ``cosine``."""
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((clusters, DIMENSION))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    noise = rng.standard_normal((count, DIMENSION)) * np.sqrt((1 / cosine - 1) / DIMENSION)
    rows = centres[rng.integers(0, clusters, count)] + noise
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def opened(root: Path, vectors: NDArray[np.float32]) -> VectorRows:
    meta = build(root, list(vectors), graph_min_rows=1 << 60)
    rows = Segment.open(root, meta).rows(GENERATION)
    assert rows is not None and rows.quantised
    return rows


@pytest.mark.parametrize("clusters", [1, 8])
@pytest.mark.parametrize("cosine", [0.9, 0.98, 0.99, 0.999])
def test_the_8_bit_copy_loses_no_neighbour_in_a_tight_cluster(
    tmp_path: Path, cosine: float, clusters: int
) -> None:
    vectors = clustered(cosine, clusters, COUNT + 20)
    rows = opened(tmp_path, vectors[:COUNT])
    half = np.random.default_rng(0).random(COUNT) < 0.5
    for query in vectors[COUNT:]:
        for match in (None, half):
            for k in (1, 10, 100):
                found, sims = rows.scan(query, match, k)
                true, true_sims = rows.scan(query, match, k, full_precision=True)
                assert found.tolist() == true.tolist()
                assert sims.tolist() == true_sims.tolist()


def test_the_margin_covers_the_error_of_every_product() -> None:
    vectors = clustered(0.9, 8)
    levels, scales = quantise(vectors)
    for query in vectors[:20]:
        query8, scale = quantise_one(query)
        rough = np.empty(COUNT, np.float32)
        int8_dots(levels, query8, rough)
        error = np.abs(rough * scales * np.float32(scale) - vectors @ query)
        assert (error <= margins(scales, scale)).all()


def few_numbers(kind: str) -> NDArray[np.float32]:
    """Unit vectors of a few different numbers, which are not rounded independently."""
    rng = np.random.default_rng(5)
    rows = rng.integers(0, 2, (COUNT, DIMENSION)).astype(np.float64)
    if kind == "equal":
        rows = np.ones((COUNT, DIMENSION)) * rng.uniform(0.8, 1.2, (COUNT, 1))
        rows[:, 1:3] += rng.uniform(0, 0.1, (COUNT, 2))
    elif kind == "alike":
        rows = rows[0] + rng.standard_normal(rows.shape) * 1e-3 * rng.uniform(0, 20, (COUNT, 1))
    rows[:, 0] = 1 if kind == "equal" else rng.uniform(0.01, 5, COUNT)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("kind", ["equal", "bits", "alike"])
def test_rows_of_a_few_different_numbers_lose_no_neighbour(tmp_path: Path, kind: str) -> None:
    vectors = few_numbers(kind)
    rows = opened(tmp_path, vectors)
    for query in vectors[:40]:
        for k in (1, 10):
            true, true_sims = rows.scan(query, None, k, full_precision=True)
            for floor in (ANY, float(true_sims[-1])):
                found, sims = rows.scan(query, None, k, floor=floor)
                assert found.tolist() == true.tolist()
                assert sims.tolist() == true_sims.tolist()


def test_a_loose_cluster_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = clustered(0.5, 8)
    rows = opened(tmp_path, vectors)
    scored = 0
    take = rows._rows.take

    def counting(some: NDArray[np.int64]) -> NDArray[np.float32]:
        nonlocal scored
        scored += len(some)
        return take(some)

    monkeypatch.setattr(rows._rows, "take", counting)
    monkeypatch.setattr(rows._rows, "span", None)
    rows.scan(vectors[0], None, 10)
    assert 64 <= scored < COUNT / 3
