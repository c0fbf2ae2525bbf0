"""BM25 against an independent implementation, and the bound that fusion relies on."""

from __future__ import annotations

import math

import bm25s
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsvc.text import bm25
from memsvc.text.index import invert

WORDS = st.sampled_from(["ant", "bee", "cat", "dog", "eel", "fox"])
DOCUMENTS = st.lists(st.lists(WORDS, min_size=1, max_size=12), min_size=1, max_size=12)


def scores(docs: list[list[str]], query: list[str], k1: float, b: float) -> np.ndarray:
    inverted = invert(docs)
    mean = bm25.average_length(int(inverted.lengths.sum()), len(docs))
    total = np.zeros(len(docs))
    for term in query:
        if term not in inverted.terms:
            continue
        i = inverted.terms.index(term)
        at = slice(inverted.offsets[i], inverted.offsets[i + 1])
        found = inverted.docs[at]
        total[found] += bm25.contributions(
            bm25.idf(len(docs), len(found)),
            inverted.tfs[at],
            inverted.lengths[found],
            mean,
            k1=k1,
            b=b,
        )
    return total


@given(docs=DOCUMENTS, query=st.lists(WORDS, min_size=1, max_size=4, unique=True))
@pytest.mark.parametrize(("k1", "b"), [(bm25.K1, bm25.B), (2.0, 0.75), (0.5, 0.0)])
def test_agrees_with_bm25s(docs: list[list[str]], query: list[str], k1: float, b: float) -> None:
    oracle = bm25s.BM25(method="lucene", k1=k1, b=b, dtype="float64")
    oracle.index(docs, show_progress=False)
    known = [term for term in query if any(term in doc for doc in docs)]
    expected = oracle.get_scores(known) if known else np.zeros(len(docs))
    np.testing.assert_allclose(scores(docs, query, k1, b), expected, rtol=1e-9, atol=1e-12)


@given(docs=DOCUMENTS, query=st.lists(WORDS, min_size=1, max_size=4, unique=True))
def test_no_document_reaches_the_bound(docs: list[list[str]], query: list[str]) -> None:
    weights = [bm25.idf(len(docs), sum(term in doc for doc in docs)) for term in query]
    got = scores(docs, query, bm25.K1, bm25.B)
    bound = bm25.upper_bound(weights)
    assert bool((got < bound).all()) or bound == 0.0


def test_rarer_terms_weigh_more_and_none_is_negative() -> None:
    weights = [bm25.idf(100, df) for df in range(1, 101)]
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] > 0
    assert weights[0] == pytest.approx(math.log(1 + 99.5 / 1.5))


def test_statistics_of_an_empty_partition_are_harmless() -> None:
    assert bm25.idf(0, 0) == 0.0 == bm25.idf(10, 0)
    assert bm25.idf(3, 5) == bm25.idf(3, 3) * math.log1p(0.5 / 5.5) / math.log1p(0.5 / 3.5)
    assert bm25.average_length(0, 0) == 0.0
    got = bm25.contributions(1.0, np.array([1], np.int32), np.array([9], np.int32), 0.0)
    assert got[0] == pytest.approx(1 / (1 + bm25.K1))


def test_a_document_scores_the_same_wherever_its_postings_lie() -> None:
    rng = np.random.default_rng(7)
    tfs = rng.integers(1, 9, 1001).astype(np.int32)
    lengths = rng.integers(9, 400, 1001).astype(np.int32)
    whole = bm25.contributions(1.7, tfs, lengths, 83.3)
    for cut in (1, 3, 500, 997):
        parts = [
            bm25.contributions(1.7, tfs[at].astype(kind), lengths[at], 83.3)
            for at, kind in ((slice(None, cut), np.int32), (slice(cut, None), np.uint16))
        ]
        assert np.array_equal(np.concatenate(parts), whole)
