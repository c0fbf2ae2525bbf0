"""One state machine in every path: status × expiry × way of access × review right."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memsvc.domain.errors import Code, MemsvcError
from memsvc.domain.types import Caller
from memsvc.http import models
from memsvc.service.api import Control
from tests.semantics.harness import HOUR, NS, READER, REVIEWER, World, error_of, vector

STATES = ("ACTIVE", "REVIEW", "ARCHIVED", "SUPERSEDED", "REJECTED", "LATE", "EXPIRED", "FORGOTTEN")
"""LATE: past its time, not yet swept."""
LAYOUTS = ("tail", "sealed", "sealed before")
WORDS = "quokka sanctuary"


def _made(world: World, state: str, layout: str) -> str:
    """A memory in a state; ``sealed before`` it got there, or after."""
    initial = state if state in ("ACTIVE", "REVIEW", "ARCHIVED") else "ACTIVE"
    id_text = world.put(
        summary=WORDS,
        vector=vector(1),
        metadata={"topic": "food", "attributes": {"free": "yes"}},
        ttl_ms=HOUR if state in ("LATE", "EXPIRED") else 0,
        status="ACTIVE" if layout == "sealed before" else initial,
    )
    if layout == "sealed before":
        world.seal()
        if initial != "ACTIVE":
            world.write({"update": {"id": id_text, "status": initial}})
    if state in ("SUPERSEDED", "REJECTED"):
        world.write({"update": {"id": id_text, "status": state}})
    if state in ("LATE", "EXPIRED"):
        world.clock.turn(HOUR)
    if state == "EXPIRED":
        world.node.sweep()
    if state == "FORGOTTEN":
        world.forget(ids=[id_text], mode="HARD")
    if layout == "sealed":
        world.seal()
    return id_text


def _found(world: World, caller: Caller, **fields: object) -> list[str]:
    request = models.read_query({"namespace": list(NS), **fields})
    answer = world.node.memory.query(caller, request, Control())
    assert answer.degraded.level == 0
    return [hit.id for hits in answer.lists for hit in hits]


def _reads(id_text: str) -> dict[str, dict[str, object]]:
    return {
        "vector": {"vector": vector(1)},
        "keyword": {"text": WORDS},
        "hybrid": {"vector": vector(1), "text": WORDS},
        "browse": {"mode": "BROWSE"},
        "ids": {"ids": [id_text]},
    }


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("state", STATES)
def test_only_active_memories_are_found_unless_a_reviewer_names_the_status(
    world: World, state: str, layout: str
) -> None:
    id_text = _made(world, state, layout)
    named = {"LATE": "EXPIRED"}.get(state, state)
    for path, fields in _reads(id_text).items():
        plain = [id_text] if state == "ACTIVE" else []
        for caller in (READER, REVIEWER):
            assert _found(world, caller, **fields) == plain, (path, caller.actor)
            by_column = {"filters": {"topic": "food"}}
            by_record = {"filters": {"attributes.free": "yes"}}
            assert _found(world, caller, **fields, **by_column) == plain, (path, caller.actor)
            assert _found(world, caller, **fields, **by_record) == plain, (path, caller.actor)
        asked = {**fields, "filters": {"status": named}}
        there = [] if state == "FORGOTTEN" else [id_text]
        assert _found(world, REVIEWER, **asked) == there, path
        if state == "ACTIVE":
            assert _found(world, READER, **asked) == there, path
        else:
            refused = error_of(lambda asked=asked: _found(world, READER, **asked))
            assert refused.code is Code.PERMISSION_DENIED, path
        others = {**fields, "filters": {"not": {"status": named}}}
        assert _found(world, REVIEWER, **others) == [], path


def _code(call: Callable[[], object]) -> str:
    try:
        call()
    except MemsvcError as error:
        return error.code.name
    return ""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("state", STATES)
def test_only_a_reviewer_may_change_what_is_not_active(
    world: World, state: str, layout: str
) -> None:
    id_text = _made(world, state, layout)
    for item in (
        {"touch": {"id": id_text}},
        {"vector": {"id": id_text, "vector": vector(0, 1)}},
        # Last, since the new lifetime brings back what was only past its time.
        {"update": {"id": id_text, "metadata": {"topic": "travel"}, "ttl_ms": 9 * HOUR}},
    ):
        request = models.read_write({"namespace": list(NS), "items": [item]})
        for caller in (READER, REVIEWER):
            code = _code(
                lambda request=request, caller=caller: world.node.memory.write(
                    caller, request, Control()
                )
            )
            allowed = state == "ACTIVE" or (caller is REVIEWER and state != "FORGOTTEN")
            assert code == ("" if allowed else "NOT_FOUND"), (item, caller.actor)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("state", STATES)
def test_decay_selects_what_is_visible_and_hard_whatever_is_stored(
    world: World, state: str, layout: str
) -> None:
    id_text = _made(world, state, layout)
    selections = ({"ids": [id_text]}, {"filters": {"attributes.free": "yes"}})
    for selection in selections:
        lowered = world.forget(**selection, mode="DECAY", validate_only=True)
        assert lowered["matched"] == int(state == "ACTIVE"), selection
        erased = world.forget(**selection, mode="HARD", validate_only=True)
        assert erased["matched"] == int(state != "FORGOTTEN"), selection
    world.forget(ids=[id_text], mode="HARD")
    for fields in _reads(id_text).values():
        assert _found(world, REVIEWER, **fields, filters={"status": {"exists": True}}) == []


def test_a_reviewer_needs_no_other_call_to_bring_an_archived_memory_back(world: World) -> None:
    id_text = world.put(summary=WORDS, status="ARCHIVED", vector=vector(1))
    world.seal()
    world.write({"update": {"id": id_text, "status": "ACTIVE"}})
    for path, fields in _reads(id_text).items():
        assert _found(world, READER, **fields) == [id_text], path


def test_an_expired_memory_comes_back_only_with_a_new_lifetime(world: World) -> None:
    id_text = _made(world, "EXPIRED", "tail")
    for status in ("ACTIVE", "REVIEW", "ARCHIVED"):
        back = {"update": {"id": id_text, "status": status}}
        assert _code(lambda back=back: world.write(back)) == "INVALID_ARGUMENT"
    world.write({"update": {"id": id_text, "status": "ACTIVE", "ttl_ms": HOUR}})
    assert world.all() == [id_text]
    world.clock.turn(HOUR)
    assert world.all() == []


def test_the_text_of_an_expired_memory_is_erased_also_when_it_was_edited_since(
    world: World,
) -> None:
    id_text = _made(world, "EXPIRED", "tail")
    world.write({"update": {"id": id_text, "summary": "edited by a reviewer"}})
    assert _found(world, REVIEWER, ids=[id_text], filters={"status": "EXPIRED"}) == [id_text]
    world.clock.turn(24 * HOUR)
    world.node.sweep()
    assert _found(world, REVIEWER, ids=[id_text], filters={"status": "EXPIRED"}) == []


def test_a_reader_may_not_change_a_status(world: World) -> None:
    id_text = world.put()
    request = models.read_write(
        {"namespace": list(NS), "items": [{"update": {"id": id_text, "status": "ARCHIVED"}}]}
    )
    code = _code(lambda: world.node.memory.write(READER, request, Control()))
    assert code == "PERMISSION_DENIED"
    assert world.all() == [id_text]
