"""Filter messages as domain filters."""

from __future__ import annotations

from typing import cast

from memsvc.domain import filters as f
from memsvc.domain import limits
from memsvc.domain.types import AttributeValue
from memsvc.rpc.checks import Found, known
from memsvc.v1 import types_pb2

MAX_DEPTH = 40
"""Deeper trees are not followed; the domain refuses them anyway, at a lower depth."""
MAX_NODES = 1_000
"""Larger trees are not followed further; the domain allows fewer conditions."""


def value(message: types_pb2.Value, path: str, found: Found) -> AttributeValue:
    """A typed value; a missing one is noted and stands as ""."""
    known(message, path, found)
    kind = message.WhichOneof("kind")
    if kind == "string_value":
        return message.string_value
    if kind == "int_value":
        return message.int_value
    if kind == "double_value":
        return message.double_value
    if kind == "bool_value":
        return message.bool_value
    if kind == "list_value":
        known(message.list_value, path, found)
        listed = message.list_value.values
        few = found.few(path, listed, limits.MAX_ATTRIBUTE_LIST, "strings")
        return tuple(listed) if few else ()
    found.add(path, "one of string_value, int_value, double_value, bool_value, list_value")
    return ""


def to_filter(message: types_pb2.Filter, path: str, found: Found) -> f.Filter | None:
    """The tree, or None when it cannot be expressed (which is then in ``found``)."""
    return _node(message, path, found, 1, [MAX_NODES])


def _node(
    message: types_pb2.Filter, path: str, found: Found, depth: int, left: list[int]
) -> f.Filter | None:
    if left[0] <= 0:
        return None
    left[0] -= 1
    if not left[0]:
        found.add("filters", f"at most {limits.MAX_FILTER_CONDITIONS} conditions")
        return None
    known(message, path, found)
    if depth > MAX_DEPTH:
        found.add(path[:200], "nested too deeply")
        return None
    node = message.WhichOneof("node")
    if node == "condition":
        return _condition(message.condition, path, found)
    if node == "negate":
        inner = _node(message.negate, f"{path}.negate", found, depth + 1, left)
        return None if inner is None else f.Not(inner)
    if node is None:
        found.add(path, "one of condition, all_of, any_of, negate")
        return None
    listed = message.all_of if node == "all_of" else message.any_of
    known(listed, f"{path}.{node}", found)
    if not found.few(f"{path}.{node}", listed.filters, limits.MAX_FILTER_CONDITIONS, "filters"):
        return None
    parts = [
        _node(part, f"{path}.{node}.filters[{i}]", found, depth + 1, left)
        for i, part in enumerate(listed.filters)
    ]
    inner_filters = tuple(part for part in parts if part is not None)
    return f.And(inner_filters) if node == "all_of" else f.Or(inner_filters)


def _condition(message: types_pb2.Condition, path: str, found: Found) -> f.Condition | None:
    known(message, path, found)
    where = f"{path}.{message.field}"[:200] if message.field else path
    kind = message.WhichOneof("test")
    test: f.Test
    if kind == "equals":
        test = f.Equals(value(message.equals, where, found))
    elif kind == "in_values":
        known(message.in_values, where, found)
        values = message.in_values.values
        if not found.few(where, values, limits.MAX_FILTER_VALUES, "values"):
            return None
        test = f.In(tuple(value(v, where, found) for v in values))
    elif kind == "range":
        test = _range(message.range, where, found)
    elif kind == "exists":
        test = f.Exists(message.exists)
    else:
        found.add(where, "one of equals, in_values, range, exists")
        return None
    return f.Condition(message.field, test)


def _range(message: types_pb2.Range, path: str, found: Found) -> f.Range:
    known(message, path, found)
    bounds = {
        name: value(getattr(message, name), f"{path}.{name}", found)
        for name in ("gt", "gte", "lt", "lte")
        if message.HasField(name)
    }
    # A list as a bound has no meaning; the domain says so with the field's name.
    return f.Range(**cast("dict[str, f.Scalar]", bounds))
