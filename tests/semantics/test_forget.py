"""Forget: by ids, by filter, previewed, hard and by decay."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memsvc.domain.errors import Code
from memsvc.domain.log import Action
from tests.semantics.harness import World, error_of, vector

FILTERS = [
    {"topic": "food"},
    {"attributes.city": "Bern"},
    {"attributes.free": "yes"},
    {"and": [{"topic": "food"}, {"attributes.free": "yes"}]},
    {"not": {"attributes.free": "no"}},
    {"or": [{"attributes.free": "yes"}, {"importance": {"gte": 2}}]},
    {"session": "s1", "importance": {"gte": 0.4}},
]


def _two(world: World) -> tuple[str, str]:
    yes = {"topic": "food", "attributes": {"city": "Bern", "free": "yes"}}
    no = {"topic": "travel", "importance": 0.1, "attributes": {"city": "Basel", "free": "no"}}
    return world.put(metadata=yes, vector=vector(1)), world.put(metadata=no, vector=vector(1))


@pytest.mark.parametrize("layout", ["tail", "sealed", "both"])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_a_filter_erases_exactly_what_a_query_by_it_finds(
    world: World, filters: dict[str, object], layout: str
) -> None:
    goes, stays = _two(world)
    if layout != "tail":
        world.seal()
    more = _two(world) if layout == "both" else ()
    wanted = [goes, *more[:1]]
    assert set(world.all(filters=filters)) == set(wanted)
    preview = world.forget(filters=filters, mode="HARD", validate_only=True)
    assert (preview["matched"], preview["changed"]) == (len(wanted), 0)
    assert set(world.all()) == {goes, stays, *more}
    answer = world.forget(filters=filters, mode="HARD")
    assert (answer["matched"], answer["changed"]) == (len(wanted), len(wanted))
    assert set(answer["ids"]) == set(preview["ids"]) == set(wanted)
    assert set(world.all()) == {stays, *more[1:]}


def test_ids_and_filters_mean_and(world: World) -> None:
    goes, stays = _two(world)
    answer = world.forget(ids=[goes, stays], filters={"topic": "food"}, mode="HARD")
    assert answer["ids"] == [goes]
    assert world.all() == [stays]


@pytest.mark.parametrize("selector", [{}, {"ids": []}, {"filters": {}}])
def test_an_empty_selection_is_refused(world: World, selector: dict[str, object]) -> None:
    kept = world.put()
    error = error_of(lambda: world.forget(**selector, mode="HARD"))
    assert error.code is Code.INVALID_ARGUMENT
    assert world.all() == [kept]


def test_unknown_and_repeated_ids_count_once_or_not(world: World) -> None:
    kept = world.put()
    answer = world.forget(ids=[kept, "nothing", kept], mode="HARD")
    assert (answer["matched"], answer["ids"]) == (1, [kept])
    assert world.forget(ids=[kept], mode="HARD")["matched"] == 0


@pytest.mark.parametrize("factor", [-0.1, 1.0, 2.0, float("nan")])
def test_a_factor_that_does_not_lower_is_refused(world: World, factor: float) -> None:
    kept = world.put()
    error = error_of(lambda: world.forget(ids=[kept], factor=factor))
    assert error.code is Code.INVALID_ARGUMENT


def test_the_log_has_the_resolved_ids_and_never_the_filter(world: World) -> None:
    goes, _stays = _two(world)
    world.forget(filters={"topic": "food"}, mode="HARD", reason="asked for by Ann")
    with world.node.store.read() as snapshot:
        found = snapshot.entry(snapshot.position)
    assert found is not None
    entry, data, _digest = found
    assert (entry.action, len(entry.effects)) == (Action.FORGET, 1)
    assert entry.reason == "asked for by Ann"
    assert entry.effects[0].id.hex() == goes.replace("-", "")
    assert b"food" not in data


def test_a_large_forget_is_cut_into_entries_of_one_operation(world: World) -> None:
    for _ in range(12):
        world.write(*[{"summary": "x", "metadata": {"topic": "food"}}] * 1_000)
    before = _position(world)
    answer = world.forget(filters={"topic": "food"}, mode="HARD", request_id="r1")
    assert (answer["matched"], answer["changed"]) == (12_000, 12_000)
    assert (len(answer["ids"]), answer["ids_truncated"]) == (1_000, True)
    with world.node.store.read() as snapshot:
        entries = [snapshot.entry(p) for p in range(before + 1, snapshot.position + 1)]
    found = [e[0] for e in entries if e]
    assert [len(e.effects) for e in found] == [2_000] * 6
    assert len({e.operation_id for e in found}) == 1 and found[0].operation_id
    assert world.all() == []
    assert world.forget(filters={"topic": "food"}, mode="HARD", request_id="r1") == {
        **answer,
        "replayed": True,
    }


def _position(world: World) -> int:
    with world.node.store.read() as snapshot:
        return snapshot.position


def test_a_preview_changes_neither_position_nor_memories(world: World) -> None:
    kept = world.put(metadata={"importance": 0.8})
    before = _position(world)
    for mode in ("HARD", "DECAY"):
        assert world.forget(ids=[kept], mode=mode, validate_only=True)["matched"] == 1
    assert _position(world) == before
    hit = world.get(kept)
    assert hit is not None and hit["importance_stored"] == pytest.approx(0.8)


def test_what_was_forgotten_is_gone_from_the_next_query_in_every_layout(world: World) -> None:
    steps: list[Callable[[], object]] = [lambda: None, world.seal, world.purge, world.restart]
    for step in steps:
        gone = world.put(summary="quokka", vector=vector(1))
        step()
        world.forget(ids=[gone], mode="HARD")
        for again in steps:
            again()
            assert world.ids(vector=vector(1)) == []
            assert world.ids(text="quokka") == []
            assert world.all() == []
            assert world.get(gone) is None


def test_everything_forgotten_leaves_empty_segments_that_still_serve(world: World) -> None:
    gone = [world.put(summary="quokka", vector=vector(1)) for _ in range(30)]
    world.seal()
    world.forget(ids=gone, mode="HARD")
    world.purge()
    assert world.ids(vector=vector(1)) == []
    kept = world.put(summary="quokka", vector=vector(1))
    world.purge()
    world.restart()
    assert world.ids(vector=vector(1)) == world.ids(text="quokka") == [kept]
