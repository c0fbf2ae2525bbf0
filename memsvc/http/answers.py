"""Answers as models. They describe the OpenAPI document and check the rendered answers in
tests; the hot path builds plain dicts (``render``)."""

from __future__ import annotations

from pydantic import Field

from memsvc.http.fields import Attribute, Body


class DegradedAnswer(Body):
    """Why and how far an answer is below the full service; level 0 = not at all."""

    level: int
    reason: str


class ResultAnswer(Body):
    """What became of one item."""

    id: str
    outcome: str = Field(
        description="CREATED, EXISTS, TOUCHED, UPDATED, VECTOR_ADDED or UNCHANGED."
    )
    status: str
    version: int


class WriteAnswerBody(Body):
    """Results in the order of the items."""

    results: list[ResultAnswer]
    position: str = Field(description="Pass it as min_position to read your writes.")
    replayed: bool


class MetadataAnswer(Body):
    """What is known about a memory; what is unset is left out."""

    ts: int
    importance: float = Field(description="The effective one, after decay.")
    seq: int | None = None
    role: str | None = None
    source: str | None = None
    topic: str | None = None
    category: str | None = None
    memory_type: str | None = None
    topic_key: str | None = None
    attributes: dict[str, Attribute] | None = None


class HitAnswer(Body):
    """One memory found."""

    id: str
    similarity: float | None = Field(None, description="True cosine, when a vector was sent.")
    score: float = Field(description="What the order is by.")
    keyword_score: float | None = None
    summary: str
    content: str | None = None
    metadata: MetadataAnswer
    version: int
    status: str
    session: str | None = None
    importance_stored: float
    created_at: int
    updated_at: int
    expires_at: int = Field(description="UTC ms. 0 = never.")
    recall_count: int
    vector: list[float] | None = None


class HitListAnswer(Body):
    """Hits of one of many vectors."""

    items: list[HitAnswer]


class ExplainAnswer(Body):
    """How one part of the store was searched."""

    part: str
    plan: str
    rows: int
    matching: int
    candidates: int
    why: str
    elapsed_us: int


class QueryAnswerBody(Body):
    """What was found: ``items``, or ``results`` for many vectors."""

    items: list[HitAnswer] | None = None
    results: list[HitListAnswer] | None = None
    degraded: DegradedAnswer
    position: str
    mode: str = Field(description="The mode that answered.")
    next_page_token: str | None = None
    explain: list[ExplainAnswer] | None = None


class ForgetAnswerBody(Body):
    """What was forgotten."""

    matched: int
    changed: int
    ids: list[str] = Field(description="The first 1,000.")
    ids_truncated: bool
    position: str
    replayed: bool


class LoadAnswer(Body):
    """Load of the last seconds."""

    write_queue: int
    write_queue_max: int
    active_calls: int


class EmbeddingAnswer(Body):
    """A model that the store has vectors of; the name is empty when it has none."""

    name: str
    dimension: int
    is_default: bool


class StoreAnswer(Body):
    """Facts about the store."""

    memories: int
    partitions: int
    segments: int
    bytes: int
    max_bytes: int
    dimension: int
    embedding: str
    dtype: str
    segment_bytes: int
    damaged_files: int
    cold_segments: int
    cold_rows: int
    cold_bytes: int
    cold_resident_bytes: int
    embeddings: list[EmbeddingAnswer]


class HealthAnswerBody(Body):
    """How the node is. Without a valid token only the first four members."""

    ready: bool
    role: str
    degraded: DegradedAnswer
    version: str
    position: str | None = None
    lag_positions: int | None = None
    lag_ms: int | None = None
    store_id: str | None = None
    reasons: list[str] | None = None
    epoch: int | None = None
    load: LoadAnswer | None = None
    store: StoreAnswer | None = None


class ViolationAnswer(Body):
    """One field that is wrong."""

    field: str
    description: str


class ProblemAnswer(Body):
    """An RFC 9457 problem document."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    reason: str
    request_id: str
    hint: str | None = None
    violations: list[ViolationAnswer] | None = None
    retry_after_ms: int | None = None
    metadata: dict[str, str] | None = None
