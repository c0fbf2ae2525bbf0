"""How long a memory lives: per item, by default, for ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.semantics.harness import DAY, HOUR, START, World, vector

Make = Callable[..., World]


def test_an_item_lives_as_long_as_it_says_and_not_a_millisecond_more(world: World) -> None:
    short = world.put(summary="tea", ttl_ms=HOUR, vector=vector(1))
    long = world.put(summary="tea", ttl_ms=2 * HOUR, vector=vector(1))
    world.seal()
    world.clock.turn(HOUR - 1)
    assert set(world.all()) == {short, long}
    world.clock.turn(1)
    for swept in (False, True):
        if swept:
            world.node.sweep()
        for fields in ({"vector": vector(1)}, {"text": "tea"}, {"mode": "BROWSE"}):
            assert world.ids(**fields) == [long]
        assert world.get(short) is None


def test_without_a_lifetime_the_default_counts(make_world: Make) -> None:
    world = make_world(lifecycle__default_ttl_days=2)
    kept = world.put()
    forever = world.put(ttl_ms=0)
    hit = world.get(kept)
    assert hit is not None and hit["expires_at"] == START + 2 * DAY
    world.clock.turn(2 * DAY)
    assert world.all() == [forever]


def test_a_default_of_zero_and_a_lifetime_of_zero_are_for_ever(make_world: Make) -> None:
    world = make_world(lifecycle__default_ttl_days=0)
    kept, other = world.put(), world.put(ttl_ms=0)
    world.clock.turn(36_500 * DAY)
    world.node.sweep()
    assert set(world.all()) == {kept, other}


def test_an_update_counts_the_new_lifetime_from_now(world: World) -> None:
    kept = world.put(ttl_ms=2 * HOUR)
    world.clock.turn(HOUR)
    world.write({"update": {"id": kept, "ttl_ms": 2 * HOUR}})
    world.clock.turn(2 * HOUR - 1)
    assert world.all() == [kept]
    world.write({"update": {"id": kept, "ttl_ms": 0}})
    world.clock.turn(9 * DAY)
    world.node.sweep()
    assert world.all() == [kept]


def test_a_longer_lifetime_is_not_cut_short_by_the_old_one(world: World) -> None:
    kept = world.put(ttl_ms=HOUR)
    world.write({"update": {"id": kept, "summary": "new text", "ttl_ms": 9 * HOUR}})
    world.clock.turn(2 * HOUR)
    world.node.sweep()
    assert world.all() == [kept]


@pytest.mark.parametrize("change", [{"touch": {}}, {"update": {"summary": "x"}}])
def test_touches_and_updates_do_not_prolong_a_life(
    world: World, change: dict[str, dict[str, str]]
) -> None:
    kept = world.put(ttl_ms=HOUR)
    ((kind, fields),) = change.items()
    world.write({kind: {"id": kept, **fields}})
    world.clock.turn(HOUR)
    assert world.all() == []


def test_what_expired_is_erased_on_schedule_and_its_space_regained(world: World) -> None:
    world.put(summary="quokka secret", ttl_ms=HOUR, vector=vector(1))
    world.seal()
    world.clock.turn(HOUR)
    world.node.sweep()
    with world.node.store.read() as snapshot:
        assert snapshot.accounted_bytes > 0
    world.clock.turn(12 * HOUR)
    world.purge()
    with world.node.store.read() as snapshot:
        assert snapshot.accounted_bytes == 0
        assert snapshot.count("texts") == snapshot.count("vectors") == 0
    files = [p for p in world.folder.rglob("*") if p.is_file()]
    assert not [p for p in files if b"quokka secret" in p.read_bytes()]


def test_many_expire_at_once_in_one_call_of_the_sweeper(world: World) -> None:
    for _ in range(5):
        world.write(*[{"summary": "x", "ttl_ms": HOUR}] * 900)
    world.clock.turn(HOUR)
    world.node.sweep()
    with world.node.store.read() as snapshot:
        partition = snapshot.partition("acme", "helper")
        assert partition is not None and (partition.active, partition.memories) == (0, 4_500)
        assert snapshot.count("expiry") == 0
