"""Documents as messages of gRPC and as bodies of HTTP."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
from google.protobuf.message import Message

from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2 as types
from tests.hostile.case import Call, Document

REQUESTS: dict[str, type[Message]] = {
    "Write": pb.WriteRequest,
    "Query": pb.QueryRequest,
    "Forget": pb.ForgetRequest,
    "Health": pb.HealthRequest,
}
PREFIXES = {"mode": ("MODE_", "FORGET_MODE_"), "status": ("STATUS_",), "kind": ("TOUCH_KIND_",)}


class Raw(str):
    """JSON text to stand in a body as it is."""


def body(document: Any) -> bytes:
    """As JSON; lone surrogates are escaped, NaN and Infinity written as Python does."""
    raws: list[str] = []

    def marked(value: Any) -> Any:
        if isinstance(value, Raw):
            raws.append(value)
            return f"@raw{len(raws) - 1}@"
        if isinstance(value, dict):
            return {key: marked(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [marked(inner) for inner in value]
        return value

    text = json.dumps(marked(document))
    for number, raw in enumerate(raws):
        text = text.replace(f'"@raw{number}@"', raw)
    return text.encode()


def message(call: Call, document: Document, random: Random) -> Message:
    """As a message; vectors in one of their two forms."""
    made = REQUESTS[call]()
    _fill(made, document, random)
    return made


def _fill(into: Message, document: Document, random: Random) -> None:
    for name, value in document.items():
        described = into.DESCRIPTOR.fields_by_name[name]
        target = getattr(into, name)
        if name == "attributes":
            for key, inner in value.items():
                target[key].CopyFrom(value_of(inner))
        elif name == "filters":
            target.CopyFrom(filter_of(value))
        elif name == "vectors":
            target.extend(vector_of(each, random) for each in value)
        elif described.message_type is types.Vector.DESCRIPTOR and isinstance(value, list):
            target.CopyFrom(vector_of(value, random))
        elif isinstance(value, dict):
            target.SetInParent()
            _fill(target, value, random)
        elif isinstance(value, list) and described.message_type is not None:
            for each in value:
                _fill(target.add(), each, random)
        elif isinstance(value, list):
            target.extend(value)
        elif described.enum_type is not None:
            known = described.enum_type.values_by_name
            names = (prefix + value for prefix in PREFIXES[name])
            setattr(into, name, next(known[n].number for n in names if n in known))
        else:
            setattr(into, name, value)


def vector_of(numbers: list[float], random: Random) -> types.Vector:
    """A vector as numbers or as bytes."""
    with np.errstate(over="ignore"):
        array = np.array(numbers, dtype="<f4")
    if random.random() < 0.5 and len(array):
        return types.Vector(data=array.tobytes())
    return types.Vector(values=array.tolist())


def value_of(value: Any) -> types.Value:
    """A typed value."""
    if isinstance(value, bool):
        return types.Value(bool_value=value)
    if isinstance(value, int):
        return types.Value(int_value=value)
    if isinstance(value, float):
        return types.Value(double_value=value)
    if isinstance(value, list):
        return types.Value(list_value=types.StringList(values=value))
    return types.Value(string_value=value)


def filter_of(tree: Document) -> types.Filter:
    """A filter object as the tree of messages."""
    parts = [_part(key, inner) for key, inner in tree.items()]
    if len(parts) == 1:
        return parts[0]
    return types.Filter(all_of=types.FilterList(filters=parts))


def _part(key: str, inner: Any) -> types.Filter:
    if key in ("and", "or"):
        listed = types.FilterList(filters=[filter_of(each) for each in inner])
        return types.Filter(all_of=listed) if key == "and" else types.Filter(any_of=listed)
    if key == "not":
        return types.Filter(negate=filter_of(inner))
    condition = types.Condition(field=key)
    if not isinstance(inner, dict):
        condition.equals.CopyFrom(value_of(inner))
    elif "in" in inner:
        condition.in_values.SetInParent()
        condition.in_values.values.extend(value_of(each) for each in inner["in"])
    elif "exists" in inner:
        condition.exists = inner["exists"]
    else:
        condition.range.SetInParent()
        for name, bound in inner.items():
            getattr(condition.range, name).CopyFrom(value_of(bound))
    return types.Filter(condition=condition)
