"""What a memory is, and the requests and answers about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.filters import Filter

if TYPE_CHECKING:
    from memsvc.domain.hits import Hits

Vector = NDArray[np.float32]
"""One vector, shape (dimension,), float32."""

AttributeValue = str | int | float | bool | tuple[str, ...]


class Status(IntEnum):
    """Visibility of a memory; numbers as in the proto and on disk."""

    UNSPECIFIED = 0
    ACTIVE = 1
    REVIEW = 2
    ARCHIVED = 3
    SUPERSEDED = 4
    REJECTED = 5
    EXPIRED = 6
    FORGOTTEN = 7


STATUSES: Final = tuple(Status)
"""By number; several times faster than ``Status(number)``."""


class Outcome(IntEnum):
    """What became of a write item; numbers as in the proto."""

    CREATED = 1
    EXISTS = 2
    TOUCHED = 3
    UPDATED = 4
    VECTOR_ADDED = 5
    UNCHANGED = 6


class Mode(IntEnum):
    """How to search; numbers as in the proto."""

    AUTO = 1
    VECTOR = 2
    KEYWORD = 3
    HYBRID = 4
    BROWSE = 5


class ForgetMode(IntEnum):
    """How to forget; numbers as in the proto."""

    DECAY = 1
    HARD = 2


class TouchKind(IntEnum):
    """Why a memory is touched; numbers as in the proto."""

    SEEN = 1
    USED = 2


class DegradedLevel(IntEnum):
    """How far a node or an answer is below the full service."""

    NONE = 0
    TIMEOUT = 1
    FALLBACK = 2
    NO_VECTORS = 3
    NO_MEMORY = 4


@dataclass(frozen=True, slots=True)
class Namespace:
    """tenant / agent / session; a partition is tenant/agent."""

    tenant: str
    agent: str
    session: str = ""


NO_ATTRIBUTES: Final[Mapping[str, AttributeValue]] = MappingProxyType({})


# Named tuples here and below, where each memory of a batch has one: making a frozen dataclass
# takes four times as long.
class Metadata(NamedTuple):
    """What is known about a memory beside its text. None or "" means missing."""

    seq: int | None = None
    role: str = ""
    ts: int | None = None
    importance: float | None = None
    source: str = ""
    topic: str = ""
    category: str = ""
    memory_type: str = ""
    topic_key: str = ""
    attributes: Mapping[str, AttributeValue] = NO_ATTRIBUTES


NO_METADATA: Final = Metadata()


class NewMemory(NamedTuple):
    """A memory to store."""

    content: str = ""
    summary: str = ""
    dedup_key: str = ""
    vector: Vector | None = None
    metadata: Metadata = NO_METADATA
    ttl_ms: int | None = None
    status: Status = Status.ACTIVE


@dataclass(frozen=True, slots=True)
class Touch:
    """A memory was seen or used again."""

    id: str
    ts: int | None = None
    importance: float | None = None
    kind: TouchKind = TouchKind.SEEN


@dataclass(frozen=True, slots=True)
class Update:
    """Fields of a memory to change; what is None (or "" in metadata) stays."""

    id: str
    if_version: int = 0
    content: str | None = None
    summary: str | None = None
    vector: Vector | None = None
    clear_vector: bool = False
    metadata: Metadata = NO_METADATA
    clear_fields: tuple[str, ...] = ()
    ttl_ms: int | None = None
    status: Status = Status.UNSPECIFIED
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LateVector:
    """A vector for a memory that is already there."""

    id: str
    vector: Vector
    if_version: int = 0


WriteItem = NewMemory | Touch | Update | LateVector


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A batch of changes in one namespace."""

    namespace: Namespace
    items: tuple[WriteItem, ...]
    request_id: str = ""
    embedding: str = ""
    fingerprint: bytes = b""
    """Hash of the whole request (16 bytes), made by the edge; only with a request_id."""


class WriteResult(NamedTuple):
    """Result of one item."""

    id: str
    outcome: Outcome
    status: Status
    version: int


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """Results in the order of the items."""

    results: tuple[WriteResult, ...]
    position: str
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class RankOptions:
    """Weights and limits of the re-ranking on the server."""

    similarity_weight: float = 0.60
    importance_weight: float = 0.25
    freshness_weight: float = 0.15
    half_life_ms: int = 30 * 86_400_000
    max_per_topic: int = 3
    token_budget: int = 1_200
    keep: int = 12


