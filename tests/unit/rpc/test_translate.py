"""Requests on the wire that would be read as something else than what was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from memsvc.domain import filters as f
from memsvc.domain.errors import InvalidArgument
from memsvc.domain.types import (
    ForgetMode,
    Include,
    LateVector,
    Mode,
    Namespace,
    NewMemory,
    RankOptions,
    Status,
    Touch,
    TouchKind,
    Update,
)
from memsvc.rpc import translate
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2

NS = types_pb2.Namespace(tenant="acme", agent="bot", session="s1")


def refused(call: Callable[[], object]) -> dict[str, str]:
    with pytest.raises(InvalidArgument) as caught:
        call()
    return {v.field: v.description for v in caught.value.violations}


def write(**item: Any) -> Any:
    return translate.write_request(pb.WriteRequest(namespace=NS, items=[pb.WriteItem(**item)]))


def test_every_field_of_a_memory_arrives() -> None:
    message = pb.Memory(
        dedup_key="k",
        content="text",
        summary="short",
        vector=types_pb2.Vector(values=[1, 2]),
        metadata=types_pb2.Metadata(
            seq=0,
            role="user",
            ts=0,
            importance=0.0,
            source="chat",
            topic="food",
            category="c",
            memory_type="preference",
            topic_key="tk",
            attributes={
                "s": types_pb2.Value(string_value=""),
                "i": types_pb2.Value(int_value=-5),
                "d": types_pb2.Value(double_value=1.5),
                "b": types_pb2.Value(bool_value=False),
                "l": types_pb2.Value(list_value=types_pb2.StringList(values=["x", "y"])),
            },
        ),
        ttl_ms=0,
        status=types_pb2.STATUS_REVIEW,
    )
    request = write(memory=message)
    assert request.namespace == Namespace("acme", "bot", "s1")
    memory = request.items[0]
    assert isinstance(memory, NewMemory)
    assert (memory.dedup_key, memory.content, memory.summary) == ("k", "text", "short")
    assert memory.vector is not None and memory.vector.tolist() == [1, 2]
    assert memory.vector.dtype == np.float32
    # 0 that was sent is not "not sent".
    assert (memory.ttl_ms, memory.metadata.seq, memory.metadata.ts) == (0, 0, 0)
    assert memory.metadata.importance == 0.0
    assert memory.status is Status.REVIEW
    assert memory.metadata.attributes == {"s": "", "i": -5, "d": 1.5, "b": False, "l": ("x", "y")}
    assert memory.metadata.attributes["b"] is False
    labels = memory.metadata
    assert (labels.role, labels.source, labels.topic) == ("user", "chat", "food")
    assert (labels.category, labels.memory_type, labels.topic_key) == ("c", "preference", "tk")


def test_what_is_unset_stays_unset() -> None:
    memory = write(memory=pb.Memory(content="x")).items[0]
    assert memory == NewMemory(content="x")
    assert memory.vector is None and memory.ttl_ms is None and memory.status is Status.ACTIVE
    update = write(update=pb.Update(id="m")).items[0]
    assert update == Update(id="m")
    touch = write(touch=pb.Touch(id="m")).items[0]
    assert touch == Touch("m") and touch.kind is TouchKind.SEEN


def test_empty_text_in_an_update_is_not_left_out() -> None:
    update = write(
        update=pb.Update(
            id="m",
            if_version=3,
            content="",
            summary="",
            clear_vector=True,
            clear_fields=["role"],
            ttl_ms=0,
            status=types_pb2.STATUS_ARCHIVED,
            reason="r",
        )
    ).items[0]
    assert update == Update(
        id="m",
        if_version=3,
        content="",
        summary="",
        clear_vector=True,
        clear_fields=("role",),
        ttl_ms=0,
        status=Status.ARCHIVED,
        reason="r",
    )


def test_touch_and_late_vector_keep_their_fields() -> None:
    touch = write(touch=pb.Touch(id="m", ts=5, importance=0.5, kind=pb.TOUCH_KIND_USED)).items[0]
    assert touch == Touch("m", 5, 0.5, TouchKind.USED)
    late = write(
        vector=pb.LateVector(id="m", if_version=2, vector=types_pb2.Vector(values=[3]))
    ).items[0]
    assert isinstance(late, LateVector)
    assert (late.id, late.if_version, late.vector.tolist()) == ("m", 2, [3])


def test_numbers_and_bytes_are_the_same_vector() -> None:
    numbers = np.array([0.1, -2.5, 3e-20], dtype="<f4")
    by_values = translate.query_request(
        pb.QueryRequest(namespace=NS, vector=types_pb2.Vector(values=numbers.tolist()))
    )
    by_data = translate.query_request(
        pb.QueryRequest(namespace=NS, vector=types_pb2.Vector(data=numbers.tobytes()))
    )
    assert by_values.vectors[0].tobytes() == by_data.vectors[0].tobytes() == numbers.tobytes()


@pytest.mark.parametrize(
    ("vector", "field"),
    [
        (types_pb2.Vector(values=[1], data=b"\0\0\0\0"), "items[0].memory.vector"),
        (types_pb2.Vector(data=b"\0\0\0"), "items[0].memory.vector.data"),
    ],
)
def test_vector_that_is_two_things_or_cut_is_refused(vector: types_pb2.Vector, field: str) -> None:
    found = refused(lambda: write(memory=pb.Memory(content="x", vector=vector)))
    assert list(found) == [field]


def test_query_keeps_every_field() -> None:
    request = translate.query_request(
        pb.QueryRequest(
            namespace=NS,
            vectors=[types_pb2.Vector(values=[1]), types_pb2.Vector(values=[2])],
            text="words",
            ids=["a", "b"],
            top_k=7,
            min_score=0.0,
            mode=pb.MODE_HYBRID,
            ef_search=99,
            min_position="p",
            embedding="e",
            as_of=0,
            rank=pb.Rank(similarity_weight=0.0, max_per_topic=0, token_budget=0, keep=5),
            include=pb.Include(content=True, explain=True),
            page_token="t",
            fallback=True,
        )
    )
    assert request.many and [v.tolist() for v in request.vectors] == [[1], [2]]
    assert (request.text, request.ids, request.top_k) == ("words", ("a", "b"), 7)
    assert (request.min_score, request.as_of, request.mode) == (0.0, 0, Mode.HYBRID)
    assert (request.ef_search, request.min_position, request.embedding) == (99, "p", "e")
    assert request.rank == RankOptions(
        similarity_weight=0.0, max_per_topic=0, token_budget=0, keep=5
    )
    assert request.include == Include(content=True, explain=True)
    assert (request.page_token, request.fallback) == ("t", True)


def test_defaults_of_a_query_are_left_to_the_settings() -> None:
    request = translate.query_request(pb.QueryRequest(namespace=NS, rank=pb.Rank()))
    assert (request.top_k, request.min_score, request.ef_search) == (0, None, 0)
    assert request.mode is Mode.AUTO and request.filters is None
    assert request.rank == RankOptions()


def test_forget_keeps_every_field() -> None:
    request = translate.forget_request(
        pb.ForgetRequest(
            namespace=NS,
            request_id="r",
            ids=["a"],
            mode=pb.FORGET_MODE_HARD,
            factor=0.0,
            validate_only=True,
            reason="asked",
        )
    )
    assert (request.ids, request.mode, request.factor) == (("a",), ForgetMode.HARD, 0.0)
    assert request.validate_only and request.reason == "asked" and len(request.fingerprint) == 16
    plain = translate.forget_request(pb.ForgetRequest(namespace=NS, ids=["a"]))
    assert (plain.mode, plain.factor, plain.fingerprint) == (ForgetMode.DECAY, 0.5, b"")


def condition(field: str, **test: Any) -> types_pb2.Filter:
    return types_pb2.Filter(condition=types_pb2.Condition(field=field, **test))


def test_filters_keep_their_shape() -> None:
    text = types_pb2.Value(string_value="a")
    number = types_pb2.Value(int_value=3)
    message = types_pb2.Filter(
        all_of=types_pb2.FilterList(
            filters=[
                condition("role", equals=text),
                types_pb2.Filter(negate=condition("topic", exists=False)),
                types_pb2.Filter(
                    any_of=types_pb2.FilterList(
                        filters=[
                            condition("source", in_values=types_pb2.ValueList(values=[text])),
                            condition("ts", range=types_pb2.Range(gte=number, lt=number)),
                        ]
                    )
                ),
            ]
        )
    )
    request = translate.query_request(pb.QueryRequest(namespace=NS, filters=message))
    assert request.filters == f.And(
        (
            f.Condition("role", f.Equals("a")),
            f.Not(f.Condition("topic", f.Exists(False))),
            f.Or(
                (
                    f.Condition("source", f.In(("a",))),
                    f.Condition("ts", f.Range(gte=3, lt=3)),
                )
            ),
        )
    )


@pytest.mark.parametrize(
    "message",
    [
        types_pb2.Filter(),
        types_pb2.Filter(negate=types_pb2.Filter()),
        condition("role"),
        condition("role", equals=types_pb2.Value()),
        condition("role", in_values=types_pb2.ValueList(values=[types_pb2.Value()])),
        condition("role", range=types_pb2.Range(gt=types_pb2.Value())),
    ],
)
def test_filter_without_its_oneof_does_not_select_everything(message: types_pb2.Filter) -> None:
    request = pb.ForgetRequest(namespace=NS, filters=message, mode=pb.FORGET_MODE_HARD)
    found = refused(lambda: translate.forget_request(request))
    assert all(field.startswith("filters") for field in found)


def test_deep_filter_is_refused_and_does_not_overflow() -> None:
    node = condition("role", exists=True)
    for _ in range(90):
        node = types_pb2.Filter(negate=node)
    request = pb.QueryRequest(namespace=NS, filters=node)
    assert "nested" in " ".join(refused(lambda: translate.query_request(request)).values())


def test_item_without_its_oneof_names_its_place() -> None:
    request = pb.WriteRequest(
        namespace=NS, items=[pb.WriteItem(memory=pb.Memory(content="x")), pb.WriteItem()]
    )
    assert list(refused(lambda: translate.write_request(request))) == ["items[1]"]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.QueryRequest(namespace=NS, mode=99), "mode"),
        (pb.ForgetRequest(namespace=NS, mode=99), "mode"),
        (
            pb.WriteRequest(
                namespace=NS,
                items=[pb.WriteItem(touch=pb.Touch(id="m", kind=99))],
            ),
            "items[0].touch.kind",
        ),
        (
            pb.WriteRequest(
                namespace=NS,
                items=[pb.WriteItem(memory=pb.Memory(status=99))],
            ),
            "items[0].memory.status",
        ),
        (
            pb.WriteRequest(
                namespace=NS,
                items=[pb.WriteItem(update=pb.Update(id="m", status=99))],
            ),
            "items[0].update.status",
        ),
    ],
)
def test_enum_number_of_a_newer_client_is_not_taken_for_the_default(
    message: Message, field: str
) -> None:
    found = refused(lambda: translated(message))
    assert list(found) == [field] and "99" in found[field]


def translated(message: Message) -> object:
    if isinstance(message, pb.WriteRequest):
        return translate.write_request(message)
    if isinstance(message, pb.QueryRequest):
        return translate.query_request(message)
    assert isinstance(message, pb.ForgetRequest)
    return translate.forget_request(message)


def _paths(kind: Any, seen: tuple[str, ...] = ()) -> Iterator[tuple[FieldDescriptor, ...]]:
    """Every way from a request to a message inside it, without going round in circles."""
    yield ()
    if seen.count(kind.full_name) > 1:
        return
    for field in kind.fields:
        if field.message_type is not None:
            for path in _paths(field.message_type, (*seen, kind.full_name)):
                yield (field, *path)


def _step(message: Any, field: FieldDescriptor) -> Message:
    inner = getattr(message, field.name)
    if field.message_type.GetOptions().map_entry:
        # A map is stepped over as a whole: into the value of one key.
        return inner["key"]
    if field.is_repeated:
        return inner.add()
    inner.SetInParent()
    return inner


@pytest.mark.parametrize("kind", [pb.WriteRequest, pb.QueryRequest, pb.ForgetRequest])
def test_unknown_field_anywhere_is_refused_and_not_dropped(kind: type[Message]) -> None:
    unknown = b"\xf8\x3f\x01"  # field 1023, varint 1
    checked = 0
    for path in _paths(kind.DESCRIPTOR):
        request = kind()
        request.namespace.CopyFrom(NS)
        target: Message = request
        if path and path[-1].message_type.GetOptions().map_entry:
            continue
        steps = iter(path)
        for field in steps:
            target = _step(target, field)
            if field.message_type.GetOptions().map_entry:
                next(steps, None)  # the field "value" of the entry
        target.MergeFromString(unknown)
        again = kind.FromString(request.SerializeToString())
        names = ".".join(field.name for field in path)
        with pytest.raises(InvalidArgument) as caught:
            translated(again)
        told = [v for v in caught.value.violations if "1023" in v.description]
        assert told, f"{kind.__name__}: unknown field in {names or 'the request'} went unnoticed"
        checked += 1
    assert checked > 15
