"""Touches, recalls, decay and times."""

from __future__ import annotations

from typing import Any

import pytest

from tests.semantics.harness import DAY, HOUR, NS, START, World, vector

HALF = 45 * DAY


def _hit(world: World, id_text: str, **fields: Any) -> dict[str, Any]:
    hit = world.get(id_text, **fields)
    assert hit is not None
    return hit


def _effective(world: World, id_text: str, **fields: Any) -> float:
    found: float = _hit(world, id_text, **fields)["metadata"]["importance"]
    return found


def test_a_touch_only_raises_time_and_importance(world: World) -> None:
    kept = world.put(metadata={"importance": 0.6, "ts": START})
    world.write({"touch": {"id": kept, "ts": START - DAY, "importance": 0.1}})
    hit = _hit(world, kept)
    assert (hit["metadata"]["ts"], hit["importance_stored"]) == (START, pytest.approx(0.6))
    world.write({"touch": {"id": kept, "ts": START + DAY, "importance": 0.9}})
    hit = _hit(world, kept)
    assert (hit["metadata"]["ts"], hit["importance_stored"]) == (START + DAY, pytest.approx(0.9))
    assert (hit["version"], hit["recall_count"]) == (1, 0)


def test_seen_takes_the_time_of_arrival_and_used_leaves_it(world: World) -> None:
    seen, used = world.put(), world.put()
    world.clock.turn(HOUR)
    world.write({"touch": {"id": seen}}, {"touch": {"id": used, "kind": "USED"}})
    assert _hit(world, seen)["metadata"]["ts"] == START + HOUR
    assert _hit(world, used)["metadata"]["ts"] == START
    assert [_hit(world, i)["recall_count"] for i in (seen, used)] == [0, 1]


def test_an_update_may_lower_what_a_touch_cannot(world: World) -> None:
    kept = world.put(metadata={"importance": 0.6})
    world.write({"update": {"id": kept, "metadata": {"importance": 0.2, "ts": START - DAY}}})
    hit = _hit(world, kept)
    assert (hit["metadata"]["ts"], hit["importance_stored"]) == (START - DAY, pytest.approx(0.2))


def test_importance_halves_in_a_half_life_but_the_stored_one_stays(world: World) -> None:
    kept = world.put(metadata={"importance": 0.8}, ttl_ms=0)
    world.clock.turn(HALF)
    assert _effective(world, kept) == pytest.approx(0.4)
    assert _hit(world, kept)["importance_stored"] == pytest.approx(0.8)
    assert world.all(filters={"importance": {"gte": 0.79}}) == [kept]


@pytest.mark.parametrize("call", ["used", "rank"])
def test_a_recall_resets_the_clock_of_decay(world: World, call: str) -> None:
    kept = world.put(metadata={"importance": 0.8}, ttl_ms=0, vector=vector(1))
    world.clock.turn(HALF)
    if call == "used":
        world.write({"touch": {"id": kept, "kind": "USED"}})
    else:
        assert len(world.query(vector=vector(1), rank={})["items"]) == 1
        world.restart()  # recalls are flushed now and then, and when a node stops
    assert _effective(world, kept) == pytest.approx(0.8)
    assert _hit(world, kept)["recall_count"] == 1
    world.clock.turn(HALF)
    assert _effective(world, kept) == pytest.approx(0.4)


def test_nothing_but_rank_and_used_counts_as_a_recall(world: World) -> None:
    kept = world.put(summary="tea", metadata={"importance": 0.8}, ttl_ms=0, vector=vector(1))
    world.clock.turn(HALF)
    for fields in (
        {"vector": vector(1)},
        {"text": "tea"},
        {"vector": vector(1), "text": "tea", "include": {"explain": True, "content": True}},
        {"mode": "BROWSE"},
        {"ids": [kept]},
        {"vectors": [vector(1), vector(1)]},
    ):
        assert kept in str(world.query(**fields))
    world.write({"summary": "tea", "dedup_key": "k"}, {"touch": {"id": kept, "ts": START}})
    world.restart()
    assert _hit(world, kept)["recall_count"] == 0
    assert _effective(world, kept) == pytest.approx(0.4, rel=1e-4)


