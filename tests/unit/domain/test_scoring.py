"""Decay, freshness and the choice of what is injected."""

from __future__ import annotations

import numpy as np
import pytest

from memsvc.domain import scoring
from memsvc.domain.types import RankOptions

DAY = 86_400_000


@pytest.mark.parametrize(
    ("age", "half_life", "factor"),
    [(0, DAY, 1.0), (DAY, DAY, 0.5), (2 * DAY, DAY, 0.25), (-DAY, DAY, 1.0), (DAY, 0, 1.0)],
)
def test_half_life(age: int, half_life: int, factor: float) -> None:
    assert scoring.half_life_factor(age, half_life) == pytest.approx(factor)


def test_the_factor_of_an_enormous_age_is_zero_and_no_error() -> None:
    assert scoring.half_life_factor(10**18, 1) == 0.0


@pytest.mark.parametrize(
    ("ts", "recalled_at", "expected"),
    [(0, 0, 0.2), (DAY, 0, 0.4), (0, DAY, 0.4), (DAY, DAY, 0.4), (9 * DAY, 0, 0.8)],
)
def test_decay_counts_from_the_latest_sign_of_life(
    ts: int, recalled_at: int, expected: float
) -> None:
    now, half = 2 * DAY, DAY
    found = scoring.effective_importances(
        np.array([0.8], np.float32), np.array([ts]), np.array([recalled_at]), now, half
    )
    assert found.tolist() == pytest.approx([expected])
    undecayed = scoring.effective_importances(
        np.array([0.8], np.float32), np.array([ts]), np.array([recalled_at]), now, 0
    )
    assert undecayed.tolist() == pytest.approx([0.8])


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("北京", 2), ("北京abcd", 3), ("é", 1)],
)
def test_tokens_are_estimated_without_a_tokenizer(text: str, tokens: int) -> None:
    assert scoring.estimate_tokens(text) == tokens


def test_the_rank_score_is_the_weighted_sum() -> None:
    options = RankOptions(half_life_ms=DAY)
    score = scoring.rank_score(options, 0.9, 0.8, DAY)
    assert score == pytest.approx(0.60 * 0.9 + 0.25 * 0.8 + 0.15 * 0.5)


def _select(
    options: RankOptions,
    scored: list[tuple[float, str]],
    topics: str = "",
    summary: str = "",
) -> list[int]:
    return scoring.select(
        options,
        scored,
        lambda i: topics[i].strip() if topics else "",
        lambda _i: scoring.item_cost(summary),
    )


def test_best_first_and_ties_by_id() -> None:
    scored = [(0.5, "c"), (0.9, "b"), (0.5, "a"), (0.9, "z")]
    assert _select(RankOptions(), scored) == [1, 3, 2, 0]


def test_at_most_keep_are_kept() -> None:
    scored = [(1.0, f"{n:03}") for n in range(50)]
    assert _select(RankOptions(), scored) == list(range(12))
    assert _select(RankOptions(keep=1), scored) == [0]


def test_topics_are_capped_and_no_topic_is_not() -> None:
    scored = [(1.0, f"{n}") for n in range(8)]
    assert _select(RankOptions(), scored, "aaaa bb ") == [0, 1, 2, 4, 5, 6, 7]
    assert _select(RankOptions(max_per_topic=1), scored, "aaaa bb ") == [0, 4, 5, 7]
    assert len(_select(RankOptions(max_per_topic=0), scored, "aaaaaaaa")) == 8


def test_the_budget_takes_whole_summaries_and_stops_at_the_first_that_does_not_fit() -> None:
    scored = [(0.9, "a"), (0.8, "b"), (0.7, "c")]
    sizes = {0: 10, 1: 60, 2: 1}

    def chosen(budget: int) -> list[int]:
        return scoring.select(
            RankOptions(token_budget=budget),
            scored,
            lambda _i: "",
            lambda i: scoring.item_cost("字" * sizes[i]),
        )

    assert chosen(17) == []
    assert chosen(18) == [0]
    assert chosen(85) == [0], "the third would fit, but order comes first"
    assert chosen(86) == [0, 1]
    assert chosen(95) == [0, 1, 2]
    assert chosen(0) == [0, 1, 2], "no limit"
