"""Levels forced by hand and found by checks, and what answers say of them."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import pytest

from memsvc.domain.errors import Cancelled, Unavailable
from memsvc.domain.recovery import GOOD_CHECKS
from memsvc.domain.types import Degraded, DegradedLevel, Namespace, QueryRequest
from memsvc.service import forced_level
from memsvc.service.api import Control
from memsvc.service.degradation import REPLICA_LAGGING, Degradation, Signs
from tests.semantics.harness import READER, World, vector

BAD = Degraded(DegradedLevel.NO_VECTORS, "SEGMENT_DAMAGED")
GOOD = Degraded()


@pytest.fixture
def filled(world: World) -> World:
    """Thirty memories of one word, the first ten with a vector."""
    for number in range(30):
        world.put(summary="tea", **({"vector": vector(1)} if number < 10 else {}))
    return world


def _force(world: World, level: int | None, reason: str = "") -> None:
    world.admin.set_degraded(level, reason)


def _mark(answer: dict[str, Any]) -> tuple[int, str]:
    return answer["degraded"]["level"], answer["degraded"]["reason"]


QUERIES: list[dict[str, Any]] = [
    {"vector": vector(1)},
    {"text": "tea"},
    {"vector": vector(1), "text": "tea"},
    {"mode": "BROWSE"},
    {"vectors": [vector(1), vector(2)]},
    {"vectors": [vector(1), vector(2)], "text": "tea"},
]


@pytest.mark.parametrize("fields", QUERIES, ids=str)
@pytest.mark.parametrize("level", [1, 4])
def test_timeout_and_no_memory_answer_empty_and_marked(
    filled: World, level: int, fields: dict[str, Any]
) -> None:
    _force(filled, level, "DRILL")
    answer = filled.query(**fields)
    assert _mark(answer) == (level, "DRILL")
    if "vectors" in fields:
        assert answer["results"] == [{"items": []}, {"items": []}]
    else:
        assert answer["items"] == []


@pytest.mark.parametrize("fields", QUERIES[1:4], ids=str)
def test_fallback_lowers_top_k_to_twenty(filled: World, fields: dict[str, Any]) -> None:
    _force(filled, 2)
    answer = filled.query(**fields)
    assert _mark(answer) == (2, "FORCED")
    assert len(answer["items"]) == 20
    assert len(filled.query(**fields, top_k=5)["items"]) == 5


@pytest.mark.parametrize("fields", QUERIES[1:4], ids=str)
@pytest.mark.parametrize(("top_k", "items"), [(0, 20), (200, 20), (21, 20), (20, 20), (5, 5)])
def test_a_read_that_fell_back_to_this_node_gets_twenty_at_most_and_is_marked(
    filled: World, fields: dict[str, Any], top_k: int, items: int
) -> None:
    answer = filled.query(**fields, top_k=top_k, fallback=True)
    assert (_mark(answer), len(answer["items"])) == ((2, "READ_FALLBACK"), items)
    assert _mark(filled.query(**fields)) == (0, ""), "only what asked for it is marked"


def test_pages_of_reads_that_fell_back_leave_nothing_out(filled: World) -> None:
    first = filled.query(mode="BROWSE", fallback=True)
    rest = filled.query(mode="BROWSE", page_token=first["next_page_token"])
    seen = [item["id"] for item in first["items"] + rest["items"]]
    assert (len(seen), len(set(seen))) == (30, 30)


def test_a_read_by_ids_that_fell_back_gets_all_of_them(filled: World) -> None:
    ids = [item["id"] for item in filled.query(mode="BROWSE")["items"]]
    answer = filled.query(ids=ids, fallback=True)
    assert (_mark(answer), len(answer["items"])) == ((2, "READ_FALLBACK"), 30)


@pytest.mark.parametrize("level", [3, 4])
def test_a_read_that_fell_back_is_marked_with_the_worse_of_two_levels(
    filled: World, level: int
) -> None:
    _force(filled, level, "DRILL")
    answer = filled.query(text="tea", fallback=True)
    assert (_mark(answer), len(answer["items"])) == ((level, "DRILL"), 20 if level == 3 else 0)


def test_without_vectors_words_carry_and_a_vector_alone_says_what_is_missing(
    filled: World,
) -> None:
    _force(filled, 3)
    answer = filled.query(vector=vector(1))
    assert (_mark(answer), answer["items"]) == ((3, "NO_QUERY_TEXT"), [])
    for fields in ({"text": "tea"}, {"text": "tea", "vector": vector(1)},
                   {"text": "tea", "vector": vector(1), "mode": "VECTOR"}):  # fmt: skip
        answer = filled.query(**fields)
        assert (_mark(answer), answer["mode"]) == ((3, "FORCED"), "KEYWORD")
        assert len(answer["items"]) == 30
        assert all("similarity" not in h for h in answer["items"])
    many = filled.query(vectors=[vector(1), vector(2)], text="tea")
    assert [len(r["items"]) for r in many["results"]] == [30, 30]
    many = filled.query(vectors=[vector(1), vector(2)])
    assert (_mark(many), many["results"]) == ((3, "NO_QUERY_TEXT"), [{"items": []}] * 2)
    browsed = filled.query(mode="BROWSE")
    assert (_mark(browsed), len(browsed["items"])) == ((3, "FORCED"), 30)


def test_writes_and_forget_go_on_at_every_level(filled: World) -> None:
    for level in range(5):
        _force(filled, level)
        kept = filled.put()
        assert filled.forget(ids=[kept], mode="HARD")["changed"] == 1


def test_level_zero_by_hand_is_full_service_without_a_reason(filled: World) -> None:
    _force(filled, 0, "whatever")
    answer = filled.query(vector=vector(1))
    assert (_mark(answer), len(answer["items"])) == ((0, ""), 10)
    filled.node.degradation.check(BAD)
    assert filled.memory.health()["degraded"] == {"level": 0, "reason": ""}


def test_a_level_by_hand_holds_until_it_is_given_back(filled: World) -> None:
    _force(filled, 4)
    for _ in range(2 * GOOD_CHECKS):
        filled.node.checkup.check()
    assert _mark(filled.query(text="tea"))[0] == 4
    assert filled.memory.health()["degraded"]["level"] == 4
    _force(filled, None)
    assert _mark(filled.query(text="tea")) == (0, "")


def test_a_search_past_its_time_answers_empty_and_marked_not_with_an_error(
    make_world: Any,
) -> None:
    world = make_world(query__timeout_ms=60_000)
    kept = world.put(summary="tea", vector=vector(1))
    # Time that has passed already, instead of a search that is slow by luck.
    object.__setattr__(world.node.searcher.settings, "timeout_ms", -1)
    for fields in QUERIES:
        answer = world.query(**fields)
        assert _mark(answer) == (1, "TIMEOUT")
        assert kept not in str(answer)


def test_a_query_that_never_gets_its_turn_answers_empty_marked_and_for_a_position(
    make_world: Any,
) -> None:
    world = make_world(query__timeout_ms=60_000)
    kept = world.put(summary="tea", vector=vector(1))
    searcher = world.node.searcher
    with contextlib.ExitStack() as taken:
        for _ in range(searcher._slots._count):
            searcher._slots.enter(lambda: 1.0)
            taken.callback(searcher._slots.leave)
        object.__setattr__(searcher.settings, "timeout_ms", 20)
        answers = [world.query(**fields) for fields in QUERIES]
    object.__setattr__(searcher.settings, "timeout_ms", 60_000)
    now = world.query(vector=vector(1))
    assert [item["id"] for item in now["items"]] == [kept]
    for answer in answers:
        assert _mark(answer) == (1, "TIMEOUT") and kept not in str(answer)
        assert answer["position"] == now["position"]
    assert (searcher._slots.taken, searcher._slots.waiting) == (0, 0)


def test_a_query_that_fails_gives_its_place_back(make_world: Any) -> None:
    world = make_world()
    world.put(summary="tea", vector=vector(1))
    request = QueryRequest(Namespace("acme", "helper"), text="tea")
    for _ in range(2 * world.node.searcher._slots._count):
        # The caller goes away when the search has begun.
        control = Control(cancelled=partial(next, iter([False]), True))
        with pytest.raises(Cancelled):
            world.node.memory.query(READER, request, control)
    assert world.node.searcher._slots.taken == 0
    assert len(world.ids(text="tea")) == 1


def test_recovery_needs_ten_good_checks_in_a_row() -> None:
    node = Degradation()
    node.check(BAD)
    assert node.current == BAD
    for _ in range(GOOD_CHECKS - 1):
        node.check(GOOD)
    assert node.current == BAD
    node.check(BAD)
    for _ in range(GOOD_CHECKS - 1):
        node.check(GOOD)
        assert node.current == BAD
    node.check(GOOD)
    assert node.current == GOOD


def test_checks_go_on_under_a_forced_level() -> None:
    node = Degradation()
    node.force(DegradedLevel.FALLBACK, "DRILL")
    node.check(BAD)
    assert node.current == Degraded(DegradedLevel.FALLBACK, "DRILL")
    node.force(None, "")
    assert node.current == BAD


def test_answers_are_not_marked_for_what_the_checks_found_elsewhere() -> None:
    node = Degradation()
    node.check(BAD)
    assert node.of_queries() == GOOD


def test_the_level_is_the_worst_of_the_last_ten_checks() -> None:
    moved: list[Degraded] = []
    node = Degradation(moved.append)
    worse = Degraded(DegradedLevel.NO_MEMORY, "STORE_UNREADABLE")
    milder = Degraded(DegradedLevel.TIMEOUT, "DISK_STALLED")
    for found in (worse, BAD, milder):
        node.check(found)
        assert node.current == worse
    for _ in range(GOOD_CHECKS - 3):
        node.check(GOOD)
    assert node.current == worse
    for better in (BAD, milder, GOOD):
        node.check(GOOD)
        assert node.current == better
    assert moved == [worse, BAD, milder, GOOD]


def test_a_replica_marks_answers_while_it_lags_and_no_longer() -> None:
    node = Degradation()
    node.check(Signs(lags=True).finding())
    assert node.of_queries() == REPLICA_LAGGING
    node.check(Signs().finding())
    assert (node.of_queries(), node.current) == (GOOD, REPLICA_LAGGING)


def test_a_promoted_replica_does_not_say_that_it_lags_behind_itself() -> None:
    moved: list[Degraded] = []
    node = Degradation(moved.append)
    follows = [True]
    node.follows = lambda: follows[0]
    node.check(Signs(stalled=True).finding())
    node.check(Signs(lags=True).finding())
    follows[0] = False
    node.caught_up()
    assert (node.of_queries(), node.current) == (
        GOOD,
        Degraded(DegradedLevel.TIMEOUT, "DISK_STALLED"),
    )
    node.check(Signs(lags=True).finding())  # of a check that had begun before
    assert node.of_queries() == GOOD
    assert [now.reason for now in moved] == ["DISK_STALLED", "REPLICA_LAGGING", "DISK_STALLED"]


@pytest.mark.parametrize("kept", [b"", b"{}", b'{"level": 9, "reason": "x"}', b"[1]", b"\xff"])
def test_a_forced_level_that_cannot_be_read_is_passed_over(world: World, kept: bytes) -> None:
    world.close()
    (world.folder / "forced-level.json").write_bytes(kept)
    world.open()
    assert not world.node.degradation.forced


def test_a_forced_level_that_cannot_be_written_down_is_in_force(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(forced_level, "keep_level", full)
    with pytest.raises(Unavailable) as told:
        _force(world, 3)
    assert told.value.reason == "LEVEL_NOT_KEPT"
    assert world.memory.health()["degraded"]["level"] == 3
