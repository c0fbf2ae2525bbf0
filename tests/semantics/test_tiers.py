"""Hot and cold tiers: what moves, what moves back, and that answers do not change by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from memsvc.domain import tiering
from memsvc.segments.tiers import rows_of
from tests.semantics.harness import DAY, HOUR, World, towards
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("small_graphs")

LONG = 121 * DAY


def fill(world: World, rows: int, name: str = "old", seed: int = 5) -> list[str]:
    """Memories that do not expire, with vectors, words and attributes; their ids."""
    rng = np.random.default_rng(seed)
    items: list[dict[str, Any]] = [
        {
            "summary": f"{name} memory {n} about {'tea' if n % 3 else 'coffee'}",
            "vector": rng.standard_normal(8).tolist(),
            "ttl_ms": 0,
            "metadata": {"topic": f"topic {n % 4}", "attributes": {"city": "Oslo", "shoe": n}},
        }
        for n in range(rows)
    ]
    return [result["id"] for result in world.write(*items)]


def tiers(world: World) -> dict[str, list[int]]:
    """Rows of the segments of each tier."""
    found: dict[str, list[int]] = {"hot": [], "cold": []}
    for segment in world.segments():
        found[segment["tier"]].append(segment["count"])
    return found


def answers(world: World) -> list[object]:
    """What queries of every kind tell."""
    rng = np.random.default_rng(9)
    told: list[object] = []
    for n in range(5):
        vector = rng.standard_normal(8).tolist()
        for fields in (
            {"vector": vector},
            {"vector": vector, "filters": {"topic": f"topic {n % 4}"}},
            {"vector": vector, "filters": {"attributes.shoe": {"lt": 7}}},
            {"vector": vector, "text": "coffee memory", "mode": "HYBRID"},
        ):
            items = world.query(top_k=12, min_score=-1, **fields)["items"]
            told.append([(i["id"], i["similarity"], i["score"]) for i in items])
    for text in ("coffee", "old memory 7", "new tea"):
        items = world.query(text=text, mode="KEYWORD", top_k=12)["items"]
        told.append([(i["id"], i["score"]) for i in items])
    told.append(world.all())
    told.append(world.all(filters={"topic": "topic 1"}))
    return told


def recalled(world: World, *ids: str) -> None:
    """Counts a use of memories."""
    world.write(*({"touch": {"id": id_text, "kind": "USED"}} for id_text in ids))


@pytest.fixture
def aged(world: World) -> tuple[World, list[str], list[str]]:
    """Forty old memories and ten new ones, not yet moved."""
    old = fill(world, 40)
    world.seal()
    world.clock.turn(LONG)
    new = fill(world, 10, "new", 6)
    return world, old, new


Aged = tuple[World, list[str], list[str]]


def test_what_is_old_moves_and_every_answer_stays(aged: Aged) -> None:
    world, _old, _new = aged
    world.seal()
    before = answers(world)
    world.merge()
    assert tiers(world) == {"hot": [10], "cold": [40]}
    assert answers(world) == before
    world.restart()
    assert answers(world) == before


def test_nothing_moves_before_its_time_or_when_it_is_switched_off(
    make_world: Callable[..., World],
) -> None:
    world, never = make_world(), make_world(lifecycle__cold_archive_after_days=0)
    for one in (world, never):
        fill(one, 20)
        one.clock.turn(119 * DAY)
        one.merge()
        assert tiers(one) == {"hot": [20], "cold": []}
        one.clock.turn(2 * DAY)
        one.merge()
    assert tiers(world) == {"hot": [0], "cold": [20]}
    assert tiers(never) == {"hot": [20], "cold": []}


def test_the_schedule_moves_them(aged: Aged) -> None:
    world, old, new = aged
    world.seal()
    world.clock.turn(DAY)
    world.node.tick()
    assert world.node.maintenance.wait_idle(20)
    assert tiers(world) == {"hot": [len(new)], "cold": [len(old)]}


def test_a_recalled_cold_memory_is_warm_again(aged: Aged) -> None:
    world, old, new = aged
    world.merge()
    recalled(world, old[3], old[17])
    before = answers(world)
    world.merge()
    # The cold segment keeps them, but the hot one answers.
    assert tiers(world) == {"hot": [12], "cold": [40]}
    assert answers(world) == before
    explain = world.query(vector=towards(0.5), min_score=-1, include={"explain": True})["explain"]
    assert sorted(part["matching"] for part in explain) == [12, 38]
    # And when nobody asks for them any more they are cold where they still are.
    world.clock.turn(LONG)
    world.merge()
    assert tiers(world) == {"hot": [0], "cold": [40, 10]}
    assert sorted(world.all()) == sorted([*old, *new])


def test_what_was_warm_when_its_neighbours_went_follows_later(aged: Aged) -> None:
    world, old, _new = aged
    recalled(world, *old[:4])
    world.merge()
    assert tiers(world) == {"hot": [14], "cold": [36]}
    world.clock.turn(LONG)
    before = answers(world)
    world.merge()
    assert tiers(world) == {"hot": [0], "cold": [40, 10]}
    assert answers(world) == before


def test_a_change_of_a_cold_memory_is_seen_at_once(aged: Aged) -> None:
    world, old, _new = aged
    world.merge()
    world.write({"update": {"id": old[0], "summary": "quite another thing"}})
    world.write({"touch": {"id": old[1], "importance": 0.9, "kind": "SEEN"}})
    world.forget(ids=[old[2]], mode="HARD")
    assert world.ids(text="quite another", mode="KEYWORD") == [old[0]]
    found = world.get(old[1])
    assert found is not None and found["importance_stored"] == pytest.approx(0.9)
    assert old[2] not in world.all()
    before = answers(world)
    world.merge()
    assert answers(world) == before


def test_a_row_in_both_tiers_counts_once(aged: Aged, monkeypatch: pytest.MonkeyPatch) -> None:
    world, _old, _new = aged
    world.seal()
    before = answers(world)
    # As a crash between the two steps leaves it.
    monkeypatch.setattr(tiering, "_hot_without", lambda *_args: None)
    monkeypatch.setattr(tiering.merging, "DEAD_SHARE", 2.0)
    world.merge()
    assert sum(map(sum, tiers(world).values())) == 90
    assert answers(world) == before
    world.restart()
    assert answers(world) == before
    monkeypatch.undo()
    world.merge()
    assert sum(map(sum, tiers(world).values())) == 50
    assert answers(world) == before


def test_a_recall_between_the_two_steps_keeps_the_memory(aged: Aged) -> None:
    world, old, _new = aged
    built: list[str] = []

    def recall(job: dict[str, Any]) -> None:
        if job["job"] == "build" and not built:
            built.append(job["spec"]["tier"])
            recalled(world, old[5])

    world.seal()
    for builder in world.builders:
        builder.after_job = recall
    world.merge()
    assert built == ["cold"]
    assert tiers(world) == {"hot": [11], "cold": [40]}
    assert old[5] in world.all()


def test_expiry_and_statuses_are_told_of_cold_memories(world: World) -> None:
    old = fill(world, 10)
    (brief,) = world.write({"summary": "brief", "vector": towards(1), "ttl_ms": 122 * DAY})
    (kept,) = world.write({"summary": "kept apart", "vector": towards(1), "ttl_ms": 0})
    world.write({"update": {"id": kept["id"], "status": "ARCHIVED"}})
    world.seal()
    world.clock.turn(LONG)
    world.merge()
    assert tiers(world) == {"hot": [0], "cold": [12]}
    assert set(world.all()) == {*old, brief["id"]}
    world.clock.turn(2 * DAY)
    assert set(world.all()) == set(old)
    found = world.query(mode="BROWSE", filters={"status": "ARCHIVED"})["items"]
    assert [item["id"] for item in found] == [kept["id"]]


def test_what_was_erased_leaves_both_tiers(aged: Aged) -> None:
    world, old, new = aged
    world.merge()
    recalled(world, old[7])
    world.merge()
    marks = [f"old memory {n} about".encode() for n in (7, 9)]
    world.forget(ids=[old[7], old[9], new[0]], mode="HARD")
    world.purge()
    assert tiers(world) == {"hot": [9], "cold": [38]}
    facts: Any = world.admin.inspect("", "", False, 0, "")
    assert facts["waiting_for_erasure"] == 0
    for path in world.folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(mark in data for mark in marks), path


def test_an_erasure_rewrites_only_the_tier_that_holds_it(aged: Aged) -> None:
    world, old, new = aged
    world.merge()
    cold = next(s["name"] for s in world.segments() if s["tier"] == "cold")
    world.forget(ids=[new[0]], mode="HARD")
    world.clock.turn(13 * HOUR)
    world.node.tick()
    assert world.node.maintenance.wait_idle(20)
    facts: Any = world.admin.inspect("", "", False, 0, "")
    assert facts["waiting_for_erasure"] == 0
    assert tiers(world) == {"hot": [9], "cold": [40]}
    assert cold in [s["name"] for s in world.segments()]
    assert sorted(world.all()) == sorted([*old, *new[1:]])


def test_a_damaged_cold_segment_comes_back_from_the_records(aged: Aged) -> None:
    world, _old, _new = aged
    world.merge()
    before = answers(world)
    (cold,) = [s for s in world.segments() if s["tier"] == "cold"]
    folder = world.folder / "segments" / "00000001" / cold["name"]
    for file in folder.iterdir():
        file.chmod(0o644)
        file.write_bytes(b"nothing")
    assert len(world.node.maintenance.scrub()) == len(cold["files"])
    assert world.node.maintenance.wait_idle(20)
    assert answers(world) == before
    assert tiers(world) == {"hot": [10], "cold": [40]}
    assert cold["name"] not in [s["name"] for s in world.segments()]


def test_a_rebuild_keeps_each_row_in_its_tier(aged: Aged) -> None:
    world, old, _new = aged
    world.merge()
    recalled(world, old[0])
    before = answers(world)
    world.node.rebuilds.start(everything=True, only_tell=False)
    until(lambda: not world.node.rebuilds.facts().running, what="the rebuild")
    facts = world.node.rebuilds.facts()
    assert facts.plan is not None and facts.plan.state.value == "DONE", facts
    assert answers(world) == before
    assert tiers(world)["cold"] == [40]


def test_memories_come_back_when_tiers_are_switched_off(aged: Aged) -> None:
    world, _old, _new = aged
    world.merge()
    before = answers(world)
    settings = world.node.settings
    lifecycle = settings.lifecycle.model_copy(update={"cold_archive_after_days": 0})
    world.node.apply(settings.model_copy(update={"lifecycle": lifecycle}))
    world.merge()
    assert tiers(world) == {"hot": [50], "cold": [0]}
    assert answers(world) == before


def test_there_are_at_most_eight_segments_of_both_tiers(world: World) -> None:
    for _ in range(14):
        fill(world, 6)
        world.seal()
        world.clock.turn(25 * DAY)
        world.merge()
        assert len(world.segments()) <= 8
    assert sum(tiers(world)["cold"]) >= 50
    assert len(world.all()) == 84


def test_each_row_is_in_a_file_of_the_tier_that_answers(aged: Aged) -> None:
    world, old, new = aged
    world.merge()
    root = world.folder / "segments" / "00000001"
    rows = {s["tier"]: rows_of(root, s["name"]) for s in world.segments()}
    assert rows["cold"] is not None and rows["hot"] is not None
    assert rows["cold"].tolist() == list(range(1, len(old) + 1))
    assert rows["hot"].tolist() == list(range(len(old) + 1, len(old) + len(new) + 1))
