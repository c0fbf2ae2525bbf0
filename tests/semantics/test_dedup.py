"""A dedup_key stores one memory, whatever happens around it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tests.semantics.harness import HOUR, World

ITEM = {"dedup_key": "s1:1:abcd", "summary": "Ann likes tea"}


def test_a_repeat_in_the_same_batch_stores_nothing_twice(world: World) -> None:
    first, second, third = world.write(ITEM, {**ITEM, "summary": "other text"}, ITEM)
    assert first["outcome"] == "CREATED"
    assert [second["outcome"], third["outcome"]] == ["EXISTS", "EXISTS"]
    assert first["id"] == second["id"] == third["id"]
    assert world.all() == [first["id"]]
    hit = world.get(first["id"])
    assert hit is not None and hit["summary"] == "Ann likes tea"


def test_sixteen_threads_with_one_key_store_one_memory(world: World) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _n: world.write(ITEM)[0], range(64)))
    assert [a["outcome"] for a in answers].count("CREATED") == 1
    assert len({a["id"] for a in answers}) == 1
    assert len(world.all()) == 1


def test_a_repeat_after_a_restart_finds_the_first(world: World) -> None:
    (first,) = world.write(ITEM)
    world.restart()
    (again,) = world.write(ITEM)
    assert (again["outcome"], again["id"]) == ("EXISTS", first["id"])


def test_a_repeat_after_sealing_and_compaction_finds_the_first(world: World) -> None:
    (first,) = world.write(ITEM)
    world.purge()
    (again,) = world.write(ITEM)
    assert (again["outcome"], again["id"]) == ("EXISTS", first["id"])


def test_a_repeat_of_a_forgotten_memory_says_so_and_brings_nothing_back(world: World) -> None:
    (first,) = world.write(ITEM)
    world.forget(ids=[first["id"]], mode="HARD")
    for _ in range(2):
        (again,) = world.write(ITEM)
        assert (again["outcome"], again["status"]) == ("EXISTS", "FORGOTTEN")
        assert again["id"] == first["id"]
        world.purge()
    assert world.all() == []


def test_a_repeat_of_an_archived_memory_says_so(world: World) -> None:
    (first,) = world.write({**ITEM, "status": "ARCHIVED"})
    assert first["status"] == "ARCHIVED"
    (again,) = world.write(ITEM)
    assert (again["outcome"], again["status"], again["id"]) == ("EXISTS", "ARCHIVED", first["id"])


def test_a_repeat_of_an_expired_memory_says_so_before_and_after_the_sweep(world: World) -> None:
    world.write({**ITEM, "ttl_ms": HOUR})
    world.clock.turn(HOUR)
    assert world.write(ITEM)[0]["status"] == "EXPIRED"
    world.node.sweep()
    assert world.write(ITEM)[0]["status"] == "EXPIRED"


def test_a_repeat_tells_the_version_of_today(world: World) -> None:
    (first,) = world.write(ITEM)
    world.write({"update": {"id": first["id"], "summary": "Ann likes coffee"}})
    assert world.write(ITEM)[0]["version"] == 2


def test_equal_keys_of_other_tenants_and_agents_never_collide(world: World) -> None:
    places = [("acme", "a"), ("acme", "b"), ("acme-corp", "a"), ("acm", "ea"), ("a", "cmea")]
    found = [world.write(ITEM, ns=place)[0] for place in places]
    assert [r["outcome"] for r in found] == ["CREATED"] * len(places)
    assert len({r["id"] for r in found}) == len(places)
    for place, result in zip(places, found, strict=True):
        assert world.all(place) == [result["id"]]


def test_an_equal_key_of_another_session_is_the_same_memory(world: World) -> None:
    (first,) = world.write(ITEM, ns=("acme", "helper", "s1"))
    (second,) = world.write(ITEM, ns=("acme", "helper", "s2"))
    assert (second["outcome"], second["id"]) == ("EXISTS", first["id"])


def test_memories_without_a_key_are_all_stored(world: World) -> None:
    results = world.write(*[{"summary": "the same"}] * 3)
    assert [r["outcome"] for r in results] == ["CREATED"] * 3
    assert len(world.all()) == 3
