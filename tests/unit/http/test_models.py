"""JSON that would be read as something else than what was sent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsvc.domain import filters as f
from memsvc.domain.errors import InvalidArgument
from memsvc.domain.types import (
    ForgetMode,
    Include,
    LateVector,
    Metadata,
    Mode,
    Namespace,
    NewMemory,
    RankOptions,
    Status,
    Touch,
    TouchKind,
    Update,
)
from memsvc.http import models

NS = {"tenant": "t", "agent": "a"}


def item(body: dict[str, Any]) -> Any:
    return models.read_write(json.dumps({"namespace": NS, "items": [body]})).items[0]


def filter_of(body: object) -> f.Filter | None:
    return models.read_query(json.dumps({"namespace": NS, "filters": body})).filters


def refused(call: Callable[[], object]) -> dict[str, str]:
    with pytest.raises(InvalidArgument) as caught:
        call()
    return {v.field: v.description for v in caught.value.violations}


def test_memory_may_stand_in_the_item_or_under_its_name() -> None:
    flat = {
        "dedup_key": "k",
        "content": "c",
        "summary": "s",
        "metadata": {
            "seq": 0,
            "role": "user",
            "ts": 0,
            "importance": 0,
            "source": "chat",
            "topic": "t",
            "category": "c",
            "memory_type": "m",
            "topic_key": "k",
            "attributes": {"s": "", "i": 1, "d": 1.0, "b": True, "l": ["x"]},
        },
        "ttl_ms": 0,
        "status": "review",
    }
    memory = item(flat)
    assert memory == item({"memory": flat})
    assert memory == NewMemory(
        "c",
        "s",
        "k",
        None,
        Metadata(
            0,
            "user",
            0,
            0,
            "chat",
            "t",
            "c",
            "m",
            "k",
            {"s": "", "i": 1, "d": 1.0, "b": True, "l": ("x",)},
        ),
        0,
        Status.REVIEW,
    )
    attributes = memory.metadata.attributes
    assert attributes["b"] is True and type(attributes["i"]) is int
    assert type(attributes["d"]) is float


def test_array_is_the_vector_of_a_memory_and_object_a_late_one() -> None:
    memory = item({"content": "x", "vector": [1, 2.5]})
    assert isinstance(memory, NewMemory) and memory.vector is not None
    assert memory.vector.dtype == np.float32 and memory.vector.tolist() == [1, 2.5]
    late = item({"vector": {"id": "m", "if_version": 2, "vector": [1]}})
    assert isinstance(late, LateVector)
    assert (late.id, late.if_version, late.vector.tolist()) == ("m", 2, [1])


def test_touch_and_update_keep_their_fields() -> None:
    touch = item({"touch": {"id": "m", "ts": 5, "importance": 0.5, "kind": "used"}})
    assert touch == Touch("m", 5, 0.5, TouchKind.USED)
    update = item(
        {
            "update": {
                "id": "m",
                "if_version": 1,
                "content": "",
                "clear_vector": True,
                "clear_fields": ["role"],
                "ttl_ms": 0,
                "status": "Archived",
                "reason": "r",
            }
        }
    )
    assert update == Update(
        "m",
        1,
        "",
        clear_vector=True,
        clear_fields=("role",),
        ttl_ms=0,
        status=Status.ARCHIVED,
        reason="r",
    )


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"touch": {"id": "m"}, "update": {"id": "m"}},
        {"touch": {"id": "m"}, "content": "x"},
        {"vector": {"id": "m", "vector": [1]}, "content": "x"},
        {"memory": {"content": "x"}, "content": "x"},
        {"touch": None},
    ],
)
def test_item_that_is_none_or_several_things_is_refused(body: dict[str, Any]) -> None:
    assert list(refused(lambda: item(body))) == ["items[0]"]


def test_misspelt_fields_are_refused_with_a_guess() -> None:
    found = refused(lambda: item({"contnt": "x", "metadata": {"impotance": 1}}))
    assert found["items[0].contnt"].endswith("did you mean content?")
    assert found["items[0].metadata.impotance"].endswith("did you mean importance?")
    found = refused(lambda: filter_of({"sesion": "x", "not": {"rle": "y"}, "zzz": 1}))
    assert found["filters.sesion"].endswith("did you mean session?")
    assert found["filters.not.rle"].endswith("did you mean role?")
    assert "attributes.NAME" in found["filters.zzz"]


def test_date_as_text_is_refused_with_what_is_expected() -> None:
    for body in ({"metadata": {"ts": "2026-01-01T00:00:00Z"}}, {"touch": {"id": "m", "ts": "5"}}):
        (text,) = refused(
            lambda b=body: item({"content": "x", **b} if "touch" not in b else b)
        ).values()
        assert "UTC milliseconds as an integer" in text
    for value in ("2026-01-01", {"gte": "2026-01-01"}, {"in": ["2026-01-01"]}):
        (text,) = refused(lambda v=value: filter_of({"ts": v})).values()
        assert "UTC milliseconds as an integer" in text


def test_filters_mean_what_they_say() -> None:
    assert filter_of({}) is None
    assert filter_of({"status": "active"}) == f.Condition("status", f.Equals("active"))
    assert filter_of({"role": "u", "seq": {"gt": 1, "lte": 5}}) == f.And(
        (f.Condition("role", f.Equals("u")), f.Condition("seq", f.Range(gt=1, lte=5)))
    )
    assert filter_of({"topic": {"in": ["a", "b"]}}) == f.Condition("topic", f.In(("a", "b")))
    assert filter_of({"topic": {"exists": False}}) == f.Condition("topic", f.Exists(False))
    assert filter_of({"attributes.x": ["a"]}) == f.Condition("attributes.x", f.Equals(("a",)))
    assert filter_of({"attributes.x": True}) == f.Condition("attributes.x", f.Equals(True))
    assert filter_of(
        {"or": [{"role": "a"}, {"and": [{"role": "b"}, {"not": {"topic": "c"}}]}]}
    ) == f.Or(
        (
            f.Condition("role", f.Equals("a")),
            f.And(
                (
                    f.Condition("role", f.Equals("b")),
                    f.Not(f.Condition("topic", f.Equals("c"))),
                )
            ),
        )
    )


@pytest.mark.parametrize(
    "body",
    [
        [],
        "active",
        {"role": None},
        {"role": {}},
        {"role": {"in": "a"}},
        {"role": {"in": ["a"], "gt": "b"}},
        {"role": {"exists": 1}},
        {"role": {"equals": "a"}},
        {"role": {"gt": None}},
        {"and": {}},
        {"and": []},
        {"or": [{}]},
        {"or": ["x"]},
        {"not": {}},
        {"not": []},
        {"attributes.x": {"in": [{"a": 1}]}},
        {"attributes.x": [1, 2]},
        {"attributes.x": 1 << 70},
    ],
)
def test_filter_that_is_wrong_never_becomes_no_filter(body: object) -> None:
    found = refused(
        lambda: models.read_forget(json.dumps({"namespace": NS, "filters": body, "mode": "HARD"}))
    )
    assert all(field.startswith("filters") for field in found) and all(found.values())


def test_query_keeps_every_field() -> None:
    request = models.read_query(
        json.dumps(
            {
                "namespace": ["t", "a", "s"],
                "vectors": [[1], [2]],
                "text": "x",
                "ids": ["m"],
                "top_k": 3,
                "min_score": 0,
                "mode": "hybrid",
                "ef_search": 9,
                "min_position": "p",
                "embedding": "e",
                "as_of": 0,
                "rank": {"similarity_weight": 0, "keep": 4, "max_per_topic": 0},
                "include": {"content": True},
                "page_token": "t",
                "fallback": True,
            }
        )
    )
    assert request.namespace == Namespace("t", "a", "s")
    assert request.many and [v.tolist() for v in request.vectors] == [[1], [2]]
    assert (request.text, request.ids, request.top_k, request.min_score) == ("x", ("m",), 3, 0)
    assert (request.mode, request.ef_search, request.as_of) == (Mode.HYBRID, 9, 0)
    assert (request.min_position, request.embedding, request.page_token) == ("p", "e", "t")
    assert request.fallback
    assert request.rank == RankOptions(similarity_weight=0, keep=4, max_per_topic=0)
    assert request.include == Include(content=True)


def test_defaults_are_left_to_the_settings() -> None:
    request = models.read_query({"namespace": NS})
    assert (request.top_k, request.min_score, request.mode) == (0, None, Mode.AUTO)
    assert request == models.read_query({"namespace": NS, "top_k": None, "filters": None})
    forget = models.read_forget({"namespace": NS, "ids": ["m"]})
    assert (forget.mode, forget.factor, forget.fingerprint) == (ForgetMode.DECAY, 0.5, b"")
    assert models.read_query({"namespace": NS, "rank": {}}).rank == RankOptions()


def test_forget_keeps_every_field() -> None:
    request = models.read_forget(
        {
            "namespace": NS,
            "request_id": "r",
            "ids": ["m"],
            "mode": "HARD",
            "factor": 0,
            "validate_only": True,
            "reason": "x",
        }
    )
    assert (request.mode, request.factor, request.reason) == (ForgetMode.HARD, 0, "x")
    assert request.validate_only and len(request.fingerprint) == 16


def test_vector_and_vectors_together_are_refused() -> None:
    body = {"namespace": NS, "vector": [1.0], "vectors": [[1.0]]}
    assert list(refused(lambda: models.read_query(body))) == ["vectors"]


def test_number_float32_cannot_hold_is_left_to_the_check_of_vectors() -> None:
    vector = models.read_query({"namespace": NS, "vector": [1e300]}).vectors[0]
    assert np.isinf(vector[0])


def test_lone_surrogates_in_values_are_refused_in_objects_too() -> None:
    for body in (
        {"content": "x", "metadata": {"attributes": {"a": "\ud800"}}},
        {"content": "x", "metadata": {"attributes": {"a": ["\ud800"]}}},
    ):
        found = refused(lambda b=body: models.read_write({"namespace": NS, "items": [b]}))
        assert found, body
    assert refused(lambda: models.read_query({"namespace": NS, "filters": {"role": "\ud800"}}))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "namespace",
                    "items",
                    "vector",
                    "content",
                    "metadata",
                    "touch",
                    "update",
                    "id",
                    "filters",
                    "and",
                    "not",
                    "role",
                    "in",
                    "gt",
                    "ts",
                    "attributes",
                    "attributes.x",
                    "mode",
                    "ids",
                    "rank",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@settings(deadline=None)  # a busy machine is no fault
@given(JSON)
def test_no_json_whatever_makes_anything_but_a_refusal(document: object) -> None:
    text = json.dumps(document)
    for read in (models.read_write, models.read_query, models.read_forget):
        try:
            read(text)
        except InvalidArgument as error:
            assert error.message


@settings(deadline=None)
@given(JSON, JSON)
def test_no_item_or_filter_whatever_makes_anything_but_a_refusal(
    item_body: object, filter_body: object
) -> None:
    for read, body in (
        (models.read_write, {"namespace": NS, "items": [item_body]}),
        (models.read_forget, {"namespace": NS, "filters": filter_body, "request_id": "r"}),
    ):
        try:
            read(json.dumps(body))
        except InvalidArgument as error:
            assert error.message


def test_models_need_no_server() -> None:
    code = (
        "import sys, memsvc.http.models; "
        "sys.exit(any(m in sys.modules for m in ('starlette', 'uvicorn', 'grpc')))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
