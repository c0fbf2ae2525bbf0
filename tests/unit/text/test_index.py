"""The tail index and batch inversion against a naive model, alone and with a thread appending."""

from __future__ import annotations

import threading
from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memsvc.text.index import TailIndex, invert

DOCUMENTS = st.lists(st.lists(st.sampled_from(["a", "b", "é", "中", "中国", "𠮷"]), max_size=9))


def model(docs: list[list[str]], term: str) -> list[tuple[int, int]]:
    return [(i, Counter(doc)[term]) for i, doc in enumerate(docs) if term in doc]


@given(DOCUMENTS, st.integers(-1, 12))
def test_tail_shows_exactly_the_documents_of_a_snapshot(docs: list[list[str]], n: int) -> None:
    index = TailIndex()
    assert [index.append(doc) for doc in docs] == list(range(len(docs)))
    seen = docs[: max(n, 0)]
    for term in {term for doc in docs for term in doc} | {"absent"}:
        found, tfs = index.postings(term, n)
        assert found.dtype == tfs.dtype == np.int32
        assert list(zip(found.tolist(), tfs.tolist(), strict=True)) == model(seen, term)
    assert index.lengths(n).tolist() == [len(doc) for doc in seen]
    assert index.lengths(n).dtype == np.int32
    assert len(index) == len(docs)


@given(DOCUMENTS)
def test_inversion_holds_every_posting_in_order(docs: list[list[str]]) -> None:
    inverted = invert(iter(docs))
    assert inverted.terms == sorted({term for doc in docs for term in doc})
    encoded = [term.encode() for term in inverted.terms]
    assert encoded == sorted(encoded)
    assert inverted.lengths.tolist() == [len(doc) for doc in docs]
    assert inverted.offsets.shape == (len(inverted.terms) + 1,)
    assert inverted.offsets[-1] == len(inverted.docs) == len(inverted.tfs)
    for i, term in enumerate(inverted.terms):
        at = slice(inverted.offsets[i], inverted.offsets[i + 1])
        pairs = zip(inverted.docs[at].tolist(), inverted.tfs[at].tolist(), strict=True)
        assert list(pairs) == model(docs, term)


def test_reading_is_safe_while_another_thread_appends() -> None:
    index = TailIndex()
    total = 20_000
    failures: list[str] = []

    def write() -> None:
        for i in range(total):
            index.append(["all", "all", f"only{i}", "even" if i % 2 == 0 else "odd"])

    def read() -> None:
        n = 0
        while n < total:
            n = len(index)
            docs, tfs = index.postings("all", n)
            even, _ = index.postings("even", n)
            if not (np.array_equal(docs, np.arange(n)) and bool((tfs == 2).all())):
                failures.append(f"all: {len(docs)} of {n}")
            if not np.array_equal(even, np.arange(0, n, 2)):
                failures.append(f"even: {len(even)} of {n}")
            if len(index.lengths(n)) != n:
                failures.append(f"lengths of {n}")

    threads = [threading.Thread(target=work) for work in (write, read, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_arrays_that_were_read_do_not_change() -> None:
    index = TailIndex()
    index.append(["x"])
    docs, _ = index.postings("x", 9)
    index.append(["x"])
    assert docs.tolist() == [0]


def test_memory_is_accounted_for() -> None:
    index = TailIndex()
    sizes = [index.nbytes]
    for i in range(100):
        index.append(["common", f"rare{i}"])
        sizes.append(index.nbytes)
    assert sizes == sorted(sizes) and sizes[0] == 0
    assert 100 * 200 < sizes[-1] < 100 * 400
