"""All items of a Write or none; refusals tell nothing about other tenants."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from memsvc.domain.errors import Code
from memsvc.domain.types import Namespace, NewMemory, WriteRequest
from memsvc.service.api import Control
from tests.semantics.harness import NS, READER, World, error_of, vector


def test_a_version_mismatch_applies_nothing_of_the_batch(world: World) -> None:
    kept = world.put(summary="tea")
    error = error_of(
        lambda: world.write(
            {"summary": "new"},
            {"touch": {"id": kept, "importance": 1.0}},
            {"update": {"id": kept, "if_version": 2, "summary": "coffee"}},
        )
    )
    assert (error.code, error.reason) == (Code.ABORTED, "VERSION_MISMATCH")
    assert error.metadata["version"] == "1"
    assert "items[2]" in error.message
    assert world.all() == [kept]
    hit = world.get(kept)
    assert hit is not None
    assert (hit["summary"], hit["version"], hit["importance_stored"]) == ("tea", 1, 0.5)


@pytest.mark.parametrize(
    "bad",
    [
        {"summary": "  ", "content": "\n"},
        {"summary": "x", "vector": [1.0, 2.0]},
        {"summary": "x", "vector": vector(float("nan"))},
        {"summary": "x", "vector": vector(0.0)},
        {"summary": "x", "metadata": {"importance": 1.5}},
        {"summary": "x", "ttl_ms": -1},
        {"summary": "x", "status": "FORGOTTEN"},
        {"touch": {"id": "nothing"}},
        {"update": {"id": str(uuid.UUID(int=7)), "summary": "x"}},
        {"vector": {"id": str(uuid.UUID(int=7)), "vector": vector(1)}},
        {"update": {"id": "x", "clear_fields": ["importance"]}},
    ],
    ids=lambda bad: str(bad)[:50],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_item_refuses_the_whole_batch(
    world: World, bad: dict[str, Any], place: int
) -> None:
    items: list[dict[str, Any]] = [{"summary": "a", "dedup_key": "k"}, {"summary": "b"}]
    items.insert(place, bad)
    error = error_of(lambda: world.write(*items))
    assert error.code in (Code.INVALID_ARGUMENT, Code.NOT_FOUND)
    assert all(v.field.startswith(f"items[{place}]") for v in error.violations)
    assert world.all() == []
    # Nothing of it is left behind: the key is free.
    assert world.write({"summary": "a", "dedup_key": "k"})[0]["outcome"] == "CREATED"


def test_every_violation_of_a_batch_is_told_at_once(world: World) -> None:
    error = error_of(lambda: world.write({"summary": ""}, {"summary": "x", "vector": [1.0]}))
    assert [v.field for v in error.violations] == ["items[0].memory", "items[1].memory.vector"]
    assert error.reason == "DIMENSION_MISMATCH"


def test_the_id_of_another_tenant_looks_like_an_unknown_one(world: World) -> None:
    theirs = world.put(ns=("other", "helper"), summary="secret", vector=vector(1))
    unknown = str(uuid.UUID(int=12345))
    for item in (
        lambda i: {"touch": {"id": i}},
        lambda i: {"update": {"id": i, "summary": "x"}},
        lambda i: {"update": {"id": i, "if_version": 9, "status": "ARCHIVED"}},
        lambda i: {"vector": {"id": i, "vector": vector(1)}},
    ):
        errors = [error_of(lambda i=i, item=item: world.write(item(i))) for i in (theirs, unknown)]
        told = [(e.code, e.reason, e.message, e.hint, e.violations, e.metadata) for e in errors]
        assert told[0] == told[1]
        assert errors[0].code is Code.NOT_FOUND
    assert world.ids(ids=[theirs, unknown]) == []
    for mode in ("HARD", "DECAY"):
        answers = [world.forget(ids=[i], mode=mode) for i in (theirs, unknown)]
        assert answers[0] == answers[1]
        assert answers[0]["matched"] == 0
    assert world.get(theirs, ns=("other", "helper")) is not None


def test_the_id_of_another_agent_of_the_tenant_is_not_found(world: World) -> None:
    theirs = world.put(ns=("acme", "other"))
    assert error_of(lambda: world.write({"touch": {"id": theirs}})).code is Code.NOT_FOUND


def test_a_forgotten_memory_is_not_found_by_any_change(world: World) -> None:
    gone = world.put(vector=vector(1))
    world.forget(ids=[gone], mode="HARD")
    for item in (
        {"touch": {"id": gone}},
        {"update": {"id": gone, "status": "ACTIVE"}},
        {"vector": {"id": gone, "vector": vector(1)}},
    ):
        assert error_of(lambda item=item: world.write(item)).code is Code.NOT_FOUND


def test_items_of_a_batch_see_the_items_before_them(world: World) -> None:
    kept = world.put(summary="tea", metadata={"importance": 0.2})
    results = world.write(
        {"update": {"id": kept, "if_version": 1, "summary": "coffee"}},
        {"vector": {"id": kept, "if_version": 2, "vector": vector(1)}},
        {"vector": {"id": kept, "if_version": 3, "vector": vector(0, 1)}},
        {"update": {"id": kept, "if_version": 4, "metadata": {"importance": 0.7}}},
        {"touch": {"id": kept, "importance": 0.4}},
    )
    assert [r["version"] for r in results] == [2, 3, 4, 5, 5]
    (hit,) = world.query(vector=vector(0, 1), min_score=0.99, include={"vector": True})["items"]
    assert (hit["id"], hit["summary"], hit["version"]) == (kept, "coffee", 5)
    assert hit["importance_stored"] == pytest.approx(0.7)
    assert hit["vector"] == vector(0, 1)


def test_an_update_that_changes_nothing_keeps_the_version(world: World) -> None:
    kept = world.put(summary="tea", metadata={"topic": "food", "attributes": {"n": 1}})
    for same in (
        {"summary": "tea"},
        {"metadata": {"topic": "food"}},
        {"metadata": {"attributes": {"n": 1}}},
        {"status": "ACTIVE"},
        {"clear_fields": ["seq", "attributes.other"]},
        {"clear_vector": True},
    ):
        (result,) = world.write({"update": {"id": kept, **same}})
        assert (result["outcome"], result["version"]) == ("UNCHANGED", 1), same


def test_an_update_may_not_leave_a_memory_without_text(world: World) -> None:
    kept = world.put(summary="", content="tea")
    error = error_of(lambda: world.write({"update": {"id": kept, "content": ""}}))
    assert error.code is Code.INVALID_ARGUMENT
    assert world.ids(text="tea") == [kept]


def test_more_than_a_thousand_items_are_refused(world: World) -> None:
    error = error_of(lambda: world.write(*[{"summary": "x"}] * 1_001))
    assert error.violations[0].field == "items"
    assert error_of(world.write).code is Code.INVALID_ARGUMENT


def test_an_unknown_embedding_is_a_failed_precondition(world: World) -> None:
    for call in (
        lambda: world.write({"summary": "x"}, embedding="other-model"),
        lambda: world.query(vector=vector(1), embedding="other-model"),
    ):
        error = error_of(call)
        assert (error.code, error.reason) == (Code.FAILED_PRECONDITION, "EMBEDDING_UNKNOWN")


def test_a_caller_that_gave_up_before_the_write_began_has_written_nothing(world: World) -> None:
    request = WriteRequest(Namespace(*NS), (NewMemory(summary="tea"),))
    error = error_of(lambda: world.node.memory.write(READER, request, Control(deadline=0.0)))
    assert error.code is Code.DEADLINE_EXCEEDED
    gone = Control(cancelled=lambda: True)
    assert error_of(lambda: world.node.memory.write(READER, request, gone)).code is Code.CANCELLED
    assert world.all() == []
