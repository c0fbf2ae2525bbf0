"""Write: from a request to log entries.

What needs no state (ids, heads, hashes) is prepared in the caller's thread; the decision
runs in the writer thread, sees everything decided before, and appends one entry or none.
What each item comes to is decided in ``resolving``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from memsvc.domain.errors import (
    Code,
    InvalidArgument,
    MemsvcError,
    ResourceExhausted,
    Violation,
)
from memsvc.domain.ids import new_id
from memsvc.domain.limits import REQUEST_ID_TTL_MS
from memsvc.domain.log import Action, Effect, Entry, Generation, Payload, RememberedRequest
from memsvc.domain.types import (
    Caller,
    LateVector,
    NewMemory,
    Outcome,
    Status,
    Touch,
    Update,
    WriteAnswer,
    WriteItem,
    WriteRequest,
    WriteResult,
)
from memsvc.service.generations import check_serving
from memsvc.service.positions import format_position
from memsvc.service.resolving import Prepared, Resolver, vector_bytes
from memsvc.store import heads, keys
from memsvc.store.write_txn import WriteTxn


@dataclass(frozen=True, slots=True)
class WriteLimits:
    """Admission limits; 0 = none. ``default_ttl_ms`` 0 = memories live for ever."""

    default_ttl_ms: int = 0
    max_elements: int = 0
    max_bytes: int = 0
    tenant_max_items: int = 0
    tenant_max_bytes: int = 0


class Batch(NamedTuple):
    """A request made ready outside the writer thread: what each new memory needs (None for
    other items), how many are new, and the bytes that all may add at most."""

    items: list[Prepared | None]
    new: int
    size: int


def prepare(
    request: WriteRequest, generation: int, now_ms: int, random: Callable[[int], bytes]
) -> Batch:
    """What needs no state. ``random(n)`` gives n bytes."""
    found: list[Prepared | None] = []
    new = size = 0
    session = request.namespace.session
    # One draw for all: 10 bytes of id and 16 of salt a memory.
    entropy = random(26 * len(request.items))
    for number, item in enumerate(request.items):
        if not isinstance(item, NewMemory):
            found.append(None)
            size += _added_bytes(item)
            continue
        part = entropy[26 * number : 26 * number + 26]
        head = heads.build_head(
            heads.shown_summary(item.summary, item.content), session, item.metadata
        )
        vectors = {} if item.vector is None else {generation: vector_bytes(item.vector)}
        content, salt = item.content, part[10:]
        found.append(
            Prepared(
                new_id(now_ms, part[:10]),
                Payload(head, content, salt, item.dedup_key, vectors),
                keys.payload_hash(salt, head, content, vectors),
                keys.dedup_hash(item.dedup_key) if item.dedup_key else b"",
            )
        )
        new += 1
        size += keys.accounted_bytes(head, content, vectors)
    return Batch(found, new, size)


class WriteDecision:
    """Decides a whole write request inside a transaction."""

    def __init__(
        self,
        request: WriteRequest,
        caller: Caller,
        prepared: Batch,
        generation: Generation,
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
        check_serving(txn, self._generation)
        self._admit(txn)
        prepared = self._prepared.items
        resolver = Resolver(
            txn,
            txn.partition(namespace.tenant, namespace.agent),
            self._caller,
            self._generation.number,
            self._limits.default_ttl_ms,
            self._random,
            [p.dedup_hash for p in prepared if p is not None and p.dedup_hash],
        )
        results = []
        for number, (item, ready) in enumerate(zip(request.items, prepared, strict=True)):
            try:
                results.append(resolver.resolve(item, ready))
            except MemsvcError as error:
                raise _located(error, number, item) from None
        position = txn.position
        if resolver.effects or key:
            answer = WriteAnswer(
                tuple(results), format_position(txn.store_id, txn.epoch, position + 1)
            )
            txn.append(self._entry(resolver.effects, key, answer))
            return answer
        return WriteAnswer(tuple(results), format_position(txn.store_id, txn.epoch, position))

    def _entry(self, effects: list[Effect], key: bytes, answer: WriteAnswer) -> Entry:
        actions = {e.action for e in effects}
        reasons = [i.reason for i in self._request.items if isinstance(i, Update) and i.reason]
        return Entry(
            tenant=self._request.namespace.tenant,
            agent=self._request.namespace.agent,
            action=actions.pop() if len(actions) == 1 else Action.WRITE if actions else Action.NONE,
            effects=tuple(effects),
            actor=self._caller.actor,
            reason=reasons[0] if reasons else "",
            request=RememberedRequest(key, self._request.fingerprint, _answer_to_json(answer))
            if key
            else None,
        )

    def _admit(self, txn: WriteTxn) -> None:
        """Refuses what would not fit. Duplicates count too: an upper bound, decided
        before anything is looked up."""
        new, size, limits = self._prepared.new, self._prepared.size, self._limits
        items, used = txn.tenant(self._request.namespace.tenant)
        for limit, wanted, reason, setting in (
            (limits.max_bytes, txn.accounted_bytes + size, "STORE_FULL", "storage.max_bytes"),
            (limits.max_elements, txn.memories + new, "STORE_FULL", "index.max_elements"),
            (limits.tenant_max_items, items + new, "QUOTA_ITEMS", "limits.tenant_max_items"),
            (limits.tenant_max_bytes, used + size, "QUOTA_BYTES", "limits.tenant_max_bytes"),
        ):
            if limit and (new or size) and wanted > limit:
                raise ResourceExhausted(
                    f"{setting} is {limit}, this request would make it {wanted}",
                    reason=reason,
                    hint=f"forget memories, let them expire, or raise {setting}",
                    retry_after_ms=60_000,
                )


def _added_bytes(item: WriteItem) -> int:
    """What an update or late vector may add: the version before stays for a while."""
    if not isinstance(item, LateVector | Update):
        return 0
    size = 0 if item.vector is None else len(item.vector) * 4
    if isinstance(item, Update):
        size += sum(len(text.encode()) for text in (item.content, item.summary) if text)
    return size


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
