"""Effective importance, freshness and the re-ranking of results. Times in ms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.types import RankOptions

TOKEN_OVERHEAD = 8
"""Tokens counted for each injected item beside its summary."""


def half_life_factor(age_ms: float, half_life_ms: float) -> float:
    """0.5 ** (age / half_life); 1 for a negative age (future times) or no half-life."""
    if age_ms <= 0 or half_life_ms <= 0:
        return 1.0
    return float(0.5 ** (age_ms / half_life_ms))


def effective_importances(
    stored: NDArray[np.float32],
    ts: NDArray[np.int64],
    recalled_at: NDArray[np.int64],
    now_ms: int,
    half_life_ms: int,
) -> NDArray[np.float64]:
    """Importance after decay, shape (n,) as the arguments: halves every
    ``half_life_ms`` since a memory arrived or was last recalled (``recalled_at``), or was said
    again later than that (``ts``). ``half_life_ms`` 0 = no decay. An imported memory does not
    arrive decayed."""
    values = stored.astype(np.float64)
    if half_life_ms <= 0:
        return values
    ages = np.maximum(now_ms - np.maximum(ts, recalled_at), 0)
    decayed: NDArray[np.float64] = values * np.exp2(ages / -half_life_ms)
    return decayed


def estimate_tokens(text: str) -> int:
    """Tokens of a text without a tokenizer: 4 ASCII bytes, or one other character, each
    count one. An upper estimate for Chinese, a fair one for English."""
    if text.isascii():
        return (len(text) + 3) // 4
    narrow = sum(1 for ch in text if ch < "\x80")
    return len(text) - narrow + (narrow + 3) // 4


def item_cost(summary: str) -> int:
    """Tokens that an injected item takes by the estimate, overhead included."""
    return estimate_tokens(summary) + TOKEN_OVERHEAD


def rank_score(options: RankOptions, similarity: float, importance: float, age_ms: int) -> float:
    """The weighted sum; importance is the effective one, age counts from ts."""
    return (
        options.similarity_weight * similarity
        + options.importance_weight * importance
        + options.freshness_weight * half_life_factor(age_ms, options.half_life_ms)
    )


def select(
    options: RankOptions,
    scored: Sequence[tuple[float, str]],
    topic_of: Callable[[int], str],
    cost_of: Callable[[int], int],
) -> list[int]:
    """Indexes into ``scored`` (score, id) that are kept, best first.

    Order is by score, then id, so that ties do not depend on the search. At most
    ``max_per_topic`` of a topic (items without one are not capped), ``keep`` in all, and
    whole items until the first that does not fit the token budget. ``cost_of`` an item is in
    tokens, its overhead included.
    """
    order = sorted(range(len(scored)), key=lambda i: (-scored[i][0], scored[i][1]))
    kept: list[int] = []
    per_topic: dict[str, int] = {}
    budget = options.token_budget
    for index in order:
        if len(kept) >= options.keep:
            break
        topic = topic_of(index)
        if topic and options.max_per_topic:
            if per_topic.get(topic, 0) >= options.max_per_topic:
                continue
            per_topic[topic] = per_topic.get(topic, 0) + 1
        if options.token_budget:
            budget -= cost_of(index)
            if budget < 0:
                break
        kept.append(index)
    return kept
