"""Whole requests: every violation at once, with its field, at the documented bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from memsvc.domain import limits
from memsvc.domain.errors import InvalidArgument
from memsvc.domain.types import (
    ForgetMode,
    ForgetRequest,
    LateVector,
    Metadata,
    Mode,
    Namespace,
    NewMemory,
    QueryRequest,
    Status,
    Touch,
    Update,
    WriteItem,
    WriteRequest,
)
from memsvc.domain.validate import Checker, check_forget, check_query, check_write

NS = Namespace("acme", "a")
GOOD = np.ones(4, np.float32)


def _fields(item: WriteItem) -> set[str]:
    try:
        check_write(WriteRequest(NS, (item,)), 4)
    except InvalidArgument as error:
        assert error.hint
        return {v.field.removeprefix("items[0].") for v in error.violations}
    return set()


def _memory(**fields: Any) -> NewMemory:
    return NewMemory(**{"summary": "tea", **fields})


def _meta(**fields: Any) -> NewMemory:
    return _memory(metadata=Metadata(**fields))


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (NewMemory(), "memory"),
        (NewMemory(content=" \n"), "memory"),
        (_memory(content="x" * limits.MAX_CONTENT_BYTES), ""),
        (_memory(content="x" * (limits.MAX_CONTENT_BYTES + 1)), "memory.content"),
        (_memory(content="é" * (limits.MAX_CONTENT_BYTES // 2 + 1)), "memory.content"),
        (_memory(summary="x" * (limits.MAX_SUMMARY_BYTES + 1)), "memory.summary"),
        (_memory(summary="\ud800"), "memory.summary"),
        (_memory(dedup_key="x" * 512), ""),
        (_memory(dedup_key="x" * 513), "memory.dedup_key"),
        (_memory(vector=GOOD), ""),
        (_memory(vector=GOOD[:3]), "memory.vector"),
        (_memory(vector=np.ones((2, 2), np.float32)), "memory.vector"),
        (_memory(vector=np.zeros(4, np.float32)), "memory.vector"),
        (_memory(vector=GOOD * np.float32(1e-13)), "memory.vector"),
        (_memory(vector=GOOD * np.float32(1e-11)), ""),
        (_memory(vector=GOOD * np.float32(1e38)), ""),
        (_memory(vector=GOOD * np.float32("nan")), "memory.vector"),
        (_memory(vector=GOOD * np.float32("inf")), "memory.vector"),
        (_memory(ttl_ms=0), ""),
        (_memory(ttl_ms=limits.MAX_TTL_MS), ""),
        (_memory(ttl_ms=limits.MAX_TTL_MS + 1), "memory.ttl_ms"),
        (_memory(ttl_ms=-1), "memory.ttl_ms"),
        (_memory(status=Status.EXPIRED), "memory.status"),
        (_memory(status=Status.REJECTED), "memory.status"),
        (_meta(ts=-1), "memory.metadata.ts"),
        (_meta(ts=limits.MAX_TIME_MS), ""),
        (_meta(ts=limits.MAX_TIME_MS + 1), "memory.metadata.ts"),
        (_meta(importance=0.0), ""),
        (_meta(importance=1.0), ""),
        (_meta(importance=1.01), "memory.metadata.importance"),
        (_meta(importance=float("nan")), "memory.metadata.importance"),
        (_meta(seq=-(2**63)), ""),
        (_meta(seq=2**63), "memory.metadata.seq"),
        (_meta(topic="x" * 257), "memory.metadata.topic"),
        (_meta(attributes={f"a{n}": n for n in range(32)}), ""),
        (_meta(attributes={f"a{n}": n for n in range(33)}), "memory.metadata.attributes"),
        (_meta(attributes={"a b": 1}), "memory.metadata.attributes"),
        (_meta(attributes={"": 1}), "memory.metadata.attributes"),
        (_meta(attributes={"n": 2**63}), "memory.metadata.attributes.n"),
        (_meta(attributes={"n": float("inf")}), "memory.metadata.attributes.n"),
        (_meta(attributes={"n": "x" * 1_025}), "memory.metadata.attributes.n"),
        (_meta(attributes={"n": ("x",) * 65}), "memory.metadata.attributes.n"),
        (_meta(attributes={"n": ("x" * 1_025,)}), "memory.metadata.attributes.n"),
        (Touch(""), "touch.id"),
        (Touch("x" * 65), "touch.id"),
        (Touch("x", importance=-0.1), "touch.importance"),
        (Touch("x", ts=-1), "touch.ts"),
        (LateVector("x", GOOD[:2]), "vector.vector"),
        (LateVector("", GOOD), "vector.id"),
        (Update("x"), ""),
        (Update("x", content="x" * (limits.MAX_CONTENT_BYTES + 1)), "update.content"),
        (Update("x", vector=GOOD, clear_vector=True), "update.clear_vector"),
        (Update("x", status=Status.FORGOTTEN), "update.status"),
        (Update("x", reason="x" * 257), "update.reason"),
        (Update("x", clear_fields=("topic", "attributes.a", "seq")), ""),
        (Update("x", clear_fields=("ts",)), "update.clear_fields"),
        (Update("x", clear_fields=("attributes.",)), "update.clear_fields"),
        (Update("x", clear_fields=("topic",) * 65), "update.clear_fields"),
    ],
    ids=lambda v: str(v)[:70],
)
def test_each_bound_of_an_item(item: WriteItem, field: str) -> None:
    assert _fields(item) == ({field} if field else set())


def test_all_violations_are_told_but_not_without_end() -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_write(WriteRequest(Namespace("", "a/b"), (NewMemory(),) * 100), 4)
    fields = [v.field for v in caught.value.violations]
    assert fields[:3] == ["namespace.tenant", "namespace.agent", "items[0].memory"]
    assert len(fields) == 32
    assert "101 more" in caught.value.message


def _query(**fields: Any) -> Mode:
    words = any(ch.isalnum() for ch in fields.get("text", ""))
    return check_query(QueryRequest(NS, **fields), 4, 200, words)[1]


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({"vectors": (GOOD,)}, Mode.VECTOR),
        ({"text": "tea"}, Mode.KEYWORD),
        ({"vectors": (GOOD,), "text": "tea"}, Mode.HYBRID),
        ({"vectors": (GOOD,), "text": "?"}, Mode.VECTOR),
        ({"ids": ("x",)}, Mode.BROWSE),
        ({"ids": ("x",), "mode": Mode.BROWSE}, Mode.BROWSE),
        ({"mode": Mode.BROWSE}, Mode.BROWSE),
        ({"vectors": (GOOD,), "text": "tea", "mode": Mode.VECTOR}, Mode.VECTOR),
    ],
    ids=str,
)
def test_the_mode_follows_from_what_is_given(fields: dict[str, Any], mode: Mode) -> None:
    assert _query(**fields) is mode


def test_a_wrong_dimension_has_a_reason_of_its_own() -> None:
    with pytest.raises(InvalidArgument) as caught:
        _query(vectors=(GOOD[:3],))
    assert caught.value.reason == "DIMENSION_MISMATCH"
    assert "expected 4" in caught.value.message


@pytest.mark.parametrize(
    ("fields", "accepted"),
    [
        ({}, False),
        ({"ids": ("x",)}, True),
        ({"ids": ("x",) * limits.MAX_FORGET_IDS}, True),
        ({"ids": ("x",) * (limits.MAX_FORGET_IDS + 1)}, False),
        ({"ids": ("x",), "factor": 0.0}, True),
        ({"ids": ("x",), "factor": 1.0}, False),
        ({"ids": ("x",), "factor": 9.0, "mode": ForgetMode.HARD}, True),
        ({"ids": ("x",), "reason": "x" * 257}, False),
        ({"ids": ("x",), "request_id": "x" * 129}, False),
    ],
    ids=lambda v: str(v)[:60],
)
def test_forget(fields: dict[str, Any], accepted: bool) -> None:
    request = ForgetRequest(NS, **fields)
    if accepted:
        assert check_forget(request) is None
    else:
        with pytest.raises(InvalidArgument):
            check_forget(request)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, 3e38, 1e-20, -2e-13, 2e-12])
@pytest.mark.parametrize("at", [0, 3])
def test_a_vector_among_others_is_judged_as_if_it_were_alone(bad: float, at: int) -> None:
    odd = np.array([bad, 0, 0, 0], np.float32)
    alone = Checker()
    alone.vector(f"items[{at}].memory.vector", odd, 4)
    items = [_memory(vector=GOOD) for _ in range(4)]
    items[at] = _memory(vector=odd)
    found = []
    try:
        check_write(WriteRequest(NS, tuple(items)), 4)
    except InvalidArgument as error:
        found = list(error.violations)
    assert found == alone.found
