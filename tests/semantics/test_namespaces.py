"""Tenants and agents never see each other; sessions are no border."""

from __future__ import annotations

import pytest

from memsvc.domain.errors import Code
from tests.semantics.harness import World, error_of, vector


def test_acme_never_sees_acme_corp(world: World) -> None:
    places = [("acme", "a"), ("acme-corp", "a"), ("acme", "a-b"), ("acme", "ab"), ("ac", "mea")]
    ids = {
        p: world.put(p, summary="tea", vector=vector(1), metadata={"topic": "t"}) for p in places
    }
    for layout in ("tail", "sealed"):
        for place in places:
            mine = [ids[place]]
            assert world.all(place) == mine, layout
            assert world.ids(place, vector=vector(1)) == mine
            assert world.ids(place, text="tea") == mine
            assert world.ids(place, ids=list(ids.values())) == mine
            assert world.ids(place, filters={"topic": "t"}) == mine
        world.seal()
    world.forget(("acme", "a"), filters={"topic": "t"}, mode="HARD")
    assert [len(world.all(place)) for place in places] == [0, 1, 1, 1, 1]


@pytest.mark.parametrize("name", ["a/b", "/", "a\0b", "a\n", "\x7f", "", "x" * 201, "\ud800"])
@pytest.mark.parametrize("field", ["tenant", "agent"])
def test_a_name_with_a_separator_or_control_character_is_refused(
    world: World, name: str, field: str
) -> None:
    ns = (name, "a") if field == "tenant" else ("a", name)
    for call in (
        lambda: world.write({"summary": "x"}, ns=ns),
        lambda: world.query(ns, mode="BROWSE"),
        lambda: world.forget(ns, ids=["x"]),
    ):
        error = error_of(call)
        assert error.code is Code.INVALID_ARGUMENT
        assert f"namespace.{field}" in {v.field for v in error.violations}


def test_a_session_may_hold_colons_but_no_separator(world: World) -> None:
    world.put(("acme", "a", "chat:2024:1"))
    error = error_of(lambda: world.write({"summary": "x"}, ns=("acme", "a", "chat/1")))
    assert [v.field for v in error.violations] == ["namespace.session"]


def test_the_session_of_a_query_never_filters_but_the_filter_does(world: World) -> None:
    one = world.put(("acme", "a", "s1"), summary="tea", vector=vector(1))
    two = world.put(("acme", "a", "s2"), summary="tea", vector=vector(1))
    for fields in ({"vector": vector(1)}, {"text": "tea"}, {"mode": "BROWSE"}):
        for session in ("s1", "s2", "s3", ""):
            ns = ("acme", "a", session) if session else ("acme", "a")
            assert set(world.ids(ns, **fields)) == {one, two}
        assert world.ids(("acme", "a", "s1"), **fields, filters={"session": "s2"}) == [two]
    seen = world.get(one, ns=("acme", "a", "s2"))
    assert seen is not None and seen["session"] == "s1"
    world.forget(("acme", "a", "s2"), ids=[one], mode="HARD")
    assert world.all(("acme", "a")) == [two]


def test_another_tenants_writes_move_no_score(world: World) -> None:
    for text in ("tea with milk", "coffee", "tea and tea"):
        world.put(summary=text)
    before = [(h["id"], h["score"]) for h in world.query(text="tea milk")["items"]]
    for number in range(60):
        world.put(("other", "helper"), summary=f"tea milk {number}")
        world.put(("acme", "other"), summary=f"tea milk {number}")
    after = [(h["id"], h["score"]) for h in world.query(text="tea milk")["items"]]
    assert after == before


def test_an_empty_namespace_answers_empty(world: World) -> None:
    for fields in ({"vector": vector(1)}, {"text": "tea"}, {"mode": "BROWSE"}, {"ids": ["x"]}):
        assert world.query(("nobody", "here"), **fields)["items"] == []
    many = world.query(("nobody", "here"), vectors=[vector(1), vector(2)])
    assert many["results"] == [{"items": []}, {"items": []}]
    assert world.forget(("nobody", "here"), filters={"topic": "x"})["matched"] == 0
