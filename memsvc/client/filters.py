"""Filters as JSON, as domain objects and as messages.

The JSON form is the one of the HTTP interface: an object whose keys are fields and whose
values are a plain value (equals) or an object of ``in``, ``gt``, ``gte``, ``lt``, ``lte`` or
``exists``; several keys mean "and"; ``and``, ``or`` and ``not`` combine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from memsvc.domain import filters as f
from memsvc.v1 import types_pb2 as pb

_BOUNDS: Final = ("gt", "gte", "lt", "lte")
_TESTS: Final = (*_BOUNDS, "in", "exists")


def parse_filter(document: object, path: str = "filters") -> f.Filter:
    """The JSON form as a filter tree; ValueError names the place and what is expected.

    Whether fields exist and values fit is left to the service, which knows.
    """
    if not isinstance(document, Mapping) or not document:
        raise ValueError(f"{path}: expected an object of fields, not {document!r}")
    parts = tuple(_entry(str(key), value, f"{path}.{key}") for key, value in document.items())
    return parts[0] if len(parts) == 1 else f.And(parts)


def _entry(key: str, value: object, path: str) -> f.Filter:
    if key == "not":
        return f.Not(parse_filter(value, path))
    if key in ("and", "or"):
        if not isinstance(value, list) or not value:
            raise ValueError(f"{path}: expected a list of filters, not {value!r}")
        inner = tuple(parse_filter(one, f"{path}[{i}]") for i, one in enumerate(value))
        return f.And(inner) if key == "and" else f.Or(inner)
    return f.Condition(key, _test(value, path))


def _test(value: object, path: str) -> f.Test:
    if not isinstance(value, Mapping):
        return f.Equals(_value(value, path))
    keys = set(value)
    if keys == {"in"}:
        listed = value["in"]
        if not isinstance(listed, list) or not listed:
            raise ValueError(f"{path}.in: expected a list of values, not {listed!r}")
        return f.In(tuple(_value(one, f"{path}.in[{i}]") for i, one in enumerate(listed)))
    if keys == {"exists"}:
        if not isinstance(value["exists"], bool):
            raise ValueError(f"{path}.exists: expected true or false")
        return f.Exists(value["exists"])
    if keys and keys <= set(_BOUNDS):
        return f.Range(**{str(name): _scalar(value[name], f"{path}.{name}") for name in value})
    raise ValueError(
        f"{path}: expected a value or an object of {', '.join(_TESTS)}, "
        f"not {', '.join(map(str, keys)) or 'an empty object'}"
    )


def _scalar(value: object, path: str) -> f.Scalar:
    if isinstance(value, str | int | float | bool):
        return value
    raise ValueError(f"{path}: expected a text, a number or true/false, not {value!r}")


def _value(value: object, path: str) -> f.FilterValue:
    if isinstance(value, list):
        if all(isinstance(one, str) for one in value):
            return tuple(value)
        raise ValueError(f"{path}: a list to compare with holds texts only")
    return _scalar(value, path)


def value_message(value: object) -> pb.Value:
    """A typed value: text, whole number, number, truth value or list of texts."""
    if isinstance(value, bool):
        return pb.Value(bool_value=value)
    if isinstance(value, str):
        return pb.Value(string_value=value)
    if isinstance(value, int):
        return pb.Value(int_value=value)
    if isinstance(value, float):
        return pb.Value(double_value=value)
    if isinstance(value, list | tuple):
        return pb.Value(list_value=pb.StringList(values=list(value)))
    raise ValueError(f"expected a text, number, truth value or list of texts, not {value!r}")


def filter_message(node: f.Filter) -> pb.Filter:
    """A filter tree as a message."""
    if isinstance(node, f.Condition):
        return pb.Filter(condition=_condition_message(node))
    if isinstance(node, f.Not):
        return pb.Filter(negate=filter_message(node.filter))
    inner = pb.FilterList(filters=[filter_message(one) for one in node.filters])
    return pb.Filter(all_of=inner) if isinstance(node, f.And) else pb.Filter(any_of=inner)


def _condition_message(node: f.Condition) -> pb.Condition:
    test = node.test
    if isinstance(test, f.Equals):
        return pb.Condition(field=node.field, equals=value_message(test.value))
    if isinstance(test, f.In):
        values = pb.ValueList(values=[value_message(one) for one in test.values])
        return pb.Condition(field=node.field, in_values=values)
    if isinstance(test, f.Exists):
        return pb.Condition(field=node.field, exists=test.wanted)
    bounds = pb.Range()
    for name in _BOUNDS:
        bound = getattr(test, name)
        if bound is not None:
            getattr(bounds, name).CopyFrom(value_message(bound))
    return pb.Condition(field=node.field, range=bounds)
