"""Write: from a request to log entries.

What needs no state (ids, heads, hashes) is prepared in the caller's thread; the decision
runs in the writer thread, sees everything decided before, and appends one entry or none.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from memsvc.domain.errors import (
    Code,
    FailedPrecondition,
    InvalidArgument,
    MemsvcError,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    VersionMismatch,
    Violation,
)
from memsvc.domain.limits import REQUEST_ID_TTL_MS
from memsvc.domain.log import (
    Action,
    Effect,
    Entry,
    Payload,
    RememberedRequest,
    unchanged_effect,
)
from memsvc.domain.records import FLAG_ERASED, State, current_status
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
    WriteAnswer,
    WriteItem,
    WriteRequest,
    WriteResult,
)
from memsvc.service.positions import format_id, format_position, new_id, parse_id
from memsvc.store import heads, keys
from memsvc.store.write_txn import WriteTxn

DEFAULT_IMPORTANCE = 0.5


@dataclass(frozen=True, slots=True)
class WriteLimits:
    """Admission limits; 0 = none. ``default_ttl_ms`` 0 = memories live for ever."""

    default_ttl_ms: int = 0
    max_elements: int = 0
    max_bytes: int = 0
    tenant_max_items: int = 0
    tenant_max_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Prepared:
    """A new memory made ready outside the writer thread."""

    id: bytes
    payload: Payload
    hashed: bytes
    dedup_hash: bytes
    size: int


def vector_bytes(vector: np.ndarray[tuple[int], np.dtype[np.float32]]) -> bytes:
    """Raw little-endian float32."""
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


def prepare(
    request: WriteRequest, generation: int, now_ms: int, random: Callable[[int], bytes]
) -> list[Prepared | None]:
    """What each new memory needs; None for other items. ``random(n)`` gives n bytes."""
    found: list[Prepared | None] = []
    session = request.namespace.session
    # One draw for all: 10 bytes of id and 16 of salt a memory.
    entropy = random(26 * len(request.items))
    for number, item in enumerate(request.items):
        if not isinstance(item, NewMemory):
            found.append(None)
            continue
        part = entropy[26 * number : 26 * number + 26]
        head = heads.build_head(
            heads.shown_summary(item.summary, item.content), session, item.metadata
        )
        vectors = {} if item.vector is None else {generation: vector_bytes(item.vector)}
        payload = Payload(head, item.content, part[10:], item.dedup_key, vectors)
        found.append(
            Prepared(
                new_id(now_ms, part[:10]),
                payload,
                keys.payload_hash(payload.salt, head, item.content, vectors),
                keys.dedup_hash(item.dedup_key) if item.dedup_key else b"",
                keys.accounted_bytes(head, item.content, vectors),
            )
        )
    return found


class WriteDecision:
    """Decides a whole write request inside a transaction."""

    def __init__(
        self,
        request: WriteRequest,
        caller: Caller,
        prepared: list[Prepared | None],
        generation: int,
        limits: WriteLimits,
        random: Callable[[int], bytes],
    ) -> None:
        self._request = request
        self._caller = caller
        self._prepared = prepared
        self._generation = generation
        self._limits = limits
        self._random = random

    def __call__(self, txn: WriteTxn) -> WriteAnswer:
        """The answer; the entry is appended to the transaction."""
        namespace, request = self._request.namespace, self._request
        key = b""
        if request.request_id:
            key = keys.request_hash("Write", namespace.tenant, namespace.agent, request.request_id)
            known = remembered(txn, key, request.fingerprint)
            if known is not None:
                return _answer_from_json(known)
        self._txn = txn
        partition = txn.partition(namespace.tenant, namespace.agent)
        self._number = partition.number if partition else 0
        self._next_row = partition.next_row if partition else 1
        self._effects: list[Effect] = []
        self._states: dict[bytes, tuple[int, State]] = {}
        self._payloads: dict[bytes, Payload] = {}
        self._dedup: dict[bytes, bytes] = {}
        self._admit()
        results = []
        for number, item in enumerate(request.items):
            try:
                results.append(self._decide(number, item))
            except MemsvcError as error:
                raise _located(error, number, item) from None
        position = txn.position
        if self._effects or key:
            answer = WriteAnswer(
                tuple(results), format_position(txn.store_id, txn.epoch, position + 1)
            )
            txn.append(self._entry(key, answer))
            return answer
        return WriteAnswer(tuple(results), format_position(txn.store_id, txn.epoch, position))

    def _entry(self, key: bytes, answer: WriteAnswer) -> Entry:
        actions = {e.action for e in self._effects}
        reasons = [i.reason for i in self._request.items if isinstance(i, Update) and i.reason]
        return Entry(
            tenant=self._request.namespace.tenant,
            agent=self._request.namespace.agent,
            action=actions.pop() if len(actions) == 1 else Action.WRITE if actions else Action.NONE,
            effects=tuple(self._effects),
            actor=self._caller.actor,
            reason=reasons[0] if reasons else "",
            request=RememberedRequest(key, self._request.fingerprint, _answer_to_json(answer))
            if key
            else None,
        )

    def _admit(self) -> None:
        """Refuses what would not fit. Duplicates count too: an upper bound, decided
        before anything is looked up."""
        new = [p for p in self._prepared if p is not None]
        size = sum(p.size for p in new) + sum(map(_added_bytes, self._request.items))
        limits, txn = self._limits, self._txn
        items, used = txn.tenant(self._request.namespace.tenant)
        for limit, wanted, reason, setting in (
            (limits.max_bytes, txn.accounted_bytes + size, "STORE_FULL", "storage.max_bytes"),
            (limits.max_elements, txn.memories + len(new), "STORE_FULL", "index.max_elements"),
            (limits.tenant_max_items, items + len(new), "QUOTA_ITEMS", "limits.tenant_max_items"),
            (limits.tenant_max_bytes, used + size, "QUOTA_BYTES", "limits.tenant_max_bytes"),
        ):
            if limit and (new or size) and wanted > limit:
                raise ResourceExhausted(
                    f"{setting} is {limit}, this request would make it {wanted}",
                    reason=reason,
                    hint=f"forget memories, let them expire, or raise {setting}",
                    retry_after_ms=60_000,
                )

    # -- items -------------------------------------------------------------------------

    def _decide(self, number: int, item: WriteItem) -> WriteResult:
        if isinstance(item, NewMemory):
            return self._put(item, self._prepared[number])
        if isinstance(item, Touch):
            return self._touch(item)
        if isinstance(item, LateVector):
            return self._late_vector(item)
        return self._update(item)

    def _put(self, item: NewMemory, prepared: Prepared | None) -> WriteResult:
        assert prepared is not None
        if prepared.dedup_hash:
            known = self._dedup.get(prepared.dedup_hash) or (
                self._txn.dedup(self._number, prepared.dedup_hash) if self._number else None
            )
            if known is not None:
                _row, state = self._known(known)
                status = current_status(state, self._txn.now)
                return WriteResult(format_id(known), Outcome.EXISTS, status, state.version)
            self._dedup[prepared.dedup_hash] = prepared.id
        now, metadata = self._txn.now, item.metadata
        ttl = self._limits.default_ttl_ms if item.ttl_ms is None else item.ttl_ms
        ts = now if metadata.ts is None else metadata.ts
        effect = Effect(
            id=prepared.id,
            action=Action.PUT,
            row=self._next_row,
            version=1,
            status_before=Status.UNSPECIFIED,
            status_after=item.status or Status.ACTIVE,
            ts=ts,
            importance=_f32(
                DEFAULT_IMPORTANCE if metadata.importance is None else metadata.importance
            ),
            expires_at=now + ttl if ttl else 0,
            recalled_at=now,
            recall_count=0,
            payload_hash=prepared.hashed,
            dedup_hash=prepared.dedup_hash,
            payload=prepared.payload,
        )
        self._next_row += 1
        self._record(
            effect,
            State(
                prepared.id,
                1,
                effect.status_after,
                1,
                0,
                now,
                now,
                ts,
                effect.expires_at,
                effect.recalled_at,
                effect.importance,
                0,
                0,
            ),
        )
        return WriteResult(format_id(prepared.id), Outcome.CREATED, effect.status_after, 1)

    def _touch(self, item: Touch) -> WriteResult:
        row, state = self._find(item.id)
        used, now = item.kind is TouchKind.USED, self._txn.now
        ts = item.ts if item.ts is not None else (state.ts if used else now)
        effect = replace(
            unchanged_effect(state, row, Action.TOUCH),
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
        payload = replace(old, vectors={**old.vectors, self._generation: raw})
        effect = replace(
            unchanged_effect(state, row, Action.VECTOR),
            version=state.version + 1,
            generation=self._generation,
            payload=payload,
            payload_hash=_hash(payload),
        )
        # A row's vector never changes, since segments hold it: a second one needs a new
        # row, and so does a row that this very request has made.
        if self._generation in old.vectors or state.id in self._payloads:
            effect = self._moved(effect, row)
        self._record(effect, state)
        return WriteResult(item.id, Outcome.VECTOR_ADDED, Status(state.status), effect.version)

    def _update(self, item: Update) -> WriteResult:
        row, state = self._find(item.id)
        _check_version(state, item.if_version)
        now = self._txn.now
        effect = replace(unchanged_effect(state, row, Action.UPDATE), version=state.version + 1)
        if item.status and item.status != state.status:
            if not self._caller.may_review:
                raise PermissionDenied(
                    "changing the status needs the review right",
                    hint="ask for a token with the right review",
                )
            effect = replace(effect, status_after=item.status)
        if item.metadata.ts is not None:
            effect = replace(effect, ts=item.metadata.ts)
        if item.metadata.importance is not None:
            effect = replace(effect, importance=_f32(item.metadata.importance))
        if item.ttl_ms is not None:
            effect = replace(effect, expires_at=now + item.ttl_ms if item.ttl_ms else 0)
        back = effect.status_after != state.status == Status.EXPIRED
        if (back or effect.status_after is Status.ACTIVE) and 0 < effect.expires_at <= now:
            raise InvalidArgument(
                "ttl_ms: the lifetime of this memory has passed; give a new one",
                violations=(Violation("ttl_ms", "give a new lifetime to bring it back"),),
            )
        old = self._payload(state.id, row)
        payload = self._changed_payload(old, item)
        if payload is not None:
            payload = replace(payload, salt=self._random(keys.SALT_BYTES))
            effect = self._moved(replace(effect, payload=payload, payload_hash=_hash(payload)), row)
        elif replace(effect, version=state.version) == unchanged_effect(state, row, Action.UPDATE):
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
        place = self._txn.locate(id_bytes)
        if place is None or place[0] != self._number:
            raise NotFound("no such memory in this namespace")
        state = self._txn.state(*place)
        if state is None:
            raise NotFound("no such memory in this namespace")
        return place[1], state

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
        found = self._payloads.get(id_bytes)
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

    def _moved(self, effect: Effect, old_row: int) -> Effect:
        """The effect with a new row in place of the old one."""
        moved = replace(effect, row=self._next_row, replaces_row=old_row)
        self._next_row += 1
        return moved

    def _record(self, effect: Effect, before: State) -> None:
        self._effects.append(effect)
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


def _added_bytes(item: WriteItem) -> int:
    """What an update or late vector may add: the version before stays for a while."""
    if not isinstance(item, LateVector | Update):
        return 0
    size = 0 if item.vector is None else len(item.vector) * 4
    if isinstance(item, Update):
        size += sum(len(text.encode()) for text in (item.content, item.summary) if text)
    return size


def _f32(value: float) -> float:
    """As float32 stores it, so that log, state and answers agree to the bit."""
    return float(np.float32(value))


def _hash(payload: Payload) -> bytes:
    return keys.payload_hash(payload.salt, payload.head, payload.content, payload.vectors)


def _without_state(metadata: Metadata) -> Metadata:
    return replace(metadata, ts=None, importance=None)


def _check_version(state: State, if_version: int) -> None:
    if if_version and if_version != state.version:
        raise VersionMismatch(
            f"the memory has version {state.version}, not {if_version}",
            hint="read it again, then decide whether the change still holds",
            metadata={"version": str(state.version)},
        )


_KIND_NAMES = {NewMemory: "memory", Touch: "touch", Update: "update", LateVector: "vector"}


def _located(error: MemsvcError, number: int, item: WriteItem) -> MemsvcError:
    """The error with the item it is about, and a note that nothing was applied."""
    path = f"items[{number}].{_KIND_NAMES[type(item)]}"
    error.message = f"{path}: {error.message}"
    error.args = (error.message,)
    error.violations = tuple(
        Violation(f"{path}.{v.field}", v.description) for v in error.violations
    )
    if not error.violations and error.code is Code.NOT_FOUND:
        error.violations = (Violation(f"{path}.id", "unknown, forgotten or not visible"),)
    error.hint = error.hint or "nothing of the request was applied"
    return error


def remembered(txn: WriteTxn, key: bytes, fingerprint: bytes) -> bytes | None:
    """The answer given to this request id within the last 24 hours, if any.

    Raises InvalidArgument when the id was used for another request.
    """
    known = txn.request(key)
    if known is None or known[0] + REQUEST_ID_TTL_MS <= txn.now:
        return None
    if known[1] != fingerprint:
        raise InvalidArgument(
            "request_id: was used for another request",
            reason="REQUEST_ID_REUSED",
            violations=(Violation("request_id", "was used for another request"),),
            hint="use a new request_id for each request, the same one only to repeat it",
        )
    return known[2]


def _answer_to_json(answer: WriteAnswer) -> bytes:
    results = [[r.id, int(r.outcome), int(r.status), r.version] for r in answer.results]
    return json.dumps({"results": results, "position": answer.position}).encode()


def _answer_from_json(data: bytes) -> WriteAnswer:
    raw = json.loads(data)
    return WriteAnswer(
        tuple(WriteResult(i, Outcome(o), Status(s), v) for i, o, s, v in raw["results"]),
        raw["position"],
        replayed=True,
    )


def unknown_embedding(name: str, known: list[str]) -> FailedPrecondition:
    """The error for a vector of a model this store does not know."""
    shown = ", ".join(repr(k) for k in known)
    return FailedPrecondition(
        f"embedding: {name!r} is not known here; known are {shown}",
        reason="EMBEDDING_UNKNOWN",
        hint="vectors of different models cannot be compared: use the store's model, or a "
        "store of its own for the new one",
        violations=(Violation("embedding", f"one of {shown}"),),
    )
