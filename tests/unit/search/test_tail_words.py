"""Words of the tail, which are shared by what is left of it when its first rows are sealed."""

from __future__ import annotations

import random
import threading
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsvc.domain.types import NO_METADATA
from memsvc.segments.columns import Indexed
from memsvc.service.search import parts
from memsvc.service.search.parts import TailFacets
from memsvc.store import heads, keys
from memsvc.store.snapshot import Snapshot
from memsvc.text.index import TailIndex
from tests.switching import switching_every

VOCABULARY = ("alpha", "bravo", "delta", "tango")


class Texts:
    """Stands for the records of a partition: texts by row, and how many were read."""

    def __init__(self, words: list[list[str] | None]) -> None:
        self._words = words
        self.read = 0

    def raw_texts(self, _partition: int, rows: list[int]) -> list[bytes | None]:
        self.read += len(rows)
        return [self._packed(self._words[row]) for row in rows]

    @staticmethod
    def _packed(words: list[str] | None) -> bytes | None:
        if words is None:
            return None
        head = heads.build_head(" ".join(words), "", NO_METADATA)
        return keys.pack_text(head, "", "", bytes(16))

    @property
    def snapshot(self) -> Snapshot:
        return cast(Snapshot, self)


def expected(words: list[list[str] | None], low: int, high: int, term: str) -> list[list[int]]:
    index = TailIndex()
    for found in words[low:high]:
        index.append(found or ())
    return [column.tolist() for column in index.postings(term, high - low)]


@settings(max_examples=300)
@given(st.data())
def test_words_shared_after_sealing_are_those_that_would_be_read_anew(data: Any) -> None:
    words = data.draw(
        st.lists(
            st.one_of(st.none(), st.lists(st.sampled_from(VOCABULARY), max_size=4)), max_size=24
        )
    )
    texts = Texts(words)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parts, "BLOCK_ROWS", 3)
        # Tails of older views go on being searched, and filled, beside that of the newest.
        tails = [(0, TailFacets(1, Indexed(), 0))]
        for _ in range(data.draw(st.integers(1, 8))):
            low, facets = data.draw(st.sampled_from(tails))
            high = data.draw(st.integers(low, len(words)))
            rows = np.arange(low, high)
            lengths = facets.lengths(rows, texts.snapshot)
            assert lengths.tolist() == [len(found or ()) for found in words[low:high]]
            for term in VOCABULARY:
                found = [column.tolist() for column in facets.postings(term, high - low)]
                assert found == expected(words, low, high, term)
            if data.draw(st.booleans()):
                newest, last = tails[-1]
                start = data.draw(st.integers(newest, len(words)))
                tails.append((start, last.behind(start, start - newest)))


def test_nothing_is_read_again_when_the_first_rows_are_sealed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parts, "BLOCK_ROWS", 4)
    texts = Texts([["alpha"]] * 20)
    facets = TailFacets(1, Indexed(), 0)
    facets.lengths(np.arange(18), texts.snapshot)
    left = facets.behind(10, 10)
    assert left.lengths(np.arange(10, 20), texts.snapshot).tolist() == [1] * 10
    assert texts.read == 20
    assert left.nbytes < facets.nbytes


def test_sealing_does_not_wait_for_words_that_are_being_read() -> None:
    """It would hold up every query of the agent, also those without words."""
    reading, let_go = threading.Event(), threading.Event()
    texts = Texts([["alpha"]] * 20)
    facets = TailFacets(1, Indexed(), 0)
    facets.lengths(np.arange(8), texts.snapshot)
    packed = texts._packed

    def slow(words: list[str] | None) -> bytes | None:
        reading.set()
        assert let_go.wait(30)
        return packed(words)

    texts._packed = slow  # type: ignore[method-assign]
    filler = threading.Thread(target=facets.lengths, args=(np.arange(20), texts.snapshot))
    filler.start()
    left: list[TailFacets] = []
    sealer = threading.Thread(target=lambda: left.append(facets.behind(5, 5)))
    try:
        assert reading.wait(30)
        sealer.start()
        sealer.join(30)
        assert left, "it waited for the reading of words"
    finally:
        let_go.set()
        filler.join()
        sealer.join()
    assert left[0].lengths(np.arange(5, 20), texts.snapshot).tolist() == [1] * 15
    assert texts.read == 20


def test_tails_that_share_words_are_filled_by_threads_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Queries of older views and of the newest one, while the first rows are sealed again and
    again: each sees its own rows."""
    monkeypatch.setattr(parts, "BLOCK_ROWS", 5)
    rng = random.Random(7)
    words: list[list[str] | None] = [
        rng.choices(VOCABULARY, k=rng.randrange(4)) if rng.random() < 0.9 else None
        for _ in range(400)
    ]
    texts = Texts(words)
    tails = [(0, TailFacets(1, Indexed(), 0))]
    failures: list[str] = []
    done = threading.Event()

    def ask(seed: int) -> None:
        mine = random.Random(seed)
        try:
            while not done.is_set():
                low, facets = mine.choice(tails[-3:])
                high = mine.randint(low, min(len(words), low + 60))
                term = mine.choice(VOCABULARY)
                lengths = facets.lengths(np.arange(low, high), texts.snapshot).tolist()
                assert lengths == [len(found or ()) for found in words[low:high]]
                found = [column.tolist() for column in facets.postings(term, high - low)]
                assert found == expected(words, low, high, term)
        except BaseException as error:
            failures.append(repr(error)[:500])
            raise

    with switching_every(1e-5):
        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(3)]
        try:
            for thread in threads:
                thread.start()
            while tails[-1][0] < len(words) - 60 and not failures:
                start, newest = tails[-1]
                newest.lengths(np.arange(start, start + 30), texts.snapshot)
                more = rng.randrange(8)
                tails.append((start + more, newest.behind(start + more, more)))
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert not failures
