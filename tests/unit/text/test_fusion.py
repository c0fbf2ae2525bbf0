"""Fusion: bounded, deterministic, and independent of the company a candidate keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsvc.text import fusion

CANDIDATES = st.lists(
    st.tuples(st.floats(0, 10), st.one_of(st.floats(-1, 1), st.just(float("nan")))), max_size=20
)


def columns(found: list[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    words = np.array([w for w, _ in found], np.float64)
    cosine = np.array([c for _, c in found], np.float64)
    return words, cosine


@given(CANDIDATES, st.floats(0, 10))
def test_scores_lie_between_zero_and_one(found: list[tuple[float, float]], bound: float) -> None:
    words, cosine = columns(found)
    scores = fusion.fuse(words, bound, cosine)
    assert scores.shape == words.shape
    assert bool(((scores >= 0) & (scores <= 1)).all())


@given(CANDIDATES)
def test_a_score_does_not_depend_on_the_other_candidates(
    found: list[tuple[float, float]],
) -> None:
    words, cosine = columns(found)
    together = fusion.fuse(words, 5.0, cosine)
    for i in range(len(found)):
        alone = fusion.fuse(words[i : i + 1], 5.0, cosine[i : i + 1])
        assert alone[0] == together[i]


def test_words_alone_carry_a_candidate_without_a_vector() -> None:
    scores = fusion.fuse(np.array([4.0, 0.0]), 5.0, np.array([np.nan, np.nan]))
    assert scores.tolist() == [pytest.approx(fusion.KEYWORD_WEIGHT * 0.8), 0.0]


def test_a_query_without_known_words_is_ranked_by_vector() -> None:
    scores = fusion.fuse(np.zeros(2), 0.0, np.array([0.2, 0.9], np.float32))
    assert scores[1] > scores[0] > 0


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        fusion.fuse(np.zeros(2), 1.0, np.zeros(3))
