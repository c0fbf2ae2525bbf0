"""The keyword index against a plain dictionary."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsvc.segments.errors import BadFile
from memsvc.segments.files import map_file
from memsvc.segments.postings import Postings, open_postings, write_postings
from memsvc.text.index import invert

TERMS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3)


def opened(root: Path, docs: list[list[str]]) -> Postings:
    path = root / "p"
    write_postings(path, "seg", invert(docs), np.arange(len(docs)) + 5, "rules/1")
    return open_postings(map_file(path), "seg", len(docs))


@settings(deadline=None)
@given(st.lists(st.lists(TERMS, max_size=8), max_size=12), TERMS)
def test_lookup_gives_every_document_with_the_term(docs: list[list[str]], other: str) -> None:
    with TemporaryDirectory() as folder:
        postings = opened(Path(folder), docs)
        known = {term for doc in docs for term in doc}
        for term in known | {other, "", "zz\U0010ffff"}:
            found, tfs = postings.lookup(term)
            expected = {i: Counter(doc)[term] for i, doc in enumerate(docs) if term in doc}
            assert dict(zip(found.tolist(), tfs.tolist(), strict=True)) == expected
            assert found.tolist() == sorted(expected)
        assert postings.lengths.tolist() == [len(doc) for doc in docs]
        assert postings.total == sum(map(len, docs))
        assert postings.terms == len(known)


def test_frequencies_saturate_instead_of_wrapping_around(tmp_path: Path) -> None:
    postings = opened(tmp_path, [["a"] * 70_000, ["a"] * 300, ["b"]])
    assert postings.lookup("a")[1].tolist() == [65_535, 300]


def test_small_frequencies_take_one_byte(tmp_path: Path) -> None:
    assert opened(tmp_path, [["a"] * 255]).lookup("a")[1].dtype == np.uint8


def test_the_rules_that_made_the_terms_are_told(tmp_path: Path) -> None:
    postings = opened(tmp_path, [["a"]])
    assert postings.analyzer == "rules/1"
    assert postings.row_numbers.tolist() == [5]


def test_postings_for_another_number_of_rows_are_refused(tmp_path: Path) -> None:
    opened(tmp_path, [["a"]])
    with pytest.raises(BadFile, match="is for 1 rows, expected 2"):
        open_postings(map_file(tmp_path / "p"), "seg", 2)
