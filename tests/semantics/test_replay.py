"""The log is the database: applying it to an empty store gives the same tables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.semantics.harness import DAY, HOUR, World, vector
from tests.semantics.invariants import check_replay, check_store


def test_a_late_vector_is_counted_once(world: World) -> None:
    kept = world.put(summary="tea")
    world.write({"vector": {"id": kept, "vector": vector(1)}})
    check_store(world.node)
    check_replay(world.node, world.folder / "replay")


def test_a_new_version_of_an_erased_row_is_not_erased(world: World) -> None:
    kept = world.put(summary="tea", ttl_ms=0)
    world.write({"update": {"id": kept, "summary": "coffee"}})
    world.clock.turn(8 * DAY)
    world.node.sweep()
    check_store(world.node)
    check_replay(world.node, world.folder / "replay")


def test_every_kind_of_entry(world: World) -> None:
    ids = [world.put(summary=f"m{n}", ttl_ms=HOUR * n, dedup_key=f"k{n}") for n in range(6)]
    world.write(
        {"touch": {"id": ids[0], "kind": "USED"}},
        {"update": {"id": ids[0], "summary": "new", "metadata": {"topic": "food"}}},
        {"vector": {"id": ids[0], "vector": vector(1)}},
        {"vector": {"id": ids[0], "vector": vector(2)}},
        request_id="r1",
    )
    world.query(vector=vector(1), rank={})
    world.forget(ids=ids[2:3], mode="HARD", request_id="r2")
    world.forget(filters={"session": "s1"}, factor=0.3)
    world.restart()
    world.clock.turn(2 * HOUR)
    world.node.sweep()
    world.seal()
    world.clock.turn(30 * DAY)
    world.purge()
    world.put(("other", "agent"), summary="x")
    check_store(world.node)
    check_replay(world.node, world.folder / "replay")


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "in a process"])
def test_the_database_is_the_same_after_compaction(
    make_world: Callable[..., World], inline: bool
) -> None:
    world = make_world(inline=inline)
    kept = world.put(summary="tea", vector=vector(1))
    world.forget(ids=[world.put(summary="quokka secret")], mode="HARD")
    before = world.admin.inspect("acme", "helper", False, 0, "")
    world.purge()
    after = world.admin.inspect("acme", "helper", False, 0, "")
    for name in ("position", "digest", "memories", "accounted_bytes", "generations"):
        assert after[name] == before[name]
    assert after["dirty_since"] == 0
    assert b"quokka secret" not in (world.folder / "store" / "data.mdb").read_bytes()
    assert world.ids(vector=vector(1)) == world.ids(text="tea") == [kept]
    check_store(world.node)
    check_replay(world.node, world.folder / "replay")