@dataclass(frozen=True, slots=True)
class Include:
    """What to return beside the usual."""

    content: bool = False
    vector: bool = False
    explain: bool = False


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """A search; None means "as the settings say"."""

    namespace: Namespace
    vectors: tuple[Vector, ...] = ()
    many: bool = False
    """True when the vectors came as a list: the answer is a list of lists."""
    text: str = ""
    ids: tuple[str, ...] = ()
    top_k: int = 0
    min_score: float | None = None
    filters: Filter | None = None
    mode: Mode = Mode.AUTO
    ef_search: int = 0
    min_position: str = ""
    embedding: str = ""
    as_of: int | None = None
    rank: RankOptions | None = None
    include: Include = Include()
    page_token: str = ""
    fallback: bool = False
    """Whether a router asks the primary for want of a replica."""


@dataclass(slots=True)
class Hit:
    """One memory found, by itself; see Hits. ``head`` is a serialised proto Hit with summary,
    session and metadata."""

    id: str
    row: int
    head: bytes
    score: float
    similarity: float | None
    keyword_score: float | None
    importance: float
    importance_stored: float
    ts: int
    version: int
    status: Status
    created_at: int
    updated_at: int
    expires_at: int
    recall_count: int
    content: str | None = None
    vector: Vector | None = None


@dataclass(frozen=True, slots=True)
class Degraded:
    """Level and reason of an answer below the full service."""

    level: DegradedLevel = DegradedLevel.NONE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ExplainPart:
    """How one part of a partition was searched. Times in microseconds."""

    part: str
    plan: str
    rows: int
    matching: int
    candidates: int
    why: str
    elapsed_us: int = 0


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """Lists of hits: one, or one for each of many vectors."""

    lists: tuple[Hits, ...]
    many: bool
    mode: Mode
    position: str
    degraded: Degraded = Degraded()
    next_page_token: str = ""
    explain: tuple[ExplainPart, ...] = ()


@dataclass(frozen=True, slots=True)
class ForgetRequest:
    """What to forget; ids and filters mean "and"."""

    namespace: Namespace
    ids: tuple[str, ...] = ()
    filters: Filter | None = None
    mode: ForgetMode = ForgetMode.DECAY
    factor: float = 0.5
    validate_only: bool = False
    request_id: str = ""
    reason: str = ""
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True)
class ForgetAnswer:
    """What was forgotten."""

    matched: int
    changed: int
    ids: tuple[str, ...]
    ids_truncated: bool
    position: str
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a node: items waiting, the bound, calls being served."""

    write_queue: int
    write_queue_max: int
    active_calls: int


@dataclass(frozen=True, slots=True)
class EmbeddingFacts:
    """A model that a store has vectors of; ``name`` "" = unnamed."""

    name: str
    dimension: int
    is_default: bool


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Facts about a store; bytes as accounted against ``max_bytes`` (0 = unlimited). ``dimension``
    and ``embedding`` are of the default among ``embeddings``."""

    memories: int
    partitions: int
    segments: int
    bytes: int
    max_bytes: int
    dimension: int
    embedding: str
    dtype: str
    segment_bytes: int
    damaged_files: int = 0
    cold_segments: int = 0
    cold_rows: int = 0
    cold_bytes: int = 0
    cold_resident_bytes: int = 0
    embeddings: tuple[EmbeddingFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """How a node is. ``takes_calls`` is another thing than ``ready`` where a node answers whoever
    asks it, and should not be asked: where its clock is wrong."""

    ready: bool
    role: str
    position: str
    degraded: Degraded
    load: Load
    store: StoreFacts
    version: str
    store_id: str
    reasons: tuple[str, ...] = ()
    lag_positions: int = 0
    lag_ms: int = 0
    epoch: int = 0
    takes_calls: bool | None = None
    """None = as ``ready``."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, and what they may do beyond the call itself."""

    actor: str = ""
    may_review: bool = True
    may_admin: bool = True
