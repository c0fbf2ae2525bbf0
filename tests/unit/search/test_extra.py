"""Vectors outside segment files: exact, whatever their arrangement, and each only once."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from numpy.typing import NDArray

from memsvc.segments.topk import best, cosines
from memsvc.service.search.extra import ExtraBuilder
from tests.unit.segments.helpers import units

COUNT, DIMENSION = 2500, 256


def clustered(cosine: float, clusters: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(2)
    centres = rng.standard_normal((clusters, DIMENSION))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    noise = rng.standard_normal((COUNT, DIMENSION)) * np.sqrt((1 / cosine - 1) / DIMENSION)
    rows = centres[rng.integers(0, clusters, COUNT)] + noise
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("clusters", [1, 6])
@pytest.mark.parametrize("cosine", [0.5, 0.98, 0.99, 0.999])
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_the_tail_loses_no_neighbour_in_a_tight_cluster(
    cosine: float, clusters: int, share: float
) -> None:
    vectors = clustered(cosine, clusters)
    builder = ExtraBuilder(DIMENSION)
    # Rows in another order than the vectors, as late vectors come.
    order = np.random.default_rng(3).permutation(COUNT)
    for start in range(0, COUNT, 700):
        some = order[start : start + 700].tolist()
        builder.add((row, vectors[row].tobytes()) for row in some)
    extra = builder.snapshot()
    mask = np.random.default_rng(4).random(COUNT) < share
    matching = np.flatnonzero(mask)
    stored = extra.take(np.argsort(extra.local))
    for query in vectors[:20]:
        for k in (1, 10, 100):
            local, sims = extra.top(query, mask, k)
            true, true_sims = best(cosines(stored[matching], query), matching, k)
            assert local.tolist() == true.tolist()
            assert sims.tolist() == true_sims.tolist()


def test_a_vector_that_is_brought_twice_is_kept_once() -> None:
    vectors = clustered(0.5, 1)
    builder = ExtraBuilder(DIMENSION)
    builder.add([(4, vectors[4].tobytes()), (2, vectors[2].tobytes())])
    builder.add([(2, vectors[2].tobytes()), (7, vectors[7].tobytes()), (7, vectors[7].tobytes())])
    extra = builder.snapshot()
    assert extra.local.tolist() == [4, 2, 7]
    local, _ = extra.top(vectors[2], np.ones(10, np.bool_), 10)
    assert sorted(local.tolist()) == [2, 4, 7]


@pytest.mark.parametrize(("kept", "shared"), [(1, False), (255, False), (256, True), (1_024, True)])
def test_a_few_rows_that_are_left_do_not_keep_all_that_was_sealed(kept: int, shared: bool) -> None:
    """Of a thousand agents each would have held 8 MB that nobody counted."""
    rows = units(1_024, 8, 1)
    builder = ExtraBuilder(8)
    builder.add((row, vector.tobytes()) for row, vector in enumerate(rows))
    chunk = weakref.ref(builder._chunks[0])
    # Sealed in two steps: what is a view already is judged by what it keeps, too.
    left = builder.behind((1_024 - kept) // 2)
    left = left.behind(1_024 - kept - (1_024 - kept) // 2)
    del builder
    assert (chunk() is not None) is shared
    assert left.nbytes == (1_024 if shared else kept) * 8 * 5
    extra, everything = left.snapshot(), np.ones(kept, np.bool_)
    query = units(1, 8, 2)[0]
    local, sims = extra.top(query, everything, kept)
    assert sorted(local.tolist()) == list(range(kept))
    assert sims == pytest.approx(np.vecdot(rows[1_024 - kept + local], query), abs=1e-6)
