"""Whole filters: never too few rows, and exact whenever it says so."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memsvc.domain.filters import (
    And,
    Condition,
    Equals,
    Exists,
    Filter,
    In,
    Not,
    Or,
    Range,
    matches,
    test_value,
)
from memsvc.segments.masks import evaluate, mask_mutable
from memsvc.segments.numbers import test_numbers

FIELDS = ("a", "b", "hidden", "secret")
leaves = st.builds(
    Condition,
    st.sampled_from(FIELDS),
    st.builds(Equals, st.integers(0, 2)) | st.builds(Exists, st.booleans()),
)
filters: st.SearchStrategy[Filter] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(And, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Or, st.lists(inner, max_size=3).map(tuple)),
        st.builds(Not, inner),
    ),
    max_leaves=8,
)
record = st.fixed_dictionaries({field: st.one_of(st.none(), st.integers(0, 2)) for field in FIELDS})


@settings(max_examples=400)
@given(filters, st.lists(record, max_size=10))
def test_unknown_fields_never_lose_a_row_and_exact_means_exact(
    node: Filter, rows: list[dict[str, Any]]
) -> None:
    def known(condition: Condition) -> np.ndarray | None:
        if condition.field in ("hidden", "secret"):
            return None
        return np.array([test_value(condition.test, row[condition.field]) for row in rows], bool)

    truth = [matches(node, row.get) for row in rows]
    mask, exact = evaluate(node, known, len(rows))
    assert mask.shape == (len(rows),) and mask.dtype == np.bool_
    assert all(found for found, wanted in zip(mask.tolist(), truth, strict=True) if wanted)
    if exact:
        assert mask.tolist() == truth


@given(filters, st.lists(record, max_size=10))
def test_with_every_field_known_the_answer_is_exact(
    node: Filter, rows: list[dict[str, Any]]
) -> None:
    def known(condition: Condition) -> np.ndarray:
        return np.array([test_value(condition.test, row[condition.field]) for row in rows], bool)

    mask, exact = evaluate(node, known, len(rows))
    assert exact
    assert mask.tolist() == [matches(node, row.get) for row in rows]


def test_what_is_ruled_out_by_known_fields_needs_no_look_at_records() -> None:
    node = And((Condition("a", Equals(1)), Condition("hidden", Equals(1))))
    mask, exact = evaluate(node, lambda c: np.zeros(3, bool) if c.field == "a" else None, 3)
    assert exact and not mask.any()


def test_no_filter_passes_everything() -> None:
    mask, exact = evaluate(None, lambda _: None, 3)
    assert exact and mask.tolist() == [True] * 3


bounds = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70),
    st.integers(-5, 5),
    st.integers(2**53 - 3, 2**53 + 3),
    st.floats(allow_nan=False),
    st.sampled_from([0.5, -0.5, 2.0, float(2**53), float(2**63), 1e400, "a", True]),
)
some = bounds.filter(lambda bound: bound is not None)
number_tests = st.one_of(
    st.builds(Range, bounds, bounds, bounds, bounds),
    st.builds(Equals, some),
    st.builds(In, st.lists(some, min_size=1, max_size=4).map(tuple)),
    st.builds(Exists, st.booleans()),
)


@settings(max_examples=400)
@given(
    number_tests,
    st.lists(
        st.integers(-(2**63), 2**63 - 1) | st.integers(2**53 - 3, 2**53 + 3) | st.integers(-5, 5)
    ),
    st.lists(
        st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.5, float(2**53)])
    ),
)
def test_arrays_of_numbers_compare_as_python_does_also_past_2_to_53(
    test: Any, integers: list[int], floats: list[float]
) -> None:
    found = test_numbers(np.array(integers, np.int64), test).tolist()
    assert found == [test_value(test, value) for value in integers]
    found = test_numbers(np.array(floats, np.float64), test).tolist()
    assert found == [test_value(test, value) for value in floats]


def test_changing_fields_are_masked_as_records_are_tested() -> None:
    status = np.array([1, 2, 7], np.uint8)
    ts = np.array([0, 10, 253402300799999], np.int64)
    importance = np.array([0.1, 0.5, 0.8], np.float32)
    for condition in (
        Condition("status", Equals(2)),
        Condition("status", In((1, 7))),
        Condition("ts", Range(gt=9.5)),
        Condition("importance", Range(gte=0.5)),
        Condition("importance", Equals(0.8)),
        Condition("importance", Range(lte=0.1)),
        Condition("ts", Exists(False)),
    ):
        mask = mask_mutable(condition, status, ts, importance)
        assert mask is not None
        expected = [
            test_value(
                condition.test,
                {"status": int(s), "ts": int(t), "importance": float(i)}[condition.field],
            )
            for s, t, i in zip(status, ts, importance, strict=True)
        ]
        assert mask.tolist() == expected
    assert mask_mutable(Condition("role", Equals("a")), status, ts, importance) is None
