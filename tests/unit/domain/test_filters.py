"""Filters: what a test means on a value, and which trees are accepted."""

from __future__ import annotations

from typing import Any

import pytest

from memsvc.domain import filters as f
from memsvc.domain import limits
from memsvc.domain.errors import Violation

LIST = ("a", "b")
NO_BOUND: Any = ("a",)
"""A list, which the types refuse too."""


@pytest.mark.parametrize(
    ("test", "value", "passes"),
    [
        (f.Equals("a"), "a", True),
        (f.Equals("a"), "A", False),
        (f.Equals(""), "", True),
        (f.Equals(1), 1, True),
        (f.Equals(1), 1.0, True),
        (f.Equals(1.5), 1, False),
        (f.Equals(1), "1", False),
        (f.Equals(1), True, False),
        (f.Equals(True), 1, False),
        (f.Equals(True), True, True),
        (f.Equals(False), 0, False),
        (f.Equals(False), False, True),
        (f.Equals(2**53), 2**53 + 1, False),
        (f.Equals(float(2**53)), 2**53 + 1, False),
        (f.Equals("a"), LIST, True),
        (f.Equals("c"), LIST, False),
        (f.Equals(LIST), LIST, True),
        (f.Equals(("b", "a")), LIST, False),
        (f.Equals(()), (), True),
        (f.Equals("a"), (), False),
        (f.Equals("a"), None, False),
        (f.In(("a", "b")), "b", True),
        (f.In(("a", 1)), 1.0, True),
        (f.In((1, 0)), True, False),
        (f.In(("x", "b")), LIST, True),
        (f.In(("x",)), None, False),
        (f.Range(gt=1), 1, False),
        (f.Range(gt=1), 1.1, True),
        (f.Range(gte=1), 1, True),
        (f.Range(lt=1), 1, False),
        (f.Range(lte=1), 1, True),
        (f.Range(gte=1, lt=3), 2, True),
        (f.Range(gte=1, lt=3), 3, False),
        (f.Range(gte="a"), "b", True),
        (f.Range(gte="a"), 1, False),
        (f.Range(gte=0), "1", False),
        (f.Range(gte=0), True, False),
        (f.Range(gte="a"), LIST, False),
        (f.Range(gte=0, lt="x"), 1, False),
        (f.Range(gt=float(2**53)), 2**53 + 1, True),
        (f.Range(gte=0), None, False),
        (f.Range(lt="é"), "z", True),
        (f.Exists(True), "", True),
        (f.Exists(True), (), True),
        (f.Exists(True), False, True),
        (f.Exists(True), None, False),
        (f.Exists(False), None, True),
        (f.Exists(False), 0, False),
    ],
    ids=str,
)
def test_what_a_test_says_of_a_value(test: f.Test, value: Any, passes: bool) -> None:
    assert f.test_value(test, value) is passes


def _get(**fields: Any) -> f.FieldGetter:
    return fields.get


IS_FOOD = f.Condition("topic", f.Equals("food"))
HAS_ROLE = f.Condition("role", f.Exists(True))


def test_not_of_a_condition_on_a_missing_field_is_true() -> None:
    assert f.matches(f.Not(IS_FOOD), _get())
    assert not f.matches(IS_FOOD, _get())


def test_and_needs_all_or_needs_one() -> None:
    both, either = f.And((IS_FOOD, HAS_ROLE)), f.Or((IS_FOOD, HAS_ROLE))
    for topic in ("food", None):
        for role in ("user", None):
            get = _get(topic=topic, role=role)
            assert f.matches(both, get) is bool(topic and role)
            assert f.matches(either, get) is bool(topic or role)


def test_every_condition_of_a_tree_is_seen() -> None:
    tree = f.And((f.Not(IS_FOOD), f.Or((HAS_ROLE, f.Condition("status", f.Equals(2))))))
    assert [c.field for c in f.conditions(tree)] == ["topic", "role", "status"]
    assert f.mentions(tree, "status") and not f.mentions(tree, "ts")
    assert list(f.conditions(None)) == []
    assert f.named_statuses(tree) == {2}
    assert f.named_statuses(f.Condition("status", f.In((1, 3)))) == {1, 3}
    assert f.named_statuses(f.Condition("status", f.Exists(True))) == set()


