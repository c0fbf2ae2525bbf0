"""Settings of how what is kept is found."""

from typing import Annotated, Literal

from pydantic import AfterValidator

from memsvc.config.fields import Section, key


def _check_namespace_scores(scores: dict[str, float]) -> dict[str, float]:
    for namespace, score in scores.items():
        parts = namespace.split("/")
        if len(parts) != 2 or not all(parts):
            raise ValueError(f"{namespace!r} is not tenant/agent")
        if not -1.0 <= score <= 1.0:
            raise ValueError(f"the score of {namespace!r} is not between -1 and 1")
    return scores


class Query(Section):
    """Defaults and bounds of a search."""

    default_top_k: int = key(
        40,
        "Items returned when a request sets no top_k. Not above query.max_top_k.",
        reload=True,
        unit="items",
        ge=1,
        le=10_000,
    )
    max_top_k: int = key(
        200,
        "Largest top_k; a request for more is refused with INVALID_ARGUMENT.",
        reload=True,
        unit="items",
        ge=1,
        le=10_000,
    )
    min_score: float = key(
        0.62,
        "Least cosine similarity of an item found by its vector, when a request sets none; "
        "items found by keywords are exempt. Every embedding model has its own scale: measure "
        "before relying on the default. -1: no bound.",
        reload=True,
        ge=-1,
        le=1,
    )
    min_score_by_namespace: Annotated[dict[str, float], AfterValidator(_check_namespace_scores)] = (
        key(
            {},
            "Replaces query.min_score for the namespaces listed, as in {acme/assistant: 0.5}. "
            "Namespaces not listed keep query.min_score.",
            reload=True,
            expects="a mapping of tenant/agent to a number from -1 to 1",
        )
    )
    filter_mode: Literal["pre_filter"] = key(
        "pre_filter",
        "How filters and search meet. pre_filter: rows that do not match are never candidates, "
        "so a result is full while matches exist. Only this exists.",
        reload=True,
    )
    timeout_ms: int = key(
        800,
        "Time a search may take; past it the answer is empty and marked as degraded, and the "
        "work is broken off.",
        reload=True,
        unit="milliseconds",
        ge=1,
        le=600_000,
    )
    cache: bool = key(
        False,
        "Whether answers are kept for queries that are repeated. A kept answer is given only "
        "while nothing of the agent's memories has changed, so it is the one that a search would "
        "give; a degraded one is never kept. Worth its memory where the same question comes "
        "again and again within seconds and little is written meanwhile.",
        reload=True,
    )
    cache_ms: int = key(
        10_000,
        "How long an answer is kept (query.cache).",
        reload=True,
        unit="milliseconds",
        ge=1,
        le=600_000,
    )
    cache_entries: int = key(
        10_000,
        "Answers kept at most (query.cache). The serving process and each of server.readers "
        "has an equal share, and keeps the answers it gave itself.",
        reload=True,
        unit="answers",
        ge=1,
        le=1_000_000,
    )
    cache_bytes: int = key(
        32 * 1024 * 1024,
        "Memory that kept answers may take (query.cache), divided like query.cache_entries. An "
        "answer of more than an eighth of a share is not kept.",
        reload=True,
        unit="bytes",
        ge=64 * 1024,
        le=64 * 1024**3,
    )