def test_rank_counts_only_what_it_selected(world: World) -> None:
    near = world.put(vector=vector(1), metadata={"importance": 0.9})
    far = world.put(vector=vector(1, 0.5), metadata={"importance": 0.1})
    assert world.ids(vector=vector(1), min_score=0.0, rank={"keep": 1}) == [near]
    world.restart()
    assert [_hit(world, i)["recall_count"] for i in (near, far)] == [1, 0]


def test_an_imported_memory_does_not_arrive_decayed(world: World) -> None:
    kept = world.put(metadata={"importance": 0.8, "ts": START - 10 * HALF}, ttl_ms=0)
    assert _effective(world, kept) == pytest.approx(0.8)


def test_a_time_in_the_future_gives_age_zero(world: World) -> None:
    kept = world.put(metadata={"importance": 0.8, "ts": START + HALF}, vector=vector(1))
    (hit,) = world.query(vector=vector(1), rank={})["items"]
    assert hit["id"] == kept
    assert hit["metadata"]["importance"] == pytest.approx(0.8)
    assert hit["score"] == pytest.approx(0.6 + 0.25 * 0.8 + 0.15)


def test_as_of_leaves_out_what_came_later_and_decays_to_that_time(world: World) -> None:
    old = world.put(summary="tea", metadata={"importance": 0.8, "ts": START}, ttl_ms=0)
    new = world.put(summary="tea", metadata={"ts": START + DAY}, ttl_ms=0)
    world.clock.turn(2 * HALF)
    for fields in ({"mode": "BROWSE"}, {"text": "tea"}):
        assert world.ids(**fields, as_of=START + DAY - 1) == [old]
        assert set(world.ids(**fields, as_of=START + DAY)) == {old, new}
    assert _hit(world, old, as_of=START + HALF)["metadata"]["importance"] == pytest.approx(0.4)
    assert world.get(old, as_of=START - 5) is None


def test_as_of_does_not_bring_back_what_has_expired_since(world: World) -> None:
    world.put(ttl_ms=HOUR)
    world.clock.turn(HOUR)
    assert world.all(as_of=START) == []


def test_a_clock_that_goes_back_brings_nothing_back(world: World) -> None:
    world.put(ttl_ms=HOUR)
    world.clock.turn(HOUR)
    world.write({"summary": "an entry at this time"})
    assert len(world.all()) == 1
    world.clock.turn(-HOUR)
    assert len(world.all()) == 1
    late = world.put(summary="later")
    assert _hit(world, late)["created_at"] == START + HOUR


def test_decay_multiplies_what_is_stored(world: World) -> None:
    kept = world.put(metadata={"importance": 0.8})
    answer = world.forget(ids=[kept])
    assert (answer["matched"], answer["changed"], answer["ids"]) == (1, 1, [kept])
    assert _hit(world, kept)["importance_stored"] == pytest.approx(0.4)
    assert world.all() == [kept]
    zero = world.put(metadata={"importance": 0.0})
    answer = world.forget(ids=[zero])
    assert (answer["matched"], answer["changed"]) == (1, 0)


def test_importance_defaults_to_one_half_and_comes_back_as_float32(world: World) -> None:
    assert _hit(world, world.put())["importance_stored"] == 0.5
    kept = world.put(metadata={"importance": 0.3})
    assert world.all(filters={"importance": {"lte": 0.31, "gte": 0.29}}) == [kept]


def test_the_partition_of_a_reader_is_asked_by_rank_alone(world: World) -> None:
    """Recalls of one agent are not counted for another."""
    mine = world.put(vector=vector(1))
    theirs = world.put(("acme", "other"), vector=vector(1))
    world.query(NS, vector=vector(1), rank={})
    world.restart()
    assert _hit(world, mine)["recall_count"] == 1
    other = world.get(theirs, ns=("acme", "other"))
    assert other is not None and other["recall_count"] == 0
