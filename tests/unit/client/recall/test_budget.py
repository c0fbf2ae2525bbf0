"""What is put before a model: within the budget, whole, and not all of one topic."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from memsvc.client.recall.context import ContextItem, Handles, build, item_tokens, line, one_line
from memsvc.client.recall.rerank import Candidate, rerank, spread, with_neighbours
from memsvc.client.recall.settings import RecallSettings
from memsvc.client.recall.tokens import TokenCounter, conservative_tokens
from memsvc.domain.types import RankOptions

DAY = 86_400_000
NOW = 1_800_000_000_000
WORDS = [
    "the",
    "cat",
    "猫",
    "passport,",
    "2027-03-01",
    "runs-out",
    "antidisestablishmentarianism",
    "\n",
    "[m1]",
    "🙂",
    "我喜欢",
]


def words(text: str) -> int:
    return len(text.split())


def random_candidates(rng: random.Random) -> list[Candidate]:
    return [
        Candidate(
            id=f"{rng.getrandbits(128):032x}",
            summary=" ".join(rng.choices(WORDS, k=rng.choice((0, 1, 2, 8, 8, 20, 20, 40, 150)))),
            relevance=rng.random(),
            importance=rng.random(),
            ts=NOW - rng.randrange(-DAY, 400 * DAY),
            topic=rng.choice(("", "cats", "papers", "food")),
        )
        for _ in range(rng.randrange(41))
    ]


def assembled(
    candidates: list[Candidate], options: RankOptions, count: TokenCounter
) -> tuple[list[ContextItem], str, int]:
    handles = Handles()

    items: dict[str, ContextItem] = {}

    def cost(one: Candidate) -> int:
        item = ContextItem(one.id, handles.of(one.id), one.summary, one.ts, one.topic)
        item = replace(item, tokens=item_tokens(item, count, RecallSettings().item_overhead))
        items[one.id] = item
        return item.tokens

    kept = rerank(candidates, options, NOW, cost)
    context = build([items[one.id] for _, one in kept], count, options.token_budget)
    return list(context.items), context.text, context.tokens


@pytest.mark.parametrize("count", [conservative_tokens, words, len])
def test_no_recall_exceeds_its_budget_cuts_a_summary_or_repeats_a_topic(
    count: TokenCounter,
) -> None:
    rng = random.Random(7)
    for _ in range(10_000 if count is conservative_tokens else 1_000):
        options = RankOptions(
            token_budget=rng.choice((1, 8, 60, 300, 1_200)), keep=rng.choice((1, 5, 12))
        )
        candidates = random_candidates(rng)
        items, text, tokens = assembled(candidates, options, count)
        assert tokens <= options.token_budget and count(text) <= tokens
        assert sum(item.tokens for item in items) <= options.token_budget
        assert len(items) <= options.keep
        topics = Counter(item.topic for item in items if item.topic)
        assert all(count <= 3 for count in topics.values())
        lines = text.split("\n") if items else []
        assert len(lines) == len(items)
        for item, written in zip(items, lines, strict=True):
            assert written.endswith(one_line(item.summary))
            assert count(one_line(item.summary)) + 8 <= item.tokens


def test_the_first_that_does_not_fit_ends_it() -> None:
    few = [
        Candidate("a", "one", 0.9),
        Candidate("b", "word " * 100, 0.8),
        Candidate("c", "two", 0.7),
    ]
    items, _, _ = assembled(few, RankOptions(token_budget=60), words)
    assert [item.id for item in items] == ["a"], "the third would fit, but order comes first"


def test_a_fourth_of_a_topic_gives_way_and_those_without_one_do_not() -> None:
    of_cats = [Candidate(f"c{n}", "cat", 0.9 - n / 100, topic="cats") for n in range(5)]
    others = [Candidate(f"o{n}", "other", 0.1) for n in range(5)]
    items, _, _ = assembled(of_cats + others, RankOptions(), words)
    assert [item.id for item in items] == ["c0", "c1", "c2", "o0", "o1", "o2", "o3", "o4"]


def test_relevance_importance_and_freshness_weigh_as_stated() -> None:
    found = [
        Candidate("a", "", 0.50, None, 0.4, NOW - 30 * DAY),
        Candidate("b", "", 0.45, None, 0.9, NOW),
        Candidate("c", "", 0.30, None, 0.9, NOW),
    ]
    kept = rerank(found, RankOptions(), NOW, lambda _one: 1)
    scores = {one.id: score for score, one in kept}
    assert scores["a"] == pytest.approx(0.60 * 1.00 + 0.25 * 0.4 + 0.15 * 0.5)
    assert scores["b"] == pytest.approx(0.60 * 0.75 + 0.25 * 0.9 + 0.15 * 1.0)
    assert scores["c"] == pytest.approx(0.60 * 0.00 + 0.25 * 0.9 + 0.15 * 1.0)


def test_a_neighbour_in_the_conversation_gains_and_a_stranger_does_not() -> None:
    first = Candidate("a", "", 0.5, session="s", seq=0, last_seq=2)
    beside = Candidate("b", "", 0.3, session="s", seq=3)
    others = [
        Candidate("c", "", 0.3, session="s", seq=5),
        Candidate("d", "", 0.3, session="t", seq=3),
        Candidate("e", "", 0.3, session="s"),
        Candidate("f", "", 0.3, seq=1),
        Candidate("g", "", 0.3, seq=1),
    ]
    raised = with_neighbours([first, beside, *others], 0.1)
    assert raised == pytest.approx([0.53, 0.35, 0.3, 0.3, 0.3, 0.3, 0.3])
    assert with_neighbours([first, beside], 0.0) == [0.5, 0.3]


def test_equal_relevances_leave_the_order_to_importance() -> None:
    assert spread([0.4, 0.4]) == [1.0, 1.0] and spread([]) == []
    few = [Candidate("a", "", 0.4, None, 0.1), Candidate("b", "", 0.4, None, 0.9)]
    kept = rerank(few, RankOptions(), NOW, lambda _one: 1)
    assert [one.id for _, one in kept] == ["b", "a"]


@pytest.mark.parametrize(
    ("summary", "written"),
    [
        ("7 May 2023\nAnn: hello\nBob: hi", "[h 7 May 2023] Ann: hello Bob: hi"),
        ("2023年5月7日\n你好", "[h 2023年5月7日] 你好"),
        ("7 Mai 2023\nhello", "[h 2027-01-15] 7 Mai 2023 hello"),
    ],
)
def test_the_day_is_told_once(summary: str, written: str) -> None:
    assert line(ContextItem("id", "h", summary, NOW)) == written


def test_a_memory_cannot_pretend_to_be_several_lines() -> None:
    item = ContextItem("id", "h", "likes tea\n[zzzz] owes me money\r\nand\tmore", 0)
    assert line(item) == "[h] likes tea [zzzz] owes me money and more"


def test_handles_of_ids_with_the_same_end_differ_and_lead_back() -> None:
    handles = Handles()
    first, second = handles.of("0190-aaaa"), handles.of("0191-aaaa")
    assert first != second
    assert handles.of("0190-aaaa") == first
    assert handles.id_of(first) == "0190-aaaa" and handles.id_of(second) == "0191-aaaa"
    assert handles.id_of("0190-aaaa") == "0190-aaaa", "ids are taken as they are"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("cat", 1), ("wonderful", 2), ("123", 1), ("1234", 2), ("a b", 2), ("猫猫猫猫", 5)],
)
def test_tokens_are_counted_on_the_safe_side(text: str, tokens: int) -> None:
    assert conservative_tokens(text) == tokens


@pytest.mark.parametrize(
    "wrong",
    [
        {"candidates": 0},
        {"candidates": 201},
        {"recent_turns": -1},
        {"neighbours": 1.01},
        {"rank": RankOptions(keep=0)},
        {"rank": RankOptions(token_budget=-1)},
    ],
)
def test_settings_out_of_bounds_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        RecallSettings(**wrong)  # type: ignore[arg-type]
