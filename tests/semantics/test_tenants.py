"""Whole tenants: list, export, erase."""

from __future__ import annotations

import json

import pytest

from memsvc.domain.errors import Code
from memsvc.domain.types import Caller
from tests.semantics.harness import HOUR, World, error_of, vector

PLACES = [("acme", "a"), ("acme", "b"), ("acme-corp", "a"), ("zoo", "a")]


def _fill(world: World) -> dict[tuple[str, str], list[str]]:
    return {
        place: [
            world.put(place, summary=f"{place} {n}", vector=vector(1, n)) for n in range(number)
        ]
        for number, place in enumerate(PLACES, 1)
    }


def test_the_list_has_every_agent_with_counts_page_by_page(world: World) -> None:
    _fill(world)
    facts, token = world.admin.list_tenants("", 0, "")
    assert [(f.tenant, f.agent, f.memories, f.active) for f in facts] == [
        (*place, n, n) for n, place in enumerate(PLACES, 1)
    ]
    assert token == ""
    assert all(f.bytes > 0 for f in facts)
    paged, token = [], ""
    while True:
        page, token = world.admin.list_tenants("", 2, token)
        paged += page
        if not token:
            break
    assert paged == facts
    only, _ = world.admin.list_tenants("acme", 0, "")
    assert {(f.tenant, f.agent) for f in only} == set(PLACES[:2])


def test_counts_follow_what_happens(world: World) -> None:
    ids = [world.put(ttl_ms=HOUR), world.put(ttl_ms=0), world.put(status="REVIEW", ttl_ms=0)]
    world.forget(ids=ids[1:2], mode="HARD")
    (facts,), _ = world.admin.list_tenants("acme", 0, "")
    assert (facts.memories, facts.active) == (2, 1)
    world.clock.turn(HOUR)
    world.node.sweep()
    (facts,), _ = world.admin.list_tenants("acme", 0, "")
    assert (facts.memories, facts.active) == (2, 0)


@pytest.mark.parametrize("token", ["xyz", "é"])
def test_a_foreign_token_is_refused(world: World, token: str) -> None:
    assert error_of(lambda: world.admin.list_tenants("", 1, token)).code is Code.INVALID_ARGUMENT


def test_an_export_holds_everything_of_the_tenant_and_nothing_of_others(world: World) -> None:
    filled = _fill(world)
    kept = filled["acme", "a"][0]
    world.write({"update": {"id": kept, "summary": "second version"}}, ns=("acme", "a"))
    hidden = world.put(("acme", "b"), summary="hidden", status="ARCHIVED")
    world.seal()
    count, items = world.admin.export_tenant("acme", "", True)
    found = {str(item["id"]): item for item in items}
    assert set(found) == {*filled["acme", "a"], *filled["acme", "b"], hidden}
    assert count == len(found)
    assert found[kept]["summary"] == "second version"
    assert found[kept]["vector"] == vector(1)
    assert found[hidden]["status"] == "ARCHIVED"
    json.dumps(list(found.values()), allow_nan=False)
    count, items = world.admin.export_tenant("acme", "a", False)
    assert [(str(i["id"]), "vector" in i) for i in items] == [(kept, False)]


def test_erasing_a_tenant_leaves_the_others_and_no_byte_in_any_file(world: World) -> None:
    filled = _fill(world)
    world.put(("acme", "a"), summary="the quokka secret", dedup_key="quokka secret key")
    world.put(("acme", "b"), summary="the quokka secret", status="ARCHIVED")
    world.seal()
    erased, position = world.admin.erase_tenant(Caller("root"), "acme", "", True, "")
    assert (erased, bool(position)) == (5, True)
    assert world.all(("acme", "b")) != []
    erased, _ = world.admin.erase_tenant(Caller("root"), "acme", "", False, "asked by letter")
    assert erased == 5
    assert world.all(("acme", "a")) == world.all(("acme", "b")) == []
    for place in PLACES[2:]:
        assert set(world.all(place)) == set(filled[place])
    world.purge()
    files = [p for p in world.folder.rglob("*") if p.is_file()]
    assert not [p for p in files if b"quokka secret" in p.read_bytes()]
    for place in PLACES[2:]:
        assert set(world.ids(place, vector=vector(1), min_score=-1.0)) == set(filled[place])


def test_erasing_one_agent_leaves_the_tenants_other_agents(world: World) -> None:
    filled = _fill(world)
    assert world.admin.erase_tenant(Caller("root"), "acme", "a", False, "")[0] == 1
    assert world.all(("acme", "a")) == []
    assert set(world.all(("acme", "b"))) == set(filled["acme", "b"])


def test_whole_tenant_calls_need_a_tenant(world: World) -> None:
    for call in (
        lambda: world.admin.export_tenant("", "", False),
        lambda: world.admin.erase_tenant(Caller("root"), "", "", False, ""),
    ):
        assert error_of(call).code is Code.INVALID_ARGUMENT


def test_the_life_of_a_memory_can_be_read_after_it_is_gone(world: World) -> None:
    gone = world.put(summary="tea")
    world.write({"update": {"id": gone, "summary": "coffee", "reason": "corrected"}})
    world.forget(ids=[gone], mode="HARD", reason="asked")
    world.purge()
    life = world.admin.inspect("", "", False, 0, gone)["memory"]
    assert isinstance(life, list)
    assert [(e["action"], e["before"], e["after"], e["reason"]) for e in life] == [
        ("PUT", "UNSPECIFIED", "ACTIVE", ""),
        ("UPDATE", "ACTIVE", "ACTIVE", "corrected"),
        ("FORGET", "ACTIVE", "FORGOTTEN", "asked"),
    ]
    assert all(len(e["payload_hash"]) == 32 for e in life[:2])
