"""Repeats that would be taken for another request, and others that would not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from memsvc.domain import filters as f
from memsvc.domain.types import (
    ForgetMode,
    ForgetRequest,
    LateVector,
    Metadata,
    Namespace,
    NewMemory,
    Status,
    Touch,
    TouchKind,
    Update,
    WriteItem,
    WriteRequest,
)
from memsvc.http import models
from memsvc.rpc import translate
from memsvc.service import fingerprint
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2

NS = Namespace("t", "a", "s")
VECTOR = np.array([1, 2], dtype=np.float32)
OTHER = np.array([1, 3], dtype=np.float32)


def changed(item: Any, **changes: Any) -> Any:
    if isinstance(item, tuple):
        return item._replace(**changes)  # type: ignore[attr-defined]  # a named tuple
    return dataclasses.replace(item, **changes)


def field_names(item: Any) -> set[str]:
    return set(getattr(item, "_fields", None) or {f.name for f in dataclasses.fields(item)})


MEMORY = NewMemory("c", "s", "k", VECTOR, Metadata(seq=1, ts=2, importance=0.5), 3, Status.ACTIVE)
UPDATE = Update("m", 1, "c", "s", VECTOR, False, Metadata(), ("role",), 5, Status.ACTIVE, "r")
ITEMS: list[tuple[Any, dict[str, Any]]] = [
    (
        MEMORY,
        {
            "content": "x",
            "summary": "x",
            "dedup_key": "x",
            "vector": OTHER,
            "metadata": Metadata(seq=1, ts=2, importance=0.5, attributes={"a": 1}),
            "ttl_ms": None,
            "status": Status.REVIEW,
        },
    ),
    (
        UPDATE,
        {
            "id": "x",
            "if_version": 2,
            "content": None,
            "summary": "",
            "vector": None,
            "clear_vector": True,
            "metadata": Metadata(role="x"),
            "clear_fields": (),
            "ttl_ms": 0,
            "status": Status.REVIEW,
            "reason": "",
        },
    ),
    (
        Touch("m", 1, 0.5, TouchKind.SEEN),
        {"id": "x", "ts": None, "importance": None, "kind": TouchKind.USED},
    ),
    (LateVector("m", VECTOR, 1), {"id": "x", "vector": OTHER, "if_version": 0}),
]


def of(*items: WriteItem, **rest: Any) -> bytes:
    return fingerprint.of_write(WriteRequest(NS, items, **rest))


@pytest.mark.parametrize(("item", "changes"), ITEMS, ids=lambda v: type(v).__name__)
def test_any_changed_field_is_another_request(item: Any, changes: dict[str, Any]) -> None:
    assert set(changes) == field_names(item)
    seen = {of(item)}
    for name, value in changes.items():
        seen.add(of(changed(item, **{name: value})))
    assert len(seen) == len(changes) + 1


@pytest.mark.parametrize("field", Metadata._fields)
def test_any_changed_metadata_is_another_request(field: str) -> None:
    other: Any = {"seq": 9, "ts": 9, "importance": 0.9, "attributes": {"a": "b"}}
    value = other.get(field, "x")
    assert of(changed(MEMORY, metadata=Metadata(**{field: value}))) != of(
        changed(MEMORY, metadata=Metadata())
    )


def test_request_id_is_no_part_of_it() -> None:
    assert of(MEMORY, request_id="a") == of(MEMORY, request_id="b")
    assert of(MEMORY, embedding="a") != of(MEMORY)
    assert of(MEMORY, MEMORY) != of(MEMORY)
    assert fingerprint.of_write(WriteRequest(Namespace("t", "b"), (MEMORY,))) != of(MEMORY)


def test_order_of_attributes_does_not_matter() -> None:
    one = changed(MEMORY, metadata=Metadata(attributes={"a": 1, "b": True}))
    two = changed(MEMORY, metadata=Metadata(attributes={"b": True, "a": 1}))
    three = changed(MEMORY, metadata=Metadata(attributes={"b": 1, "a": True}))
    assert of(one) == of(two) != of(three)


def test_any_changed_field_of_a_forget_is_another_request() -> None:
    base = ForgetRequest(NS, ("a",), f.Condition("role", f.Equals("u")), reason="r")
    changes: dict[str, Any] = {
        "namespace": Namespace("t", "b"),
        "ids": ("b",),
        "filters": f.Not(f.Condition("role", f.Equals("u"))),
        "mode": ForgetMode.HARD,
        "factor": 0.25,
        "validate_only": True,
        "reason": "",
    }
    seen = {fingerprint.of_forget(base)}
    for name, value in changes.items():
        seen.add(fingerprint.of_forget(changed(base, **{name: value})))
    assert len(seen) == len(changes) + 1


def test_different_filters_are_different() -> None:
    nodes: list[f.Filter] = [
        f.Condition("role", f.Equals("u")),
        f.Condition("role", f.In(("u",))),
        f.Condition("role", f.Exists(True)),
        f.Condition("role", f.Exists(False)),
        f.Condition("role", f.Range(gt="u")),
        f.Condition("role", f.Range(gte="u")),
        f.Condition("topic", f.Equals("u")),
        f.Condition("attributes.x", f.Equals(1)),
        f.Condition("attributes.x", f.Equals(True)),
        f.Condition("attributes.x", f.Equals("1")),
        f.And((f.Condition("role", f.Equals("u")),)),
        f.Or((f.Condition("role", f.Equals("u")),)),
    ]
    marks = {fingerprint.of_forget(ForgetRequest(NS, filters=node)) for node in nodes}
    assert len(marks) == len(nodes)


def test_repeat_over_the_other_protocol_is_the_same_request() -> None:
    body = {
        "namespace": ["t", "a", "s"],
        "request_id": "r1",
        "items": [
            {
                "dedup_key": "k",
                "content": "köln",
                "vector": [0.1, 0.2],
                "metadata": {"importance": 0.8, "ts": 5, "attributes": {"x": [], "y": 0.1}},
                "ttl_ms": 7,
            },
            {"touch": {"id": "m", "importance": 0.7}},
        ],
    }
    message = pb.WriteRequest(
        namespace=types_pb2.Namespace(tenant="t", agent="a", session="s"),
        request_id="r1",
        items=[
            pb.WriteItem(
                memory=pb.Memory(
                    dedup_key="k",
                    content="köln",
                    vector=types_pb2.Vector(data=np.array([0.1, 0.2], dtype="<f4").tobytes()),
                    metadata=types_pb2.Metadata(
                        importance=0.8,
                        ts=5,
                        attributes={
                            "y": types_pb2.Value(double_value=0.1),
                            "x": types_pb2.Value(list_value=types_pb2.StringList()),
                        },
                    ),
                    ttl_ms=7,
                )
            ),
            pb.WriteItem(touch=pb.Touch(id="m", importance=0.7)),
        ],
    )
    over_http = models.read_write(json.dumps(body))
    over_grpc = translate.write_request(message)
    assert over_http.fingerprint == over_grpc.fingerprint != b""
    forget = {"namespace": ["t", "a"], "request_id": "r", "ids": ["m"], "factor": 0.3}
    assert (
        models.read_forget(json.dumps(forget)).fingerprint
        == translate.forget_request(
            pb.ForgetRequest(
                namespace=types_pb2.Namespace(tenant="t", agent="a"),
                request_id="r",
                ids=["m"],
                factor=0.3,
            )
        ).fingerprint
    )


def test_numbers_beyond_float32_do_not_fail_here() -> None:
    assert of(changed(MEMORY, metadata=Metadata(importance=1e300)))
