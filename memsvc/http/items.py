"""What a Write has in it: memories, touches, updates and late vectors, in JSON."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from memsvc.domain import limits
from memsvc.domain import types as t
from memsvc.domain.errors import Violation
from memsvc.http import fields as ft
from memsvc.http.fields import Body


class MetadataBody(Body):
    """What is known about a memory beside its text."""

    seq: ft.Int64 | None = Field(None, description="Position in the conversation.")
    role: str | None = Field(None, description='Who said it, for example "user".')
    ts: ft.Time | None = Field(None, description="When it happened, UTC ms.")
    importance: float | None = Field(None, description="0 to 1. Default 0.5.")
    source: str | None = Field(None, description='Where it comes from, for example "chat".')
    topic: str | None = Field(None, description="Topic tag, for the per-topic cap of rank.")
    category: str | None = Field(None, description="Category chosen by the client.")
    memory_type: str | None = Field(None, description='Kind, for example "preference".')
    topic_key: str | None = Field(None, description="Key under which contradictions meet.")
    attributes: ft.Attributes | None = Field(None, description="Typed values by name, at most 32.")

    def to_domain(self) -> t.Metadata:
        """The same as a domain type."""
        return t.Metadata(
            seq=self.seq,
            role=self.role or "",
            ts=self.ts,
            importance=self.importance,
            source=self.source or "",
            topic=self.topic or "",
            category=self.category or "",
            memory_type=self.memory_type or "",
            topic_key=self.topic_key or "",
            attributes=self.attributes or {},
        )


class TouchBody(Body):
    """Raises time and importance of a memory."""

    id: str
    ts: ft.Time | None = Field(None, description="New time, UTC ms; only rises.")
    importance: float | None = Field(None, description="New importance; only rises.")
    kind: ft.TouchKindName = t.TouchKind.SEEN

    def to_domain(self) -> t.Touch:
        """The same as a domain type."""
        return t.Touch(self.id, self.ts, self.importance, self.kind)


class UpdateBody(Body):
    """Changes fields of a memory; what is not given stays."""

    id: str
    if_version: ft.UInt32 | None = Field(None, description="Apply only to this version.")
    content: str | None = None
    summary: str | None = None
    vector: ft.Numbers | None = None
    clear_vector: bool = False
    metadata: MetadataBody | None = None
    clear_fields: list[str] | None = Field(
        None, description="Metadata fields to clear.", max_length=limits.MAX_CLEAR_FIELDS
    )
    ttl_ms: ft.Int64 | None = Field(None, description="New lifetime from now, ms. 0 = for ever.")
    status: ft.StatusName | None = None
    reason: str | None = Field(None, description="Why, for the audit.")

    def to_domain(self) -> t.Update:
        """The same as a domain type."""
        return t.Update(
            id=self.id,
            if_version=self.if_version or 0,
            content=self.content,
            summary=self.summary,
            vector=None if self.vector is None else ft.to_vector(self.vector),
            clear_vector=self.clear_vector,
            metadata=_metadata(self.metadata),
            clear_fields=tuple(self.clear_fields or ()),
            ttl_ms=self.ttl_ms,
            status=self.status or t.Status.UNSPECIFIED,
            reason=self.reason or "",
        )


class LateVectorBody(Body):
    """A vector for a memory that is already there."""

    id: str
    if_version: ft.UInt32 | None = None
    vector: ft.Numbers

    def to_domain(self) -> t.LateVector:
        """The same as a domain type."""
        return t.LateVector(self.id, ft.to_vector(self.vector), self.if_version or 0)


class MemoryFields(Body):
    """The fields of a memory that stand alike in an item and under ``memory``."""

    dedup_key: str | None = Field(None, description="Unique within tenant/agent.")
    content: str | None = Field(None, description="The full text.")
    summary: str | None = Field(None, description="The short form that is returned.")
    metadata: MetadataBody | None = None
    ttl_ms: ft.Int64 | None = Field(None, description="Lifetime from arrival, ms. 0 = for ever.")
    status: ft.StatusName | None = None


class MemoryBody(MemoryFields):
    """A new memory. It needs a content, a summary or both."""

    vector: ft.Numbers | None = None

    def to_domain(self) -> t.NewMemory:
        """The same as a domain type."""
        return _memory(self, self.vector)


_NUMBERS, _LATE = "numbers", "late"


def _vector_kind(value: object) -> str:
    return _LATE if isinstance(value, dict | LateVectorBody) else _NUMBERS


class ItemBody(MemoryFields):
    """One change: a new memory with its fields right here (or under ``memory``), or exactly
    one of ``touch``, ``update`` and ``vector`` as an object. ``vector`` as an array of
    numbers belongs to a new memory."""

    vector: (
        Annotated[
            Annotated[ft.Numbers, Tag(_NUMBERS)] | Annotated[LateVectorBody, Tag(_LATE)],
            Discriminator(_vector_kind),
        ]
        | None
    ) = None
    memory: MemoryBody | None = None
    touch: TouchBody | None = None
    update: UpdateBody | None = None

    def to_item(self, path: str, found: list[Violation]) -> t.WriteItem | None:
        """The domain item; None when it is none or several (then in ``found``)."""
        late = self.vector if isinstance(self.vector, LateVectorBody) else None
        named: dict[str, Any] = {
            "memory": self.memory,
            "touch": self.touch,
            "update": self.update,
            "vector": late,
        }
        given = [name for name, body in named.items() if body is not None]
        flat = sorted(
            name
            for name in self.model_fields_set
            if name not in named or (name == "vector" and late is None)
        )
        if not given and flat:
            numbers = self.vector if isinstance(self.vector, list) else None
            return _memory(self, numbers)
        if len(given) == 1 and not flat:
            item: t.WriteItem = named[given[0]].to_domain()
            return item
        if not given:
            text = "an item needs the fields of a memory, or one of touch, update, vector"
        else:
            text = f"only one of memory, touch, update, vector; found {', '.join(given + flat)}"
        found.append(Violation(path, text))
        return None


def _memory(body: MemoryFields, numbers: list[float] | None) -> t.NewMemory:
    return t.NewMemory(
        content=body.content or "",
        summary=body.summary or "",
        dedup_key=body.dedup_key or "",
        vector=None if numbers is None else ft.to_vector(numbers),
        metadata=_metadata(body.metadata),
        ttl_ms=body.ttl_ms,
        status=body.status or t.Status.ACTIVE,
    )


def _metadata(body: MetadataBody | None) -> t.Metadata:
    return t.Metadata() if body is None else body.to_domain()
