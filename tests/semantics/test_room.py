"""Limits of a store and of a tenant: writes are refused, Forget goes on, room comes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memsvc.domain.errors import Code
from memsvc.store.writer import disk_full
from tests.semantics.harness import DAY, World, error_of, vector

Make = Callable[..., World]

ITEM_BYTES = 600
LIMITS = [
    ({"index__max_elements": 3}, "STORE_FULL", "index.max_elements"),
    ({"limits__tenant_max_items": 3}, "QUOTA_ITEMS", "limits.tenant_max_items"),
    ({"storage__max_bytes": 4 * ITEM_BYTES}, "STORE_FULL", "storage.max_bytes"),
    ({"limits__tenant_max_bytes": 4 * ITEM_BYTES}, "QUOTA_BYTES", "limits.tenant_max_bytes"),
]


def _fill(world: World) -> list[str]:
    return [world.put(content="x" * 330, vector=vector(1)) for _ in range(3)]


@pytest.mark.parametrize(("settings", "reason", "key"), LIMITS, ids=lambda v: str(v)[:30])
def test_a_full_store_refuses_writes_with_a_hint_while_forget_makes_room(
    make_world: Make, settings: dict[str, object], reason: str, key: str
) -> None:
    world = make_world(**settings)
    ids = _fill(world)
    error = error_of(lambda: world.put(content="x" * 1_000, dedup_key="k"))
    assert (error.code, error.reason) == (Code.RESOURCE_EXHAUSTED, reason)
    assert key in error.hint and error.retry_after_ms
    assert set(world.all()) == set(ids)
    assert world.ids(vector=vector(1)) == ids
    world.forget(ids=ids[:2], mode="HARD")
    (again,) = world.write({"content": "x" * 1_000, "dedup_key": "k"})
    assert again["outcome"] == "CREATED"


@pytest.mark.parametrize(("settings", "reason", "key"), LIMITS[2:], ids=lambda v: str(v)[:30])
def test_updates_and_late_vectors_cannot_grow_a_full_store(
    make_world: Make, settings: dict[str, object], reason: str, key: str
) -> None:
    world = make_world(**settings)
    ids = _fill(world)
    for item in (
        {"update": {"id": ids[0], "content": "y" * 2_000}},
        {"update": {"id": ids[0], "summary": "y" * 2_000}},
    ):
        error = error_of(lambda item=item: world.write(item))
        assert (error.reason, key in error.hint) == (reason, True)
    # What adds nothing goes on.
    world.write({"touch": {"id": ids[0]}}, {"update": {"id": ids[0], "status": "ARCHIVED"}})


def test_a_full_tenant_does_not_stop_another(make_world: Make) -> None:
    world = make_world(limits__tenant_max_items=1)
    world.put(("acme", "a"))
    assert error_of(lambda: world.put(("acme", "b"))).reason == "QUOTA_ITEMS"
    world.put(("other", "a"))


def test_expired_memories_give_their_bytes_back_when_they_are_erased(make_world: Make) -> None:
    world = make_world(storage__max_bytes=1_000)
    world.put(content="x" * 600, ttl_ms=DAY)
    assert error_of(lambda: world.put(content="x" * 600)).reason == "STORE_FULL"
    world.clock.turn(2 * DAY)
    world.node.sweep()
    world.clock.turn(2 * DAY)
    world.node.sweep()
    world.put(content="x" * 600)


def test_a_batch_that_would_not_fit_whole_stores_nothing(make_world: Make) -> None:
    world = make_world(index__max_elements=3)
    assert error_of(lambda: world.write(*[{"summary": "x"}] * 4)).reason == "STORE_FULL"
    assert world.all() == []
    assert len(world.write(*[{"summary": "x"}] * 3)) == 3


def test_a_full_disk_refuses_writes_and_lets_forget_and_queries_go_on(world: World) -> None:
    kept, gone = world.put(), world.put()
    world.node.reserve.give_up()
    error = error_of(world.put)
    assert (error.code, error.reason) == (Code.RESOURCE_EXHAUSTED, "DISK_FULL")
    assert error.reason == disk_full().reason and error.retry_after_ms
    assert not world.node.health().ready or world.node.health().reasons
    assert world.forget(ids=[gone], mode="HARD")["changed"] == 1
    assert world.all() == [kept]
    world.node.reserve.check()
    world.put()


def test_a_full_queue_refuses_at_once_and_keeps_what_it_has_taken(make_world: Make) -> None:
    world = make_world(storage__write_queue_max=1)
    error = error_of(lambda: world.write({"summary": "x"}, {"summary": "y"}))
    assert (error.code, error.reason) == (Code.RESOURCE_EXHAUSTED, "WRITE_QUEUE_FULL")
    assert error.retry_after_ms and error.hint
    world.put()
