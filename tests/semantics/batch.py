"""What a Write does, item by item, as the model sees it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from memsvc.domain.labels import LABELS
from memsvc.domain.types import (
    Caller,
    LateVector,
    Metadata,
    NewMemory,
    Outcome,
    Status,
    Touch,
    TouchKind,
    Update,
    WriteItem,
)
from tests.semantics.memories import Memory, Partition, Refused, f32


class Batch:
    """One Write, item by item; given up whole when an item is refused."""

    def __init__(
        self, partition: Partition, caller: Caller, session: str, now: int, default_ttl: int
    ) -> None:
        self.partition = partition
        self.caller = caller
        self.session = session
        self.now = now
        self.default_ttl = default_ttl
        self.changed = False
        self.payloads: set[str] = set()

    def apply(self, item: WriteItem, given: str) -> tuple[str, Outcome, Status, int]:
        """Result of one item; ``given`` is the id if it makes a memory."""
        if isinstance(item, NewMemory):
            return self._new(item, given)
        if isinstance(item, Touch):
            return self._touch(item)
        if isinstance(item, LateVector):
            return self._late(item)
        return self._update(item)

    def _row(self) -> int:
        self.partition.next_row += 1
        return self.partition.next_row - 1

    def _store(self, memory: Memory, *, payload: bool = False) -> None:
        self.changed = True
        self.partition.memories[memory.id] = memory
        if payload:
            self.payloads.add(memory.id)

    def _new(self, item: NewMemory, given: str) -> tuple[str, Outcome, Status, int]:
        known = self.partition.dedup.get(item.dedup_key)
        if item.dedup_key and known is not None:
            m = self.partition.memories[known]
            return known, Outcome.EXISTS, m.status_at(self.now), m.version
        if item.dedup_key:
            self.partition.dedup[item.dedup_key] = given
        meta, now = item.metadata, self.now
        ttl = self.default_ttl if item.ttl_ms is None else item.ttl_ms
        memory = Memory(
            id=given, row=self._row(), version=1, status=item.status,
            ts=now if meta.ts is None else meta.ts,
            importance=f32(0.5 if meta.importance is None else meta.importance),
            expires_at=now + ttl if ttl else 0,
            recalled_at=now, created_at=now, updated_at=now,
            content=item.content, summary=item.summary, session=self.session,
            fields=_fields(meta), vector=item.vector,
        )  # fmt: skip
        self._store(memory, payload=True)
        return given, Outcome.CREATED, item.status, 1

    def _find(self, id_text: str, if_version: int = 0) -> Memory:
        m = self.partition.memories.get(id_text)
        if m is None or m.erased:
            raise Refused("NOT_FOUND")
        if m.status_at(self.now) is not Status.ACTIVE and not self.caller.may_review:
            raise Refused("NOT_FOUND")
        if if_version and if_version != m.version:
            raise Refused("ABORTED")
        return m

    def _touch(self, item: Touch) -> tuple[str, Outcome, Status, int]:
        m = self._find(item.id)
        used = item.kind is TouchKind.USED
        ts = item.ts if item.ts is not None else (m.ts if used else self.now)
        new = replace(
            m,
            ts=max(m.ts, ts),
            importance=max(m.importance, f32(item.importance or 0.0)),
            recalled_at=max(m.recalled_at, self.now) if used else m.recalled_at,
            recall_count=m.recall_count + used,
        )
        if new != m:
            self._store(new)
        return item.id, Outcome.TOUCHED, m.status, m.version

    def _late(self, item: LateVector) -> tuple[str, Outcome, Status, int]:
        m = self._find(item.id, item.if_version)
        if m.vector is not None and m.vector.tobytes() == item.vector.tobytes():
            return item.id, Outcome.UNCHANGED, m.status, m.version
        moved = m.vector is not None or m.id in self.payloads
        row = self._row() if moved else m.row
        new = replace(m, vector=item.vector, version=m.version + 1, row=row, updated_at=self.now)
        self._moved(m, new)
        return item.id, Outcome.VECTOR_ADDED, m.status, new.version

    def _update(self, item: Update) -> tuple[str, Outcome, Status, int]:
        m = self._find(item.id, item.if_version)
        status = item.status or m.status
        if status != m.status and not self.caller.may_review:
            raise Refused("PERMISSION_DENIED")
        meta, ttl = item.metadata, item.ttl_ms
        new = replace(
            m,
            status=status,
            ts=m.ts if meta.ts is None else meta.ts,
            importance=m.importance if meta.importance is None else f32(meta.importance),
            expires_at=m.expires_at if ttl is None else self.now + ttl if ttl else 0,
        )
        back = m.status is Status.EXPIRED and status is not m.status
        if (back or status is Status.ACTIVE) and 0 < new.expires_at <= self.now:
            raise Refused("INVALID_ARGUMENT")
        fields = {**m.fields, **_fields(meta)}
        for name in item.clear_fields:
            fields.pop(name, None)
        payload = replace(
            new,
            content=m.content if item.content is None else item.content,
            summary=m.summary if item.summary is None else item.summary,
            fields=fields,
            vector=None if item.clear_vector else m.vector if item.vector is None else item.vector,
        )
        if not payload.content.strip() and not payload.summary.strip():
            raise Refused("INVALID_ARGUMENT")
        if _payload(payload) != _payload(m):
            new = replace(payload, row=self._row())
        if new == m:
            return item.id, Outcome.UNCHANGED, m.status, m.version
        new = replace(new, version=m.version + 1, updated_at=self.now)
        self._moved(m, new)
        return item.id, Outcome.UPDATED, new.status, new.version

    def _moved(self, old: Memory, new: Memory) -> None:
        self._store(new, payload=new.row != old.row or new.vector is not old.vector)
        if new.row != old.row and new.status is Status.EXPIRED:
            self.partition.expired.append((self.now, new.row, new.id))


def _payload(m: Memory) -> tuple[object, ...]:
    vector = None if m.vector is None else m.vector.tobytes()
    # True == 1 for Python; an attribute that changes its type is a change.
    return m.content, m.shown, {k: (type(v), v) for k, v in m.fields.items()}, vector


def _fields(meta: Metadata) -> dict[str, Any]:
    found: dict[str, Any] = {
        label: getattr(meta, label) for label in LABELS if getattr(meta, label)
    }
    if meta.seq is not None:
        found["seq"] = meta.seq
    found |= {f"attributes.{name}": value for name, value in meta.attributes.items()}
    return found
