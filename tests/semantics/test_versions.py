"""Late vectors and new versions, wherever the row lies: tail, segment, merged segment."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memsvc.domain.errors import Code
from tests.semantics.harness import DAY, World, error_of, vector

Layout = Callable[[World], None]


def _nothing(_world: World) -> None:
    pass


LAYOUTS: dict[str, Layout] = {"tail": _nothing, "sealed": World.seal, "merged": World.purge}


@pytest.fixture(params=[(a, b) for a in LAYOUTS for b in LAYOUTS], ids=lambda p: f"{p[0]}, {p[1]}")
def layouts(request: pytest.FixtureRequest) -> tuple[Layout, Layout]:
    """What happens to the rows before a change, and after it."""
    before, after = request.param
    return LAYOUTS[before], LAYOUTS[after]


def test_a_memory_without_a_vector_is_found_by_words_then_by_its_late_vector(
    world: World, layouts: tuple[Layout, Layout]
) -> None:
    before, after = layouts
    kept = world.put(summary="quokka")
    other = world.put(summary="other", vector=vector(0, 1))
    before(world)
    assert world.ids(text="quokka") == [kept]
    assert world.ids(vector=vector(1), min_score=-1.0) == [other]
    (hit,) = world.query(vector=vector(1), text="quokka")["items"]
    assert "similarity" not in hit
    (result,) = world.write({"vector": {"id": kept, "vector": vector(2)}})
    assert (result["outcome"], result["version"]) == ("VECTOR_ADDED", 2)
    for step in (_nothing, after, World.restart):
        step(world)
        assert world.ids(vector=vector(1)) == [kept]
        assert world.ids(text="quokka") == [kept]
        (hit,) = world.query(vector=vector(1), text="quokka", include={"vector": True})["items"]
        assert hit["similarity"] == pytest.approx(1.0)
        assert hit["vector"] == vector(2)


def test_an_identical_late_vector_changes_nothing_and_another_replaces_it(
    world: World, layouts: tuple[Layout, Layout]
) -> None:
    before, after = layouts
    kept = world.put(vector=vector(1))
    before(world)
    (same,) = world.write({"vector": {"id": kept, "vector": vector(1)}})
    assert (same["outcome"], same["version"]) == ("UNCHANGED", 1)
    (new,) = world.write({"vector": {"id": kept, "vector": vector(0, 1)}})
    assert (new["outcome"], new["version"]) == ("VECTOR_ADDED", 2)
    for step in (_nothing, after, World.restart):
        step(world)
        assert world.ids(vector=vector(0, 1)) == [kept]
        assert world.ids(vector=vector(1)) == []


def test_a_late_vector_for_an_outdated_version_is_refused(world: World) -> None:
    kept = world.put(summary="tea")
    world.write({"update": {"id": kept, "summary": "coffee"}})
    late = {"vector": {"id": kept, "if_version": 1, "vector": vector(1)}}
    assert error_of(lambda: world.write(late)).code is Code.ABORTED
    assert world.ids(vector=vector(1)) == []


def test_new_text_moves_its_words(world: World, layouts: tuple[Layout, Layout]) -> None:
    before, after = layouts
    kept = world.put(summary="Ann drinks quokka tea", vector=vector(1))
    before(world)
    world.write({"update": {"id": kept, "summary": "Ann drinks wombat tea"}})
    for step in (_nothing, after, World.restart):
        step(world)
        assert world.ids(text="quokka") == []
        assert world.ids(text="wombat") == [kept]
        assert world.ids(text="tea") == [kept]
        assert world.ids(vector=vector(1)) == [kept]
        assert world.all() == [kept]
        hit = world.get(kept)
        assert hit is not None and (hit["summary"], hit["version"]) == ("Ann drinks wombat tea", 2)


def test_clearing_the_vector_hides_it_from_search_by_meaning(
    world: World, layouts: tuple[Layout, Layout]
) -> None:
    before, after = layouts
    kept = world.put(summary="tea", vector=vector(1))
    before(world)
    world.write({"update": {"id": kept, "summary": "coffee", "clear_vector": True}})
    for step in (_nothing, after):
        step(world)
        assert world.ids(vector=vector(1), min_score=-1.0) == []
        assert world.ids(text="coffee") == [kept]
    world.write({"vector": {"id": kept, "vector": vector(0, 1)}})
    assert world.ids(vector=vector(0, 1)) == [kept]


def test_the_summary_taken_from_short_content_follows_new_content(world: World) -> None:
    kept = world.put(summary="", content="quokka")
    world.write({"update": {"id": kept, "content": "wombat"}})
    assert (world.ids(text="quokka"), world.ids(text="wombat")) == ([], [kept])
    hit = world.get(kept)
    assert hit is not None and hit["summary"] == "wombat"


def test_a_summary_of_its_own_stays_when_the_content_changes(world: World) -> None:
    kept = world.put(summary="quokka", content="long text")
    world.write({"update": {"id": kept, "content": "other text"}})
    hit = world.get(kept, include={"content": True})
    assert hit is not None and (hit["summary"], hit["content"]) == ("quokka", "other text")
    world.write({"update": {"id": kept, "summary": ""}})
    hit = world.get(kept)
    assert hit is not None and hit["summary"] == "other text"


def test_words_of_long_content_without_a_summary_are_all_found(world: World) -> None:
    kept = world.put(summary="", content="filler " * 100 + "quokka")
    for step in (_nothing, World.seal):
        step(world)
        assert world.ids(text="quokka") == [kept]
    hit = world.get(kept)
    assert hit is not None and len(hit["summary"]) == 240


def test_fields_are_set_and_cleared_one_by_one(
    world: World, layouts: tuple[Layout, Layout]
) -> None:
    before, after = layouts
    kept = world.put(
        metadata={"topic": "food", "role": "user", "seq": 3, "attributes": {"city": "Bern", "n": 1}}
    )
    before(world)
    change = {
        "metadata": {"role": "assistant", "attributes": {"n": 2, "list": ["a"]}},
        "clear_fields": ["topic", "seq", "attributes.city"],
    }
    world.write({"update": {"id": kept, **change}})
    for step in (_nothing, after):
        step(world)
        hit = world.get(kept)
        assert hit is not None
        metadata = hit["metadata"]
        assert metadata["attributes"] == {"n": 2, "list": ["a"]}
        assert metadata["role"] == "assistant"
        assert not {"topic", "seq"} & metadata.keys()
        assert world.all(filters={"attributes.city": {"exists": True}}) == []
        assert world.all(filters={"topic": "food"}) == []
        assert world.all(filters={"attributes.list": "a", "role": "assistant"}) == [kept]


def test_forget_hard_removes_older_versions_too(world: World) -> None:
    kept = world.put(summary="quokka one", content="the first secret", vector=vector(1))
    world.seal()
    world.write({"update": {"id": kept, "content": "the second secret"}})
    world.write({"update": {"id": kept, "content": "the third secret"}})
    world.forget(ids=[kept], mode="HARD")
    with world.node.store.read() as snapshot:
        assert (
            snapshot.count("texts") == snapshot.count("vectors") == snapshot.count("versions") == 0
        )
        assert snapshot.accounted_bytes == 0
    world.purge()
    left = [p for p in world.folder.rglob("*") if p.is_file() and b"secret" in p.read_bytes()]
    assert left == []


def test_purging_an_expired_memory_and_its_old_version_in_one_sweep_goes_on(world: World) -> None:
    first = world.put(summary="quokka", ttl_ms=DAY)
    world.write({"update": {"id": first, "summary": "wombat"}})
    world.clock.turn(DAY)
    world.node.sweep()
    world.clock.turn(30 * DAY)
    world.node.sweep()
    with world.node.store.read() as snapshot:
        assert snapshot.count("texts") == 0
        assert not snapshot.due("expired", world.clock.now, 1)
        assert not snapshot.due("replaced", world.clock.now, 1)


def test_replaced_versions_are_dropped_after_the_retention_of_the_log(world: World) -> None:
    kept = world.put(summary="quokka", ttl_ms=0)
    world.write({"update": {"id": kept, "summary": "wombat"}})
    world.clock.turn(7 * DAY)
    world.node.sweep()
    with world.node.store.read() as snapshot:
        assert snapshot.count("texts") == snapshot.count("states") == 1
    assert world.ids(text="wombat") == [kept]
