"""Types of JSON fields: strict, finite, within 64 bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from typing import Annotated, Any, Final, TypeVar

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from memsvc.domain.limits import MAX_ATTRIBUTES
from memsvc.domain.types import AttributeValue, ForgetMode, Mode, Status, TouchKind, Vector

E = TypeVar("E", bound=IntEnum)

INT64_MAX: Final = (1 << 63) - 1
TIME_HINT: Final = (
    "UTC milliseconds as an integer, for example 1767225600000; dates as text are refused"
)


class Body(BaseModel):
    """A JSON object without room for fields nobody knows. null means: not given."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        # Built at the first request: a node that restarts serves gRPC a little sooner.
        defer_build=True,
    )


Int64 = Annotated[int, Field(ge=-INT64_MAX - 1, le=INT64_MAX)]
UInt32 = Annotated[int, Field(ge=0, le=(1 << 32) - 1)]
Numbers = Annotated[list[float], Field(fail_fast=True)]
"""Only the first wrong number is told: a body of 16 MB holds millions."""


def _time(value: object) -> object:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise PydanticCustomError("time", TIME_HINT)


Time = Annotated[Int64, BeforeValidator(_time)]
"""UTC milliseconds. The range is checked with the rest of the request."""


def _enum(kind: type[E], allowed: tuple[E, ...]) -> Callable[[object], E]:
    names = {member.name: member for member in allowed}
    text = f"one of {', '.join(names)}"

    def convert(value: object) -> E:
        if isinstance(value, kind):
            return value
        member = names.get(value.upper()) if isinstance(value, str) else None
        if member is None:
            raise PydanticCustomError("name", text)
        return member

    return convert


def _names(kind: type[IntEnum]) -> dict[str, Any]:
    return {"type": "string", "enum": [m.name for m in kind if m.value]}


_STATUSES = tuple(s for s in Status if s)

StatusName = Annotated[
    Status, PlainValidator(_enum(Status, _STATUSES)), WithJsonSchema(_names(Status))
]
ModeName = Annotated[Mode, PlainValidator(_enum(Mode, tuple(Mode))), WithJsonSchema(_names(Mode))]
ForgetModeName = Annotated[
    ForgetMode,
    PlainValidator(_enum(ForgetMode, tuple(ForgetMode))),
    WithJsonSchema(_names(ForgetMode)),
]
TouchKindName = Annotated[
    TouchKind,
    PlainValidator(_enum(TouchKind, tuple(TouchKind))),
    WithJsonSchema(_names(TouchKind)),
]


def scalar_problem(value: object) -> str:
    """What keeps a JSON value from being a string, whole number, number or truth value."""
    if isinstance(value, str):
        return "" if _encodable(value) else "must be valid Unicode (no lone surrogates)"
    if isinstance(value, bool):
        return ""
    if isinstance(value, int):
        return "" if -INT64_MAX - 1 <= value <= INT64_MAX else "must fit in 64 bits"
    if isinstance(value, float):
        return "" if math.isfinite(value) else "must be finite"
    return "must be a string, a number or a truth value"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def attribute(value: object) -> AttributeValue:
    """A typed value of an attribute or a filter. Raises PydanticCustomError."""
    if isinstance(value, list | tuple):
        if all(isinstance(part, str) and _encodable(part) for part in value):
            return tuple(value)
        raise PydanticCustomError("attribute", "a list must hold strings only")
    problem = scalar_problem(value)
    if problem:
        text = problem + ", or a list of strings" if problem.endswith("truth value") else problem
        raise PydanticCustomError("attribute", text)
    assert isinstance(value, str | int | float | bool)
    return value


VALUE_SCHEMA: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string"},
        {"type": "integer"},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "array", "items": {"type": "string"}},
    ]
}
Attribute = Annotated[Any, PlainValidator(attribute), WithJsonSchema(VALUE_SCHEMA)]


def _few(value: object) -> object:
    if isinstance(value, dict) and len(value) > MAX_ATTRIBUTES:
        raise PydanticCustomError("attributes", f"at most {MAX_ATTRIBUTES} attributes")
    return value


Attributes = Annotated[dict[str, Attribute], BeforeValidator(_few)]
"""Counted before each is looked at."""


def to_vector(numbers: list[float]) -> Vector:
    """The numbers as float32; what float32 cannot hold becomes infinite and is refused
    later with the field's name."""
    with np.errstate(over="ignore"):
        return np.array(numbers, dtype=np.float32)
