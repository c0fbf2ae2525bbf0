"""Filters of LangGraph: what they mean, and what of them the service can check.

What the service is asked lets at least everything through that matches; what it returns is
checked once more, on the value itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from langgraph.store.base import MatchCondition

from memsvc.domain.filters import ATTRIBUTE_NAME
from memsvc.domain.limits import MAX_ATTRIBUTE_NAME_BYTES, MAX_ATTRIBUTE_VALUE_BYTES

PREFIX: Final = "v."
"""What attributes that hold parts of the value begin with."""
MAX_PUSHED: Final = 20
"""Conditions that the service is asked to check; the rest is checked here."""
_RANGES: Final = {"$gt": "gt", "$gte": "gte", "$lt": "lt", "$lte": "lte"}
_OPERATORS: Final = frozenset({"$eq", "$ne", *_RANGES})
_INT64: Final = range(-(2**63), 2**63)

Scalar = str | int | float | bool


def check_sendable(what: str, text: str) -> None:
    """ValueError for a text that is none, which nothing stored can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"{what}: half of a character (a lone surrogate) in {text!r:.80}"
        ) from None


def check(wanted: Mapping[str, Any] | None) -> None:
    """ValueError for an operator that there is not, and for what is no text."""
    for name, condition in (wanted or {}).items():
        check_sendable("filter", str(name))
        for text in condition.values() if _is_operators(condition) else (condition,):
            if isinstance(text, str):
                check_sendable("filter", text)
        if _is_operators(condition):
            unknown = sorted(set(condition) - _OPERATORS)
            if unknown:
                known = ", ".join(sorted(_OPERATORS))
                raise ValueError(f"unsupported operator {unknown[0]!r}; there are {known}")
        elif isinstance(condition, Mapping):
            check(condition)


def matches(value: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether a value has all that a filter wants."""
    return all(_meets(value.get(key), condition) for key, condition in (wanted or {}).items())


def _meets(found: Any, condition: Any) -> bool:
    if _is_operators(condition):
        return all(_operator(found, name, operand) for name, operand in condition.items())
    if isinstance(condition, Mapping):
        return isinstance(found, Mapping) and matches(found, condition)
    return _same(found, condition)


def _operator(found: Any, name: str, operand: Any) -> bool:
    if name == "$eq":
        return _same(found, operand)
    if name == "$ne":
        return not _same(found, operand)
    numbers = _is_number(found) and _is_number(operand)
    if not numbers and not (isinstance(found, str) and isinstance(operand, str)):
        return False
    if name == "$gt":
        return bool(found > operand)
    if name == "$gte":
        return bool(found >= operand)
    if name == "$lt":
        return bool(found < operand)
    return bool(found <= operand)


def _same(one: Any, other: Any) -> bool:
    """Equality of JSON, where true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_operators(condition: Any) -> bool:
    return isinstance(condition, Mapping) and any(
        isinstance(name, str) and name.startswith("$") for name in condition
    )


# -- what the service can check ------------------------------------------------------------


def attribute_name(path: tuple[str, ...]) -> str:
    """The attribute that holds a part of the value; "" when it cannot have one."""
    name = PREFIX + ".".join(path)
    fits = len(name) <= MAX_ATTRIBUTE_NAME_BYTES and ATTRIBUTE_NAME.match(name)
    return name if fits and all(path) else ""


def fits(value: Scalar) -> bool:
    """Whether an attribute can hold it."""
    if isinstance(value, str):
        return len(value.encode(errors="replace")) <= MAX_ATTRIBUTE_VALUE_BYTES
    return isinstance(value, bool | float) or value in _INT64


def scalars(value: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Scalar]]:
    """The texts, numbers and truth values in a value and the objects in it, with the name of
    the attribute for each, or ""."""
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            yield from scalars(inner, (*path, str(key)))
        elif isinstance(inner, str | int | float):
            yield attribute_name((*path, str(key))), inner


def pushed(wanted: Mapping[str, Any] | None) -> list[dict[str, object]]:
    """What of a filter the service can check, in its JSON form; all of it must hold."""
    found = (one for one in _pushed(wanted or {}, ()) if one is not None)
    return list(itertools.islice(found, MAX_PUSHED))


def _pushed(wanted: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[dict[str, object] | None]:
    for key, condition in wanted.items():
        here = (*path, str(key))
        if _is_operators(condition):
            for name, operand in condition.items():
                yield _condition(here, name, operand)
        elif isinstance(condition, Mapping):
            yield from _pushed(condition, here)
        else:
            yield _condition(here, "$eq", condition)


def _condition(path: tuple[str, ...], name: str, operand: Any) -> dict[str, object] | None:
    attribute = attribute_name(path)
    if not attribute or not isinstance(operand, str | int | float) or not fits(operand):
        return None
    field = f"attributes.{attribute}"
    if name == "$eq":
        return {field: operand}
    if name == "$ne":
        return {"not": {field: operand}}
    return None if isinstance(operand, bool) else {field: {_RANGES[name]: operand}}


# -- namespaces ----------------------------------------------------------------------------


def namespace_matches(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    """Whether a namespace begins or ends as the condition says; "*" is any label."""
    path = tuple(condition.path)
    if len(namespace) < len(path):
        return False
    if condition.match_type == "prefix":
        part = namespace[: len(path)]
    elif condition.match_type == "suffix":
        part = namespace[len(namespace) - len(path) :]
    else:
        raise ValueError(f"match type: expected prefix or suffix, not {condition.match_type!r}")
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))
