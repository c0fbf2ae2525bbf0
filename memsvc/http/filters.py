"""Filters in JSON: an object whose keys are fields, or and / or / not."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sized
from typing import Any, Final, cast

from pydantic_core import PydanticCustomError

from memsvc.domain import filters as f
from memsvc.domain import limits
from memsvc.domain.errors import Violation
from memsvc.http.fields import VALUE_SCHEMA, attribute, scalar_problem

FIELDS: Final = ("status", *sorted(f.TEXT_FIELDS), *sorted(f.NUMBER_FIELDS))
BOUNDS: Final = ("gt", "gte", "lt", "lte")
TESTS: Final = ("in", "exists", *BOUNDS)
COMBINERS: Final = ("and", "or", "not")
MAX_DEPTH: Final = 40
"""Deeper trees are not followed; the domain refuses them anyway, at a lower depth."""
MAX_NODES: Final = 1_000
"""Larger trees are not followed further; the domain allows fewer conditions."""

_TIME_TEXT: Final = "compare with UTC milliseconds as an integer; dates as text are refused"


def to_filter(value: object, path: str, found: list[Violation]) -> f.Filter | None:
    """The tree, or None when it is empty or wrong (which is then in ``found``)."""
    return _node(value, path, found, 1, [MAX_NODES])


def _node(
    value: object, path: str, found: list[Violation], depth: int, left: list[int]
) -> f.Filter | None:
    if left[0] <= 0:
        return None
    left[0] -= 1
    if not left[0]:
        found.append(Violation("filters", f"at most {limits.MAX_FILTER_CONDITIONS} conditions"))
        return None
    if not isinstance(value, Mapping):
        found.append(Violation(path, "must be an object of fields and their values"))
        return None
    if depth > MAX_DEPTH:
        found.append(Violation(path[:200], "nested too deeply"))
        return None
    if not _few(value, limits.MAX_FILTER_CONDITIONS, path, found):
        return None
    parts: list[f.Filter] = []
    for key, inner in value.items():
        where = f"{path}.{str(key)[:80]}"
        if key in ("and", "or"):
            part = _combined(key, inner, where, found, depth, left)
        elif key == "not":
            negated = _node(inner, where, found, depth + 1, left)
            if negated is None and isinstance(inner, Mapping) and not inner:
                found.append(Violation(where, "must not be empty"))
            part = None if negated is None else f.Not(negated)
        elif key in FIELDS or str(key).startswith(f.ATTRIBUTE_PREFIX):
            part = _condition(key, inner, where, found)
        else:
            found.append(Violation(where, _unknown(str(key), (*FIELDS, *COMBINERS))))
            continue
        if part is not None:
            parts.append(part)
    if len(parts) == 1:
        return parts[0]
    return f.And(tuple(parts)) if parts else None


def _few(value: Sized, most: int, path: str, found: list[Violation]) -> bool:
    # A body of 16 MB holds millions of them, and looking at each takes a minute.
    if len(value) <= most:
        return True
    found.append(Violation(path[:200], f"at most {most}, got {len(value)}"))
    return False


def _combined(
    key: str, value: object, path: str, found: list[Violation], depth: int, left: list[int]
) -> f.Filter | None:
    if not isinstance(value, list) or not value:
        found.append(Violation(path, "must be a list of at least one filter"))
        return None
    if not _few(value, limits.MAX_FILTER_CONDITIONS, path, found):
        return None
    parts: list[f.Filter] = []
    for index, inner in enumerate(value):
        part = _node(inner, f"{path}[{index}]", found, depth + 1, left)
        if part is not None:
            parts.append(part)
        elif isinstance(inner, Mapping) and not inner:
            found.append(Violation(f"{path}[{index}]", "must not be empty"))
    return f.And(tuple(parts)) if key == "and" else f.Or(tuple(parts))


def _condition(field: str, value: object, path: str, found: list[Violation]) -> f.Condition | None:
    test: f.Test | None
    if not isinstance(value, Mapping):
        plain = _value(field, value, path, found)
        test = None if plain is None else f.Equals(plain)
    else:
        test = _test(field, value, path, found)
    return None if test is None else f.Condition(field, test)


def _test(
    field: str, value: Mapping[str, object], path: str, found: list[Violation]
) -> f.Test | None:
    if not _few(value, limits.MAX_FILTER_CONDITIONS, path, found):
        return None
    unknown = [key for key in value if key not in TESTS]
    for key in unknown:
        found.append(Violation(f"{path}.{str(key)[:80]}", _unknown(str(key), TESTS)))
    if unknown:
        return None
    if "in" in value or "exists" in value:
        if len(value) > 1:
            found.append(Violation(path, "in and exists stand alone; combine tests with and"))
            return None
        return _choice(field, value, path, found)
    if not value:
        found.append(Violation(path, f"needs one of {', '.join(TESTS)}, or a plain value"))
        return None
    bounds = {key: _value(field, bound, f"{path}.{key}", found) for key, bound in value.items()}
    if any(bound is None for bound in bounds.values()):
        return None
    # A list or truth value as a bound is refused by the domain with the field's name.
    return f.Range(**cast("dict[str, f.Scalar]", bounds))


def _choice(
    field: str, value: Mapping[str, object], path: str, found: list[Violation]
) -> f.Test | None:
    if "exists" in value:
        wanted = value["exists"]
        if isinstance(wanted, bool):
            return f.Exists(wanted)
        found.append(Violation(f"{path}.exists", "must be true or false"))
        return None
    listed = value["in"]
    if not isinstance(listed, list):
        found.append(Violation(f"{path}.in", "must be a list of values"))
        return None
    if not _few(listed, limits.MAX_FILTER_VALUES, f"{path}.in", found):
        return None
    values = [_value(field, v, f"{path}.in[{i}]", found) for i, v in enumerate(listed)]
    return f.In(tuple(v for v in values if v is not None))


def _value(field: str, value: object, path: str, found: list[Violation]) -> f.FilterValue | None:
    if field == "ts" and isinstance(value, str):
        found.append(Violation(path, _TIME_TEXT))
        return None
    if value is None:
        found.append(Violation(path, 'null is no value; to find missing fields: {"exists": false}'))
        return None
    try:
        return attribute(value)
    except PydanticCustomError as error:
        found.append(Violation(path, scalar_problem(value) and error.message()))
        return None


def nearest(name: str, known: tuple[str, ...]) -> str:
    """The known name that looks most like ``name``, or ""."""
    close = difflib.get_close_matches(name[:80], known, 1)
    return close[0] if close else ""


def _unknown(name: str, known: tuple[str, ...]) -> str:
    guess = nearest(name, known)
    if guess:
        return f"unknown; did you mean {guess}?"
    extra = ", attributes.NAME" if "status" in known else ""
    return f"unknown; known are {', '.join(known)}{extra}"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a filter, as it stands in the OpenAPI document."""
    test: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "minProperties": 1,
        "properties": {
            "in": {"type": "array", "items": VALUE_SCHEMA, "minItems": 1},
            "exists": {"type": "boolean"},
            **dict.fromkeys(BOUNDS, VALUE_SCHEMA),
        },
    }
    condition = {"anyOf": [*VALUE_SCHEMA["anyOf"], test]}
    again = {"$ref": "#/components/schemas/Filter"}
    return {
        "type": "object",
        "description": (
            "Fields and the values they must have; several keys mean and. A plain value means "
            "equals. A missing field matches nothing but exists: false and not."
        ),
        "properties": {
            **dict.fromkeys(FIELDS, condition),
            "and": {"type": "array", "items": again, "minItems": 1},
            "or": {"type": "array", "items": again, "minItems": 1},
            "not": again,
        },
        "patternProperties": {r"^attributes\.[A-Za-z0-9_.\-]{1,64}$": condition},
        "additionalProperties": False,
    }
