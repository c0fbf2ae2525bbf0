"""The items of a write: from what one asks for to the effect it has on its memory.

An item is resolved against the state as the items before it in the request left it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, cast

import numpy as np

from memsvc.domain.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    VersionMismatch,
    Violation,
)
from memsvc.domain.ids import format_id, parse_id
from memsvc.domain.log import Action, Effect, Payload, unchanged_effect
from memsvc.domain.records import FLAG_CURRENT, FLAG_ERASED, State, current_status
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
    WriteResult,
)
from memsvc.store import heads, keys
from memsvc.store.keys import Partition
from memsvc.store.write_txn import WriteTxn

DEFAULT_IMPORTANCE: Final = 0.5
_FLOAT32: Final = struct.Struct("<f")
_WIRE: Final = np.dtype("<f4")


class Prepared(NamedTuple):
    """A new memory made ready outside the writer thread. ``dedup_hash`` is b"" without a
    dedup key."""

    id: bytes
    payload: Payload
    hashed: bytes
    dedup_hash: bytes


def vector_bytes(vector: np.ndarray[tuple[int], np.dtype[np.float32]]) -> bytes:
    """Raw little-endian float32."""
    source: object = vector.base
    if isinstance(source, bytes) and len(source) == vector.nbytes and vector.dtype == _WIRE:
        # It came as these very bytes, and need not be copied.
        return source
    return np.ascontiguousarray(vector, dtype=_WIRE).tobytes()


class Resolver:
    """Resolves the items of one request, in their order, into effects."""

    def __init__(
        self,
        txn: WriteTxn,
        partition: Partition | None,
        caller: Caller,
        generation: int,
        default_ttl_ms: int,
        random: Callable[[int], bytes],
        dedup_hashes: Iterable[bytes] = (),
    ) -> None:
        self._txn = txn
        self._number = partition.number if partition else 0
        self._next_row = partition.next_row if partition else 1
        self._caller = caller
        self._generation = generation
        self._default_ttl_ms = default_ttl_ms
        self._random = random
        self._created: dict[bytes, Effect] = {}
        self._states: dict[bytes, tuple[int, State]] = {}
        self._payloads: dict[bytes, Payload] = {}
        self._dedup = txn.dedups(self._number, dedup_hashes) if self._number else {}
        self.effects: list[Effect] = []
        """What the items so far come to, in order."""

    def resolve(self, item: WriteItem, prepared: Prepared | None) -> WriteResult:
        """The result of an item, whose effect is added; ``prepared`` for a new memory.

        Raises a MemsvcError when the item cannot be applied; the whole request is then
        refused.
        """
        if isinstance(item, NewMemory):
            return self._put(item, prepared)
        if isinstance(item, Touch):
            return self._touch(item)
        if isinstance(item, LateVector):
            return self._late_vector(item)
        return self._update(item)

    # -- kinds of items ----------------------------------------------------------------

    def _put(self, item: NewMemory, prepared: Prepared | None) -> WriteResult:
        assert prepared is not None
        id_bytes, payload, hashed, dedup_hash = prepared
        if dedup_hash:
            known = self._dedup.get(dedup_hash)
            if known is not None:
                _row, state = self._known(known)
                status = current_status(state, self._txn.now)
                return WriteResult(format_id(known), Outcome.EXISTS, status, state.version)
            self._dedup[dedup_hash] = id_bytes
        now, metadata = self._txn.now, item.metadata
        ttl = self._default_ttl_ms if item.ttl_ms is None else item.ttl_ms
        status, importance = item.status or Status.ACTIVE, metadata.importance
        # By place: names double the time, and large batches are made of these.
        effect = Effect(
            id_bytes,
            Action.PUT,
            self._next_row,
            1,  # version
            Status.UNSPECIFIED,
            status,
            now if metadata.ts is None else metadata.ts,
            DEFAULT_IMPORTANCE if importance is None else _f32(importance),
            now + ttl if ttl else 0,
            now,  # recalled_at
            0,  # recall_count
            hashed,
            dedup_hash,
            0,  # generation
            0,  # replaces_row
            payload,
        )
        self._next_row += 1
        self.effects.append(effect)
        self._created[id_bytes] = effect
        return WriteResult(format_id(id_bytes), Outcome.CREATED, status, 1)

    def _touch(self, item: Touch) -> WriteResult:
        row, state = self._find(item.id)
        used, now = item.kind is TouchKind.USED, self._txn.now
        ts = item.ts if item.ts is not None else (state.ts if used else now)
        effect = unchanged_effect(state, row, Action.TOUCH)._replace(
            ts=max(state.ts, ts),
            importance=max(state.importance, _f32(item.importance or 0.0)),
            recalled_at=max(state.recalled_at, now) if used else state.recalled_at,
            recall_count=min(state.recall_count + used, 0xFFFFFFFF),
        )
        if effect != unchanged_effect(state, row, Action.TOUCH):
            self._record(effect, state)
        return WriteResult(item.id, Outcome.TOUCHED, Status(state.status), state.version)

    def _late_vector(self, item: LateVector) -> WriteResult:
        row, state = self._find(item.id)
        _check_version(state, item.if_version)
        raw = vector_bytes(item.vector)
        old = self._payload(state.id, row)
        if old.vectors.get(self._generation) == raw:
            return WriteResult(item.id, Outcome.UNCHANGED, Status(state.status), state.version)
        payload = old._replace(vectors={**old.vectors, self._generation: raw})
        effect = unchanged_effect(state, row, Action.VECTOR)._replace(
            version=state.version + 1,
            generation=self._generation,
            payload=payload,
            payload_hash=_hash(payload),
        )
        # A row's vector never changes, since segments hold it: a second one needs a new
        # row, and so does a row that this very request has made.
        if self._generation in old.vectors or self._own_payload(state.id) is not None:
            effect = self._moved(effect, row)
        self._record(effect, state)
        return WriteResult(item.id, Outcome.VECTOR_ADDED, Status(state.status), effect.version)

    def _update(self, item: Update) -> WriteResult:
        row, state = self._find(item.id)
        _check_version(state, item.if_version)
        now = self._txn.now
        effect = unchanged_effect(state, row, Action.UPDATE)._replace(version=state.version + 1)
        if item.status and item.status != state.status:
            if not self._caller.may_review:
                raise PermissionDenied(
                    "changing the status needs the review right",
                    hint="ask for a token with the right review",
                )
            effect = effect._replace(status_after=item.status)
        if item.metadata.ts is not None:
            effect = effect._replace(ts=item.metadata.ts)
        if item.metadata.importance is not None:
            effect = effect._replace(importance=_f32(item.metadata.importance))
        if item.ttl_ms is not None:
            effect = effect._replace(expires_at=now + item.ttl_ms if item.ttl_ms else 0)
        back = effect.status_after != state.status == Status.EXPIRED
        if (back or effect.status_after is Status.ACTIVE) and 0 < effect.expires_at <= now:
            raise InvalidArgument(
                "ttl_ms: the lifetime of this memory has passed; give a new one",
                violations=(Violation("ttl_ms", "give a new lifetime to bring it back"),),
            )
        old = self._payload(state.id, row)
        payload = self._changed_payload(old, item)
        if payload is not None:
            payload = payload._replace(salt=self._random(keys.SALT_BYTES))
            effect = self._moved(effect._replace(payload=payload, payload_hash=_hash(payload)), row)
        elif effect._replace(version=state.version) == unchanged_effect(state, row, Action.UPDATE):
            return WriteResult(item.id, Outcome.UNCHANGED, Status(state.status), state.version)
        self._record(effect, state)
        return WriteResult(item.id, Outcome.UPDATED, effect.status_after, effect.version)

    def _changed_payload(self, old: Payload, item: Update) -> Payload | None:
        """The payload after an update; None when it stays what it is."""
        hit = heads.parse_head(old.head)
        content = old.content if item.content is None else item.content
        # A summary that was only the beginning of the old content follows the new one.
        own = not old.content or hit.summary != heads.shown_summary("", old.content)
        summary = (hit.summary if own else "") if item.summary is None else item.summary
        if not content.strip() and not summary.strip():
            raise InvalidArgument(
                "a memory needs a content, a summary or both",
                violations=(Violation("content", "neither content nor summary would be left"),),
            )
        metadata = heads.merged(heads.metadata_of(hit), item.metadata, item.clear_fields)
        vectors = dict(old.vectors)
        if item.clear_vector:
            vectors = {}
        elif item.vector is not None:
            if content != old.content or heads.shown_summary(summary, content) != hit.summary:
                # Those of other embeddings are of the text before; they are lacking now.
                vectors = {}
            vectors[self._generation] = vector_bytes(item.vector)
        head = heads.build_head(
            heads.shown_summary(summary, content), hit.session, _without_state(metadata)
        )
        if head == old.head and content == old.content and vectors == old.vectors:
            return None
        return Payload(head, content, b"", old.dedup_key, vectors)

    # -- state as this request sees it -------------------------------------------------

    def _known(self, id_bytes: bytes) -> tuple[int, State]:
        found = self._states.get(id_bytes)
        if found is not None:
            return found
        created = self._created.get(id_bytes)
        if created is not None:
            return created.row, self._first_state(created)
        place = self._txn.locate(id_bytes)
        if place is None or place[0] != self._number:
            raise NotFound("no such memory in this namespace")
        state = self._txn.state(*place)
        if state is None:
            raise NotFound("no such memory in this namespace")
        return place[1], state

    def _first_state(self, e: Effect) -> State:
        now = self._txn.now
        times = (now, now, e.ts, e.expires_at, e.recalled_at)
        return State(e.id, e.version, e.status_after, FLAG_CURRENT, 0, *times, e.importance, 0, 0)

    def _find(self, id_text: str) -> tuple[int, State]:
        """Row and state of a memory that this caller may change."""
        id_bytes = parse_id(id_text)
        if id_bytes is None:
            raise NotFound("no such memory in this namespace")
        row, state = self._known(id_bytes)
        status = current_status(state, self._txn.now)
        hidden = status is not Status.ACTIVE and not self._caller.may_review
        if hidden or status is Status.FORGOTTEN or state.flags & FLAG_ERASED:
            raise NotFound("no such memory in this namespace")
        return row, state

    def _payload(self, id_bytes: bytes, row: int) -> Payload:
        found = self._own_payload(id_bytes)
        if found is not None:
            return found
        text = self._txn.text(self._number, row)
        if text is None:
            raise NotFound("no such memory in this namespace")
        return Payload(
            text.head,
            text.content,
            text.salt,
            text.dedup_key,
            self._txn.vectors_of(self._number, row),
        )

    def _own_payload(self, id_bytes: bytes) -> Payload | None:
        """The payload that this request has given a memory."""
        created = self._created.get(id_bytes)
        return self._payloads.get(id_bytes) or (created.payload if created else None)

    def _moved(self, effect: Effect, old_row: int) -> Effect:
        """The effect with a new row in place of the old one."""
        moved = effect._replace(row=self._next_row, replaces_row=old_row)
        self._next_row += 1
        return moved

    def _record(self, effect: Effect, before: State) -> None:
        self.effects.append(effect)
        self._states[effect.id] = (
            effect.row,
            before._replace(
                version=effect.version,
                status=effect.status_after,
                ts=effect.ts,
                expires_at=effect.expires_at,
                recalled_at=effect.recalled_at,
                importance=effect.importance,
                recall_count=effect.recall_count,
            ),
        )
        if effect.payload is not None:
            self._payloads[effect.id] = effect.payload


def _f32(value: float) -> float:
    """As float32 stores it, so that log, state and answers agree to the bit."""
    return cast(float, _FLOAT32.unpack(_FLOAT32.pack(value))[0])


def _hash(payload: Payload) -> bytes:
    return keys.payload_hash(payload.salt, payload.head, payload.content, payload.vectors)


def _without_state(metadata: Metadata) -> Metadata:
    return metadata._replace(ts=None, importance=None)


def _check_version(state: State, if_version: int) -> None:
    if if_version and if_version != state.version:
        raise VersionMismatch(
            f"the memory has version {state.version}, not {if_version}",
            hint="read it again, then decide whether the change still holds",
            metadata={"version": str(state.version)},
        )
