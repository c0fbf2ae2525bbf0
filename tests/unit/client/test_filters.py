"""The JSON form of filters, and its way to the wire and back."""

from __future__ import annotations

import pytest

from memsvc.client.filters import filter_message, parse_filter
from memsvc.domain.filters import And, Condition, Equals, Exists, In, Not, Or, Range
from memsvc.rpc.checks import Found
from memsvc.rpc.filters import to_filter

CASES = [
    ({"session": "s1"}, Condition("session", Equals("s1"))),
    (
        {"session": "s1", "importance": {"gte": 0.5}},
        And((Condition("session", Equals("s1")), Condition("importance", Range(gte=0.5)))),
    ),
    ({"topic": {"in": ["a", "b"]}}, Condition("topic", In(("a", "b")))),
    ({"ts": {"gt": 1, "lte": 5}}, Condition("ts", Range(gt=1, lte=5))),
    ({"attributes.city": {"exists": False}}, Condition("attributes.city", Exists(False))),
    ({"attributes.done": True}, Condition("attributes.done", Equals(True))),
    ({"attributes.tags": ["a", "b"]}, Condition("attributes.tags", Equals(("a", "b")))),
    ({"not": {"role": "user"}}, Not(Condition("role", Equals("user")))),
    (
        {"or": [{"seq": 1}, {"and": [{"seq": 2}, {"role": "x"}]}]},
        Or(
            (
                Condition("seq", Equals(1)),
                And((Condition("seq", Equals(2)), Condition("role", Equals("x")))),
            )
        ),
    ),
]


@pytest.mark.parametrize(("document", "tree"), CASES)
def test_a_filter_means_the_same_on_both_sides_of_the_wire(document: object, tree: object) -> None:
    parsed = parse_filter(document)
    assert parsed == tree
    found = Found()
    assert to_filter(filter_message(parsed), "filters", found) == tree
    found.raise_if_any()


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({}, "filters"),
        ([], "filters"),
        ({"ts": {"after": 5}}, "filters.ts"),
        ({"ts": {}}, "filters.ts"),
        ({"ts": {"in": []}}, "filters.ts.in"),
        ({"ts": {"gt": None}}, "filters.ts.gt"),
        ({"ts": {"exists": 1}}, "filters.ts.exists"),
        ({"ts": {"in": [1], "gt": 2}}, "filters.ts"),
        ({"or": {"a": 1}}, "filters.or"),
        ({"or": [{"a": [1]}]}, r"filters.or\[0\].a"),
        ({"not": 5}, "filters.not"),
    ],
)
def test_a_wrong_filter_names_the_place(document: object, place: str) -> None:
    with pytest.raises(ValueError, match=place):
        parse_filter(document)
