"""Column masks against testing every row by itself."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsvc.domain.filters import Condition, Equals, Exists, In, Range, Test, test_value
from memsvc.segments.column_file import open_columns, write_columns
from memsvc.segments.columns import ColumnBuilder, ColumnSet, Indexed
from memsvc.segments.dictionary import GrowingDictionary
from memsvc.segments.errors import BadFile
from memsvc.segments.files import map_file
from tests.unit.segments.helpers import head, state

BIG = 2**53
texts = st.sampled_from(["", "a", "ab", "b", "é", "用户", "\U0001f600", "zz"])
integers = st.sampled_from([-(2**63), -BIG - 1, -1, 0, 1, 2, BIG, BIG + 1, 2**63 - 1])
floats = st.sampled_from([-1e300, -1.5, -0.0, 0.0, 0.5, 1.0, 2.0, float(BIG), 9.3e18, 1e300])
lists = st.lists(texts, max_size=3).map(tuple)
scalars = st.one_of(texts, integers, floats, st.booleans())
values = st.one_of(scalars, lists)
tests: st.SearchStrategy[Test] = st.one_of(
    st.builds(Equals, values),
    st.builds(In, st.lists(values, min_size=1, max_size=4).map(tuple)),
    st.builds(
        Range,
        *(st.one_of(st.none(), st.one_of(texts, integers, floats)) for _ in range(4)),
    ),
    st.builds(Exists, st.booleans()),
)


def builder_of(attribute_values: list[Any]) -> ColumnBuilder:
    builder = ColumnBuilder(Indexed(("x",), 1))
    for i, value in enumerate(attribute_values):
        given = {} if value is None else {"x": value}
        builder.append(i + 1, state(i), head(attributes=given))
    return builder


def sealed(root: Path, builder: ColumnBuilder) -> ColumnSet:
    path = root / "c"
    path.unlink(missing_ok=True)
    write_columns(path, "seg", builder)
    return open_columns(map_file(path), "seg", len(builder))


@settings(deadline=None, max_examples=300)
@given(st.lists(st.one_of(st.none(), values), max_size=15), st.lists(tests, max_size=4))
def test_masks_agree_with_testing_each_value(stored: list[Any], asked: list[Test]) -> None:
    builder = builder_of(stored)
    with TemporaryDirectory() as folder:
        for columns in (builder.snapshot(), sealed(Path(folder), builder)):
            for test in asked:
                expected = [test_value(test, value) for value in stored]
                for _ in range(2):  # the second from the cache
                    mask = columns.mask(Condition("attributes.x", test))
                    assert mask is not None
                    assert mask.tolist() == expected, (test, stored)


@pytest.mark.parametrize("from_file", [False, True])
def test_true_and_one_are_told_apart_by_the_cache(tmp_path: Path, from_file: bool) -> None:
    builder = builder_of([True, 1, 1.0, "1"])
    columns = sealed(tmp_path, builder) if from_file else builder.snapshot()
    for test, expected in (
        (Equals(True), [True, False, False, False]),
        (Equals(1), [False, True, True, False]),
        (In((True,)), [True, False, False, False]),
        (In((1,)), [False, True, True, False]),
    ):
        mask = columns.mask(Condition("attributes.x", test))
        assert mask is not None and mask.tolist() == expected


@pytest.mark.parametrize("from_file", [False, True])
def test_every_immutable_field_has_a_column(tmp_path: Path, from_file: bool) -> None:
    builder = ColumnBuilder(Indexed(("city",), 1))
    fields = ("role", "source", "topic", "category", "memory_type", "topic_key")
    builder.append(4, state(0), head(session="s", seq=0, **{f: f"a {f}" for f in fields}))
    builder.append(9, state(1, importance=0.25, status=3), head(attributes={"city": "Köln"}))
    columns = sealed(tmp_path, builder) if from_file else builder.snapshot()

    def ask(field: str, test: Test) -> list[bool]:
        mask = columns.mask(Condition(field, test))
        assert mask is not None
        return mask.tolist()

    for field in fields:
        assert ask(field, Equals(f"a {field}")) == [True, False]
        assert ask(field, Exists(False)) == [False, True]
    assert ask("session", Equals("s")) == [True, False]
    assert ask("seq", Equals(0)) == [True, False]
    assert ask("seq", Exists(True)) == [True, False]
    assert ask("attributes.city", Equals("Köln")) == [False, True]
    assert columns.rows.tolist() == [4, 9]
    assert columns.ids[1].tobytes() == state(1).id
    assert columns.state["importance"].tolist() == [0.5, 0.25]
    assert columns.state["status"].tolist() == [1, 3]
    assert columns.state[0].tobytes() == state(0).pack()
    assert columns.attributes == {"city"}


def test_fields_without_a_column_are_unknown_and_not_false() -> None:
    builder = builder_of(["a"])
    builder.append(2, state(1), head(attributes={"y": 1}))
    columns = builder.snapshot()
    assert columns.mask(Condition("attributes.y", Exists(False))) is None
    for field in ("status", "ts", "importance"):
        assert columns.mask(Condition(field, Exists(True))) is None


def test_an_indexed_attribute_that_no_row_has_is_known_to_be_missing(tmp_path: Path) -> None:
    columns = sealed(tmp_path, builder_of([None, None]))
    mask = columns.mask(Condition("attributes.x", Exists(False)))
    assert mask is not None and mask.tolist() == [True, True]


@pytest.mark.parametrize("from_file", [False, True])
def test_attributes_get_columns_as_they_appear(tmp_path: Path, from_file: bool) -> None:
    builder = ColumnBuilder(Indexed(("x",), 2))
    for i, attributes in enumerate(({}, {"y": 1}, {"x": "a", "y": 2})):
        builder.append(i + 1, state(i), head(attributes=attributes))
    early = builder.snapshot()
    columns = sealed(tmp_path, builder) if from_file else early
    for name, expected in (
        ("x", [False, False, True]),
        ("y", [False, True, True]),
        ("never seen", [False, False, False]),
    ):
        mask = columns.mask(Condition(f"attributes.{name}", Exists(True)))
        assert mask is not None and mask.tolist() == expected
    builder.append(9, state(3), head(attributes={"one too many": 1, "x": "b"}))
    later = sealed(tmp_path, builder) if from_file else builder.snapshot()
    assert later.attributes == {"x", "y"}
    assert later.mask(Condition("attributes.one too many", Exists(True))) is None
    assert later.mask(Condition("attributes.never seen", Exists(True))) is None
    assert early.mask(Condition("attributes.never seen", Exists(True))) is not None


def test_a_snapshot_does_not_see_rows_that_come_later() -> None:
    builder = builder_of(["a", "b"])
    early = builder.snapshot()
    for i in range(100):
        builder.append(10 + i, state(i), head(attributes={"x": f"new {i}"}))
    assert early.count == 2
    assert early.rows.tolist() == [1, 2]
    assert builder.snapshot(3).count == 3
    for test, expected in ((Exists(True), [True, True]), (Range(gte="b"), [False, True])):
        mask = early.mask(Condition("attributes.x", test))
        assert mask is not None and mask.tolist() == expected


def test_snapshots_may_be_asked_while_rows_and_attributes_are_added() -> None:
    builder = ColumnBuilder(Indexed(("x",), 1_000))
    errors: list[BaseException] = []
    done = threading.Event()

    def ask() -> None:
        try:
            while not done.is_set():
                snapshot = builder.snapshot()
                mask = snapshot.mask(Condition("seq", Range(gte=0)))
                texts = snapshot.mask(Condition("session", Range(gte="")))
                exact = snapshot.mask(Condition("attributes.x", Equals(3)))
                assert mask is not None and texts is not None and exact is not None
                assert mask.all() and texts.all() and exact.sum() == (snapshot.count > 3)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(3000):
        attributes = {"x": i, f"a{i // 4}": 1}
        builder.append(i + 1, state(i), head(session=f"s{i}", seq=i, attributes=attributes))
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []


def test_texts_may_be_asked_while_some_are_added_and_garbage_is_collected() -> None:
    class Cycle:
        """Garbage whose collection lets other threads run."""

        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            time.sleep(0)

    dictionary = GrowingDictionary()
    errors: list[BaseException] = []
    done = threading.Event()

    def ask() -> None:
        try:
            while not done.is_set():
                Cycle()
                size = dictionary.size
                assert dictionary.passing(Range(gte=""))[:size].all()
        except BaseException as error:
            errors.append(error)

    before = gc.get_threshold()
    gc.set_threshold(50)
    try:
        thread = threading.Thread(target=ask)
        thread.start()
        for i in range(3000):
            dictionary.code(f"s{i}")
            if i % 20 == 0:
                time.sleep(0)
        done.set()
        thread.join()
    finally:
        gc.set_threshold(*before)
    assert errors == []


def test_cached_masks_cannot_be_spoilt_and_are_bounded(tmp_path: Path) -> None:
    columns = sealed(tmp_path, builder_of(list(range(50))))
    mask = columns.mask(Condition("attributes.x", Equals(7)))
    assert mask is not None
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = True
    assert columns.mask(Condition("attributes.x", Equals(7))) is mask
    for i in range(50):
        columns.mask(Condition("attributes.x", Equals(i)))
    assert len(columns._cache) <= 8


def test_columns_for_another_number_of_rows_are_refused(tmp_path: Path) -> None:
    sealed(tmp_path, builder_of(["a"]))
    with pytest.raises(BadFile, match="has 1 rows, expected 2"):
        open_columns(map_file(tmp_path / "c"), "seg", 2)


def test_a_column_without_rows_answers(tmp_path: Path) -> None:
    columns = sealed(tmp_path, ColumnBuilder(Indexed(("x",), 1)))
    mask = columns.mask(Condition("attributes.x", Equals("a")))
    assert mask is not None and np.array_equal(mask, np.zeros(0, bool))
