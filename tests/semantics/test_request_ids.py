"""A request_id is answered once, and remembered for 24 hours."""

from __future__ import annotations

import pytest

from memsvc.domain.errors import Code
from tests.semantics.harness import DAY, NS, World, error_of


def _stored(world: World, id_text: str) -> float:
    hit = world.get(id_text)
    assert hit is not None
    found: float = hit["importance_stored"]
    return found


def test_a_repeated_write_returns_the_first_answer_and_stores_nothing(world: World) -> None:
    first = world.memory.write(list(NS), [{"summary": "tea"}], request_id="r1")
    again = world.memory.write(list(NS), [{"summary": "tea"}], request_id="r1")
    assert again == {**first, "replayed": True}
    assert not first["replayed"]
    assert len(world.all()) == 1


def test_a_retried_decay_does_not_multiply_twice(world: World) -> None:
    kept = world.put(metadata={"importance": 0.8})
    first = world.forget(ids=[kept], factor=0.5, request_id="r1")
    again = world.forget(ids=[kept], factor=0.5, request_id="r1")
    assert again == {**first, "replayed": True}
    assert _stored(world, kept) == pytest.approx(0.4)


def test_a_repeated_hard_forget_tells_what_the_first_did(world: World) -> None:
    gone = world.put()
    first = world.forget(ids=[gone], mode="HARD", request_id="r1")
    assert (first["matched"], first["changed"]) == (1, 1)
    assert world.forget(ids=[gone], mode="HARD", request_id="r1") == {**first, "replayed": True}


def test_the_same_id_with_another_body_is_refused(world: World) -> None:
    world.write({"summary": "tea"}, request_id="r1")
    error = error_of(lambda: world.write({"summary": "coffee"}, request_id="r1"))
    assert (error.code, error.reason) == (Code.INVALID_ARGUMENT, "REQUEST_ID_REUSED")
    assert [v.field for v in error.violations] == ["request_id"]
    kept = world.put()
    world.forget(ids=[kept], factor=0.5, request_id="r1")
    error = error_of(lambda: world.forget(ids=[kept], factor=0.6, request_id="r1"))
    assert error.reason == "REQUEST_ID_REUSED"


def test_one_id_serves_write_and_forget_and_each_namespace_apart(world: World) -> None:
    kept = world.put(metadata={"importance": 0.8})
    world.write({"summary": "tea"}, request_id="r1")
    assert not world.forget(ids=[kept], request_id="r1")["replayed"]
    other = world.memory.write(["acme", "other"], [{"summary": "coffee"}], request_id="r1")
    assert not other["replayed"]


def test_it_is_remembered_after_a_restart_and_a_compaction(world: World) -> None:
    first = world.memory.write(list(NS), [{"summary": "tea"}], request_id="r1")
    world.restart()
    world.purge()
    again = world.memory.write(list(NS), [{"summary": "tea"}], request_id="r1")
    assert again == {**first, "replayed": True}


@pytest.mark.parametrize("swept", [False, True])
def test_it_is_forgotten_after_24_hours(world: World, swept: bool) -> None:
    world.write({"summary": "tea"}, request_id="r1")
    world.clock.turn(DAY - 1)
    assert world.memory.write(list(NS), [{"summary": "tea"}], request_id="r1")["replayed"]
    world.clock.turn(1)
    if swept:
        world.node.sweep()
    assert not world.memory.write(list(NS), [{"summary": "tea"}], request_id="r1")["replayed"]
    assert len(world.all()) == 2


def test_an_id_used_again_after_24_hours_is_not_swept_with_its_first_use(world: World) -> None:
    kept = world.put(metadata={"importance": 0.8})
    world.forget(ids=[kept], request_id="r1")
    world.clock.turn(DAY)
    world.forget(ids=[kept], request_id="r1")
    world.node.sweep()
    assert world.forget(ids=[kept], request_id="r1")["replayed"]
    assert _stored(world, kept) == pytest.approx(0.2)


def test_a_refused_write_is_not_remembered(world: World) -> None:
    bad = {"touch": {"id": "nothing"}}
    assert error_of(lambda: world.write(bad, request_id="r1")).code is Code.NOT_FOUND
    assert world.write({"summary": "tea"}, request_id="r1")[0]["outcome"] == "CREATED"


def test_a_preview_is_neither_remembered_nor_answered_from_memory(world: World) -> None:
    kept = world.put(metadata={"importance": 0.8})
    preview = world.forget(ids=[kept], validate_only=True, request_id="r1")
    assert (preview["matched"], preview["changed"], preview["replayed"]) == (1, 0, False)
    assert not world.forget(ids=[kept], request_id="r1")["replayed"]
    assert _stored(world, kept) == pytest.approx(0.4)


def test_a_forget_that_matched_nothing_is_remembered_too(world: World) -> None:
    selection = {"filters": {"topic": "food"}, "factor": 0.5, "request_id": "r1"}
    assert world.forget(**selection)["matched"] == 0
    late = world.put(metadata={"topic": "food", "importance": 0.8})
    assert world.forget(**selection)["matched"] == 0
    assert _stored(world, late) == pytest.approx(0.8)
