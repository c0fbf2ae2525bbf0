"""What a Query accepts, and how its modes answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from memsvc.domain.errors import Code
from memsvc.segments.topk import unit
from tests.semantics.harness import World, error_of, towards, vector


@pytest.fixture
def three(world: World) -> list[str]:
    """Ids at cosine 1, 0.8 and 0.5 to ``vector(1)``; the last one has no words in common."""
    return [
        world.put(summary="quokka tea", vector=towards(1.0)),
        world.put(summary="quokka coffee", vector=towards(0.8)),
        world.put(summary="wombat", vector=towards(0.5)),
    ]


def _same(many: list[dict[str, Any]], single: list[dict[str, Any]]) -> bool:
    return [(h["id"], h["score"], h.get("similarity")) for h in many] == [
        (h["id"], h["score"], h.get("similarity")) for h in single
    ]


@pytest.mark.parametrize("layout", ["tail", "sealed", "both"])
@pytest.mark.parametrize(
    "fields",
    [{}, {"text": "tea"}, {"text": "tea", "mode": "KEYWORD"}, {"filters": {"topic": "food"}}],
    ids=str,
)
def test_many_vectors_in_one_call_equal_single_calls(
    world: World, layout: str, fields: dict[str, Any]
) -> None:
    rng = np.random.default_rng(7)
    for number in range(60):
        world.put(
            summary="tea" if number % 3 else "coffee",
            vector=rng.standard_normal(8).tolist(),
            metadata={"topic": "food" if number % 2 else "work"},
        )
        if (layout, number) in (("both", 30), ("sealed", 59)):
            world.seal()
    queries = rng.standard_normal((5, 8)).tolist()
    many = world.query(vectors=queries, top_k=7, min_score=0.1, **fields)
    assert len(many["results"]) == 5
    for query, hits in zip(queries, many["results"], strict=True):
        single = world.query(vector=query, top_k=7, min_score=0.1, **fields)
        assert _same(hits["items"], single["items"])
        assert many["mode"] == single["mode"]


@pytest.mark.parametrize("text", [" ", "\n\t", "...", "?!", "—", "🙂"])
def test_text_without_a_word_is_refused_unless_something_else_selects(
    world: World, three: list[str], text: str
) -> None:
    for mode in ("AUTO", "KEYWORD", "BROWSE"):
        error = error_of(lambda mode=mode: world.query(text=text, mode=mode))
        assert error.code is Code.INVALID_ARGUMENT
        assert "text" in {v.field for v in error.violations}
    assert error_of(lambda: world.query(text=text, vector=vector(1), mode="HYBRID")).violations
    answer = world.query(text=text, vector=vector(1))
    assert (answer["mode"], [h["id"] for h in answer["items"]]) == ("VECTOR", three[:2])
    answer = world.query(text=text, filters={"session": "s1"})
    assert (answer["mode"], len(answer["items"])) == ("BROWSE", 3)


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({"vector": vector(1)}, "VECTOR"),
        ({"text": "tea"}, "KEYWORD"),
        ({"vector": vector(1), "text": "tea"}, "HYBRID"),
        ({"filters": {"session": "s1"}}, "BROWSE"),
        ({"vector": vector(1), "text": "tea", "mode": "VECTOR"}, "VECTOR"),
        ({"vector": vector(1), "text": "tea", "mode": "KEYWORD"}, "KEYWORD"),
        ({"text": "tea", "mode": "BROWSE"}, "BROWSE"),
    ],
    ids=str,
)
def test_the_mode_that_answered_is_told(
    world: World, three: list[str], fields: dict[str, Any], mode: str
) -> None:
    assert three
    assert world.query(**fields)["mode"] == mode


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({}, ""),
        ({"mode": "VECTOR"}, "vector"),
        ({"mode": "VECTOR", "text": "tea"}, "vector"),
        ({"mode": "HYBRID", "text": "tea"}, "vector"),
        ({"mode": "HYBRID", "vector": vector(1)}, "text"),
        ({"mode": "KEYWORD", "vector": vector(1)}, "text"),
        ({"ids": ["x"], "vector": vector(1)}, "vector"),
        ({"ids": ["x"], "text": "tea"}, "text"),
        ({"ids": ["x"], "mode": "KEYWORD"}, "mode"),
        ({"ids": ["x"] * 1_001}, "ids"),
        ({"vectors": [vector(1)], "mode": "BROWSE"}, "vectors"),
        ({"vectors": [vector(1)] * 65}, "vectors"),
        ({"vectors": [vector(1), [1.0]]}, "vectors[1]"),
        ({"vector": [1.0] * 9}, "vector"),
        ({"vector": vector(0.0)}, "vector"),
        ({"vector": vector(float("inf"))}, "vector[0]"),
        ({"vector": vector(1), "top_k": 201}, "top_k"),
        ({"vector": vector(1), "min_score": 1.1}, "min_score"),
        ({"vector": vector(1), "min_score": -1.1}, "min_score"),
        ({"vector": vector(1), "min_score": float("nan")}, "min_score"),
        ({"vector": vector(1), "ef_search": 4_097}, "ef_search"),
        ({"vector": vector(1), "as_of": -1}, "as_of"),
        ({"text": "x" * 8_193}, "text"),
        ({"vector": vector(1), "rank": {"keep": 0}}, "rank.keep"),
        ({"vector": vector(1), "rank": {"freshness_weight": 1.5}}, "rank.freshness_weight"),
        ({"filters": {"status": "gone"}}, "filters.status"),
        ({"filters": {"ts": {"gte": True}}}, "filters.ts"),
    ],
    ids=str,
)
def test_what_cannot_be_answered_is_refused_with_its_field(
    world: World, fields: dict[str, Any], where: str
) -> None:
    error = error_of(lambda: world.query(**fields))
    assert error.code is Code.INVALID_ARGUMENT
    assert where in {v.field for v in error.violations}


def test_top_k_bounds_the_answer(world: World) -> None:
    ids = [world.put(summary="tea", vector=vector(1)) for _ in range(45)]
    for fields in ({"vector": vector(1)}, {"text": "tea"}, {"vector": vector(1), "text": "tea"}):
        assert len(world.ids(**fields)) == 40
        assert world.ids(**fields, top_k=3) == ids[:3], "equal scores by age of the row"
        assert world.ids(**fields, top_k=200) == ids


def test_min_score_bounds_vectors_and_never_words(world: World, three: list[str]) -> None:
    assert world.ids(vector=vector(1)) == three[:2]
    assert world.ids(vector=vector(1), min_score=0.9) == three[:1]
    assert world.ids(vector=vector(1), min_score=-1.0) == three
    assert world.ids(text="wombat", min_score=1.0) == three[2:]
    assert set(world.ids(vector=vector(1), text="wombat", min_score=0.9)) == {three[0], three[2]}


def test_a_min_score_of_minus_one_keeps_what_is_opposite(world: World) -> None:
    rng = np.random.default_rng(1)
    # Rounding takes some cosines below -1.
    below = next(v for v in rng.standard_normal((1_000, 8)) if _opposite(v) < -1.0)
    kept = world.put(vector=(-below).tolist())
    assert world.ids(vector=below.tolist(), min_score=-1.0) == [kept]


def _opposite(numbers: NDArray[np.float64]) -> float:
    direction = unit(numbers.astype(np.float32))
    return float(np.vecdot(-direction, direction))


def test_min_score_of_the_namespace_is_used_when_none_is_asked(make_world: Any) -> None:
    world = make_world(query__min_score=0.9, query__min_score_by_namespace={"acme/helper": 0.3})
    for ns in (("acme", "helper"), ("acme", "other")):
        world.put(ns, vector=towards(0.5))
    assert len(world.ids(("acme", "helper"), vector=vector(1))) == 1
    assert world.ids(("acme", "other"), vector=vector(1)) == []


@pytest.mark.parametrize("layout", ["tail", "sealed"])
def test_the_similarity_is_the_true_cosine_in_every_mode(
    world: World, three: list[str], layout: str
) -> None:
    if layout == "sealed":
        world.seal()
    for fields in ({}, {"text": "quokka"}, {"text": "quokka", "mode": "KEYWORD"}):
        hits = {h["id"]: h for h in world.query(vector=vector(3), **fields)["items"]}
        assert hits[three[0]]["similarity"] == pytest.approx(1.0, abs=1e-6)
        assert hits[three[1]]["similarity"] == pytest.approx(0.8, abs=1e-6)
    for hit in world.query(text="quokka")["items"]:
        assert "similarity" not in hit


def test_keyword_mode_with_a_vector_is_still_in_order_of_words(
    world: World, three: list[str]
) -> None:
    hits = world.query(vector=vector(0, 1), text="tea", mode="KEYWORD")["items"]
    assert [h["id"] for h in hits] == three[:1]
    assert hits[0]["score"] == hits[0]["keyword_score"]


def test_ids_are_read_in_their_order_and_filters_apply(world: World, three: list[str]) -> None:
    assert world.ids(ids=three[::-1]) == three[::-1]
    assert world.ids(ids=[three[2], "nothing", three[0]]) == [three[2], three[0]]
    assert world.ids(ids=three, filters={"not": {"session": "s1"}}) == []
    assert len(world.ids(ids=three * 100)) == 300, "top_k does not bound ids"


def test_rank_caps_topics_and_fills_the_budget_with_whole_summaries(world: World) -> None:
    for number in range(6):
        food = {"topic": "food", "importance": 0.9}
        world.put(summary=f"x{number}", vector=vector(1), metadata=food)
    for number in range(20):
        world.put(summary=f"y{number}", vector=vector(1))
    answer = world.query(vector=vector(1), rank={})["items"]
    topics = [h["metadata"].get("topic") for h in answer]
    assert (len(answer), topics.count("food")) == (12, 3)
    assert len(world.query(vector=vector(1), rank={"token_budget": 30})["items"]) == 3
    assert len(world.query(vector=vector(1), rank={"max_per_topic": 0, "keep": 40,
                                                    "token_budget": 0})["items"]) == 26  # fmt: skip
