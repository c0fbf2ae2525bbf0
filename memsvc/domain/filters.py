"""Filters: a condition tree over the fields of a memory.

Two-valued logic: a condition on a missing field is false, so ``not`` of it is true. The
same ``test`` decides on a record, on a column's dictionary and in the reference model of
the tests.
"""

from __future__ import annotations

import math
import operator
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from memsvc.domain import limits
from memsvc.domain.errors import Violation
from memsvc.domain.labels import LABELS

Scalar = str | int | float | bool
FilterValue = Scalar | tuple[str, ...]

STATUS_NAMES = {
    name: number
    for number, name in enumerate(
        ("active", "review", "archived", "superseded", "rejected", "expired", "forgotten"), 1
    )
}
TEXT_FIELDS = frozenset({"session", *LABELS})
NUMBER_FIELDS = frozenset({"ts", "importance", "seq"})
MUTABLE_FIELDS = frozenset({"status", "ts", "importance"})
ATTRIBUTE_PREFIX = "attributes."
ATTRIBUTE_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}\Z")


@dataclass(frozen=True, slots=True)
class Equals:
    """The field has this value."""

    value: FilterValue


@dataclass(frozen=True, slots=True)
class In:
    """The field has one of these values."""

    values: tuple[FilterValue, ...]
    _known: frozenset[tuple[bool, FilterValue]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # A lookup: 64 conditions of 1,000 values each, compared one by one with each of
        # 1,000 records, took a minute.
        object.__setattr__(self, "_known", frozenset(map(_key, self.values)))

    def has(self, value: FilterValue) -> bool:
        """Whether a field's value equals one of them."""
        if isinstance(value, tuple) and any((False, member) in self._known for member in value):
            return True
        return _key(value) in self._known


def _key(value: FilterValue) -> tuple[bool, FilterValue]:
    # True == 1 in Python; a truth value and a number are different things here.
    return isinstance(value, bool), value


@dataclass(frozen=True, slots=True)
class Range:
    """The field lies within these bounds; None = open."""

    gt: Scalar | None = None
    gte: Scalar | None = None
    lt: Scalar | None = None
    lte: Scalar | None = None


@dataclass(frozen=True, slots=True)
class Exists:
    """The field is set, or is missing."""

    wanted: bool


Test = Equals | In | Range | Exists


@dataclass(frozen=True, slots=True)
class Condition:
    """One test of one field."""

    field: str
    test: Test


@dataclass(frozen=True, slots=True)
class And:
    """All of them."""

    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one of them."""

    filters: tuple[Filter, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """Not the inner one."""

    filter: Filter


Filter = Condition | And | Or | Not
FieldGetter = Callable[[str], FilterValue | None]


def _same(a: FilterValue, b: FilterValue) -> bool:
    # True == 1 in Python; a truth value and a number are different things here.
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool) and a == b
    return a == b


def _equals(value: FilterValue, wanted: FilterValue) -> bool:
    if isinstance(value, tuple) and isinstance(wanted, str):
        return wanted in value
    return _same(value, wanted)


def _comparable(a: FilterValue, b: Scalar) -> bool:
    if isinstance(a, bool | tuple) or isinstance(b, bool):
        return False
    return isinstance(a, str) == isinstance(b, str)


def test_value(test: Test, value: FilterValue | None) -> bool:
    """Whether a field's value (None = missing) passes a test."""
    if isinstance(test, Exists):
        return (value is not None) == test.wanted
    if value is None:
        return False
    if isinstance(test, Equals):
        return _equals(value, test.value)
    if isinstance(test, In):
        return test.has(value)
    for bound, passes in (
        (test.gt, operator.gt),
        (test.gte, operator.ge),
        (test.lt, operator.lt),
        (test.lte, operator.le),
    ):
        if bound is not None and not (_comparable(value, bound) and passes(value, bound)):
            return False
    return True


# Pytest would take the name for a test when it is imported by one. (Functions may have
# attributes; their type does not say so.)
test_value.__test__ = False  # type: ignore[attr-defined]


def matches(node: Filter, get: FieldGetter) -> bool:
    """Whether a record passes; ``get(field)`` gives its value, None when missing.

    ``status`` must be given as its number (see ``normalise``).
    """
    if isinstance(node, Condition):
        return test_value(node.test, get(node.field))
    if isinstance(node, And):
        return all(matches(inner, get) for inner in node.filters)
    if isinstance(node, Or):
        return any(matches(inner, get) for inner in node.filters)
    return not matches(node.filter, get)


def conditions(node: Filter | None) -> Iterator[Condition]:
    """Every condition of a tree."""
    if node is None:
        return
    if isinstance(node, Condition):
        yield node
    elif isinstance(node, Not):
        yield from conditions(node.filter)
    else:
        for inner in node.filters:
            yield from conditions(inner)


def mentions(node: Filter | None, field: str) -> bool:
    """Whether a tree tests a field."""
    return any(condition.field == field for condition in conditions(node))


def named_statuses(node: Filter | None) -> set[int]:
    """Status numbers a (normalised) tree asks for by name."""
    named: set[int] = set()
    for condition in conditions(node):
        if condition.field != "status":
            continue
        if isinstance(condition.test, Equals) and isinstance(condition.test.value, int):
            named.add(condition.test.value)
        elif isinstance(condition.test, In):
            named.update(v for v in condition.test.values if isinstance(v, int))
    return named


def normalise(node: Filter, path: str, found: list[Violation]) -> Filter:
    """Checks a tree and turns status names into numbers; what is wrong goes to ``found``.

    ``path`` is the name of the field that holds the tree, for the violations.
    """
    counter = [0]
    result = _normalise(node, path, found, 1, counter)
    if counter[0] > limits.MAX_FILTER_CONDITIONS:
        found.append(
            Violation(path, f"at most {limits.MAX_FILTER_CONDITIONS} conditions, got {counter[0]}")
        )
    return result


def _normalise(
    node: Filter, path: str, found: list[Violation], depth: int, counter: list[int]
) -> Filter:
    if depth > limits.MAX_FILTER_DEPTH:
        found.append(Violation(path, f"nested deeper than {limits.MAX_FILTER_DEPTH} levels"))
        return node
    if isinstance(node, Condition):
        counter[0] += 1
        return _condition(node, path, found)
    if isinstance(node, Not):
        return Not(_normalise(node.filter, path, found, depth + 1, counter))
    if not node.filters:
        found.append(Violation(path, "an empty list of filters selects nothing; leave it out"))
    inner = tuple(_normalise(n, path, found, depth + 1, counter) for n in node.filters)
    return And(inner) if isinstance(node, And) else Or(inner)


def _condition(node: Condition, path: str, found: list[Violation]) -> Condition:
    field, test = node.field, node.test
    where = f"{path}.{field}" if field else path
    if field == "status":
        return _status_condition(node, where, found)
    if field.startswith(ATTRIBUTE_PREFIX):
        if not ATTRIBUTE_NAME.match(field[len(ATTRIBUTE_PREFIX) :]):
            found.append(Violation(where[:200], "attribute names are 1 to 64 of [A-Za-z0-9_.-]"))
        kinds: tuple[type, ...] = (str, int, float, bool, tuple)
        expected = "a value"
    elif field in TEXT_FIELDS:
        kinds, expected = (str,), "a string"
    elif field in NUMBER_FIELDS:
        kinds = (int, float)
        expected = "UTC milliseconds as a number" if field == "ts" else "a number"
    else:
        known = [*sorted({"status", *TEXT_FIELDS, *NUMBER_FIELDS}), "attributes.NAME"]
        found.append(Violation(where[:200], f"unknown field; known are {', '.join(known)}"))
        return node
    if isinstance(test, Exists):
        return node
    if isinstance(test, In) and not 1 <= len(test.values) <= limits.MAX_FILTER_VALUES:
        found.append(Violation(where, f"1 to {limits.MAX_FILTER_VALUES} values"))
    if isinstance(test, Range) and test == Range():
        found.append(Violation(where, "a range needs at least one of gt, gte, lt, lte"))
    for value in _values(test):
        wrong_bool = isinstance(value, bool) and bool not in kinds
        if wrong_bool or not isinstance(value, kinds):
            found.append(Violation(where, f"compare with {expected}, not {_shown(value)}"))
        elif isinstance(value, float) and not math.isfinite(value):
            found.append(Violation(where, "compare with a finite number"))
        elif isinstance(test, Range) and isinstance(value, bool | tuple):
            found.append(Violation(where, "bounds are numbers or strings"))
        elif isinstance(value, str) and not text_fits(value, limits.MAX_ATTRIBUTE_VALUE_BYTES):
            found.append(
                Violation(where, f"valid UTF-8, at most {limits.MAX_ATTRIBUTE_VALUE_BYTES} bytes")
            )
    return Condition(field, _as_stored(test)) if field == "importance" else node


def _as_stored(test: Test) -> Test:
    """Importance is stored as float32: a filter for 0.8 must find what was written as 0.8."""
    if isinstance(test, Equals):
        return Equals(_f32(test.value))
    if isinstance(test, In):
        return In(tuple(_f32(value) for value in test.values))
    if isinstance(test, Range):
        bounds = (test.gt, test.gte, test.lt, test.lte)
        return Range(*(None if b is None else _f32(b) for b in bounds))
    return test


def _f32(value: Scalar | tuple[str, ...]) -> Scalar:
    if isinstance(value, int | float) and math.isfinite(value) and abs(value) < 1e30:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    return 0.0 if isinstance(value, tuple) else value


def _status_condition(node: Condition, where: str, found: list[Violation]) -> Condition:
    def number(value: FilterValue) -> FilterValue:
        if isinstance(value, str) and value.lower() in STATUS_NAMES:
            return STATUS_NAMES[value.lower()]
        found.append(Violation(where, f"one of {', '.join(STATUS_NAMES)}, not {_shown(value)}"))
        return 0

    test = node.test
    if isinstance(test, Equals):
        return Condition("status", Equals(number(test.value)))
    if isinstance(test, In):
        if not 1 <= len(test.values) <= limits.MAX_FILTER_VALUES:
            found.append(Violation(where, f"1 to {limits.MAX_FILTER_VALUES} values"))
            return node
        return Condition("status", In(tuple(number(v) for v in test.values)))
    if isinstance(test, Range):
        found.append(Violation(where, "a status has no order; use equals or in"))
    return node


def _values(test: Test) -> Iterator[FilterValue]:
    if isinstance(test, Equals):
        yield test.value
    elif isinstance(test, In):
        yield from test.values
    elif isinstance(test, Range):
        yield from (b for b in (test.gt, test.gte, test.lt, test.lte) if b is not None)


def _shown(value: object) -> str:
    return ascii(value) if len(ascii(value)) <= 60 else f"{ascii(value)[:57]}..."


def text_fits(text: str, most: int) -> bool:
    """Whether a text is valid UTF-8 (no lone surrogates) of at most ``most`` bytes."""
    if len(text) > most:
        return False
    if text.isascii():
        return True
    try:
        return len(text.encode()) <= most
    except UnicodeEncodeError:
        return False