def _normalised(node: f.Filter) -> tuple[f.Filter, list[Violation]]:
    found: list[Violation] = []
    return f.normalise(node, "filters", found), found


@pytest.mark.parametrize("name", ["archived", "ARCHIVED", "Archived"])
def test_status_names_become_numbers_whatever_their_case(name: str) -> None:
    node, found = _normalised(f.Not(f.Condition("status", f.In((name, "active")))))
    assert found == []
    assert node == f.Not(f.Condition("status", f.In((3, 1))))


def test_what_is_right_comes_back_as_it_was() -> None:
    tree = f.And(
        (
            f.Condition("ts", f.Range(gte=0, lt=9)),
            f.Condition("seq", f.In((1, 2.5))),
            f.Condition("attributes.a.b-c_9", f.Equals(("x",))),
            f.Condition("attributes.flag", f.Equals(True)),
            f.Condition("session", f.Exists(False)),
        )
    )
    assert _normalised(tree) == (tree, [])


@pytest.mark.parametrize(
    "node",
    [
        f.Condition("colour", f.Equals("red")),
        f.Condition("", f.Equals("red")),
        f.Condition("attributes.", f.Equals("red")),
        f.Condition("attributes.a b", f.Equals("red")),
        f.Condition("attributes." + "x" * 65, f.Equals("red")),
        f.Condition("topic", f.Equals(1)),
        f.Condition("topic", f.Equals(("a",))),
        f.Condition("ts", f.Equals("2024-01-01")),
        f.Condition("ts", f.Equals(True)),
        f.Condition("importance", f.Range(gte=float("nan"))),
        f.Condition("importance", f.Equals(float("inf"))),
        f.Condition("seq", f.Range()),
        f.Condition("seq", f.In(())),
        f.Condition("seq", f.In((1,) * (limits.MAX_FILTER_VALUES + 1))),
        f.Condition("attributes.n", f.Range(gte=True)),
        f.Condition("attributes.n", f.Range(gte=NO_BOUND)),
        f.Condition("attributes.n", f.Equals("x" * 1_025)),
        f.Condition("attributes.n", f.Equals("\ud800")),
        f.Condition("status", f.Equals("gone")),
        f.Condition("status", f.Equals(1)),
        f.Condition("status", f.Range(gte="active")),
        f.Condition("status", f.In(())),
        f.And(()),
        f.Or(()),
        f.Not(f.Or(())),
    ],
    ids=lambda n: str(n)[:60],
)
def test_what_is_wrong_is_told_with_its_field(node: f.Filter) -> None:
    _, found = _normalised(node)
    assert found
    assert all(v.field.startswith("filters") and v.description for v in found)


def test_trees_are_bounded_in_depth_and_number() -> None:
    deep: f.Filter = IS_FOOD
    for _ in range(limits.MAX_FILTER_DEPTH - 1):
        deep = f.Not(deep)
    assert _normalised(deep)[1] == []
    assert _normalised(f.Not(deep))[1] != []
    wide = f.Or((IS_FOOD,) * limits.MAX_FILTER_CONDITIONS)
    assert _normalised(wide)[1] == []
    assert _normalised(f.Or((wide, IS_FOOD)))[1] != []


@pytest.mark.parametrize(
    ("text", "most", "fits"),
    [("", 0, True), ("abc", 3, True), ("abcd", 3, False), ("é", 1, False), ("é", 2, True),
     ("北京", 5, False), ("北京", 6, True), ("\ud800", 9, False)],
)  # fmt: skip
def test_lengths_count_bytes_of_utf8(text: str, most: int, fits: bool) -> None:
    assert f.text_fits(text, most) is fits
