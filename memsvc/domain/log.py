"""Log entries: resolved effects, the only way state changes (see protos/.../log.proto)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from memsvc.domain.manifest import GraphSettings
from memsvc.domain.records import State
from memsvc.domain.types import Status

LOG_FORMAT: Final = 2
"""Format 2 has what is about generations beside the first. Entries that say nothing of it have
format 1 as before."""
_NO_VECTORS: Final[Mapping[int, bytes]] = MappingProxyType({})


class Action(IntEnum):
    """What an entry or effect does; numbers as in the proto."""

    PUT = 1
    TOUCH = 2
    UPDATE = 3
    VECTOR = 4
    FORGET = 5
    DECAY = 6
    EXPIRE = 7
    RECALL = 8
    PURGE = 9
    WRITE = 10
    NONE = 11
    GENERATION = 12
    GENERATION_DEFAULT = 13
    GENERATION_DROP = 14
    GENERATION_PURGE = 15


class Payload(NamedTuple):
    """Payload of one version of a memory. ``head`` is a serialised proto Hit with only
    summary, session and metadata (without ts and importance); vectors are raw
    little-endian float32 by generation number."""

    head: bytes
    content: str
    salt: bytes
    dedup_key: str = ""
    vectors: Mapping[int, bytes] = _NO_VECTORS


class Effect(NamedTuple):
    """A change of one memory in absolute values; applying it twice gives the same."""

    id: bytes
    action: Action
    row: int
    version: int
    status_before: Status
    status_after: Status
    ts: int
    importance: float
    expires_at: int
    recalled_at: int
    recall_count: int
    payload_hash: bytes = b""
    dedup_hash: bytes = b""
    generation: int = 0
    replaces_row: int = 0
    payload: Payload | None = None


def unchanged_effect(state: State, row: int, action: Action) -> Effect:
    """An effect that leaves a memory as it is, to be changed by ``_replace``."""
    status = Status(state.status)
    return Effect(
        state.id,
        action,
        row,
        state.version,
        status,
        status,
        state.ts,
        state.importance,
        state.expires_at,
        state.recalled_at,
        state.recall_count,
    )


@dataclass(frozen=True, slots=True)
class Generation:
    """An embedding generation: name of the embedder and dimension of its vectors. A dropped one
    answers nothing any more; its number is never given again. ``dtype``, ``m`` and
    ``ef_construction`` of its graphs are those of the node where they are "" or 0."""

    number: int
    embedding: str
    dimension: int
    is_default: bool
    dropped: bool = False
    dtype: str = ""
    m: int = 0
    ef_construction: int = 0

    def graph(self, usual: GraphSettings) -> GraphSettings:
        """What its graphs are built with, where ``usual`` are the settings of the node."""
        return GraphSettings(
            self.dtype or usual.dtype,
            self.m or usual.m,
            self.ef_construction or usual.ef_construction,
        )


class VectorRange(NamedTuple):
    """Vectors of one generation in rows [row_lo, row_hi) of a partition."""

    generation: int
    row_lo: int
    row_hi: int


@dataclass(frozen=True, slots=True)
class RememberedRequest:
    """A request id (hashed), what it asked (hashed), and the serialised answer."""

    key: bytes
    fingerprint: bytes
    response: bytes


@dataclass(frozen=True, slots=True)
class Entry:
    """One log entry. epoch, position and time are given by the log when it is appended."""

    tenant: str
    agent: str
    action: Action
    effects: tuple[Effect, ...] = ()
    actor: str = ""
    reason: str = ""
    operation_id: str = ""
    request: RememberedRequest | None = None
    generation: Generation | None = None
    purged: VectorRange | None = None
    epoch: int = 0
    position: int = 0
    time: int = 0

    @property
    def format(self) -> int:
        """The lowest format that has what it says, so that nodes of a neighbouring version
        follow as long as nothing new is said."""
        beside = self.generation is not None and (
            self.generation.number > 1 or self.action is not Action.GENERATION
        )
        return 2 if beside or self.purged is not None else 1


@dataclass(frozen=True, slots=True)
class Record:
    """An entry with its payloads, its bytes as stored (which have none), and the running digest
    after it (16 bytes)."""

    entry: Entry
    data: bytes
    digest: bytes

    @property
    def size(self) -> int:
        """Bytes that it takes in a message, about."""
        payloads = [e.payload for e in self.entry.effects if e.payload is not None]
        return len(self.data) + sum(
            len(p.head) + len(p.content) + sum(map(len, p.vectors.values())) for p in payloads
        )
