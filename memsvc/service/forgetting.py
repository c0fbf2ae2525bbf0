"""Forget: HARD erases, DECAY lowers the importance. The log gets ids, never the filter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from memsvc.domain.filters import Filter, matches
from memsvc.domain.limits import MAX_ENTRY_EFFECTS, MAX_RETURNED_IDS
from memsvc.domain.log import Action, Effect, Entry, RememberedRequest
from memsvc.domain.records import State
from memsvc.domain.types import Caller, ForgetAnswer, ForgetMode, ForgetRequest, Status
from memsvc.service.positions import format_id, format_position
from memsvc.service.writing import current_status, remembered, unchanged_effect
from memsvc.store import heads, keys
from memsvc.store.snapshot import Snapshot
from memsvc.store.write_txn import WriteTxn


class ForgetDecision:
    """Decides a Forget over candidate ids inside a transaction.

    The candidates were found at an earlier position; each is judged again here, so that a
    memory that changed in between is not taken by an outdated match.
    """

    def __init__(
        self,
        request: ForgetRequest,
        filters: Filter | None,
        candidates: Sequence[bytes],
        caller: Caller,
        operation_id: str,
    ) -> None:
        self._request = request
        self._filters = filters
        self._candidates = candidates
        self._caller = caller
        self._operation_id = operation_id

    def __call__(self, txn: WriteTxn) -> ForgetAnswer:
        """The answer; entries of at most 10,000 effects are appended."""
        request, namespace = self._request, self._request.namespace
        key = b""
        if request.request_id:
            key = keys.request_hash("Forget", namespace.tenant, namespace.agent, request.request_id)
            known = remembered(txn, key, request.fingerprint)
            if known is not None:
                return _answer_from_json(known)
        matched, effects = self.judge(txn)
        chunks = [
            effects[i : i + MAX_ENTRY_EFFECTS] for i in range(0, len(effects), MAX_ENTRY_EFFECTS)
        ]
        if key and not chunks:
            chunks = [[]]
        answer = self._answer(txn, matched, len(effects), len(chunks))
        for number, chunk in enumerate(chunks):
            last = number == len(chunks) - 1
            action = Action.FORGET if request.mode is ForgetMode.HARD else Action.DECAY
            txn.append(
                Entry(
                    tenant=namespace.tenant,
                    agent=namespace.agent,
                    action=action if chunk else Action.NONE,
                    effects=tuple(chunk),
                    actor=self._caller.actor,
                    reason=request.reason,
                    operation_id=self._operation_id if len(chunks) > 1 else "",
                    request=RememberedRequest(key, request.fingerprint, _answer_to_json(answer))
                    if key and last
                    else None,
                )
            )
        return answer

    def preview(self, snapshot: Snapshot, now_ms: int) -> ForgetAnswer:
        """What a call would do, by the same judgement, without doing it."""
        matched, _effects = self.judge(snapshot, now_ms)
        return self._answer(snapshot, matched, 0, 0)

    def judge(
        self, snapshot: Snapshot, now_ms: int | None = None
    ) -> tuple[list[bytes], list[Effect]]:
        """Ids that match, and the effects on those that would change."""
        namespace = self._request.namespace
        now = snapshot.now if isinstance(snapshot, WriteTxn) else now_ms or 0
        partition = snapshot.partition(namespace.tenant, namespace.agent)
        matched: list[bytes] = []
        effects: list[Effect] = []
        if partition is None:
            return matched, effects
        for id_bytes in dict.fromkeys(self._candidates):
            place = snapshot.locate(id_bytes)
            if place is None or place[0] != partition.number:
                continue
            state = snapshot.state(*place)
            if state is None or not self._selects(snapshot, partition.number, place[1], state, now):
                continue
            matched.append(id_bytes)
            effect = self._effect(state, place[1])
            if effect is not None:
                effects.append(effect)
        return matched, effects

    def _selects(
        self, snapshot: Snapshot, partition: int, row: int, state: State, now: int
    ) -> bool:
        status = current_status(state, now)
        if status is Status.FORGOTTEN:
            return False
        if self._request.mode is ForgetMode.DECAY and status is not Status.ACTIVE:
            return False
        if self._filters is None:
            return True
        text = snapshot.text(partition, row)
        if text is None:
            return False
        # Filters see the status that readers see, so that what is past its time but not
        # yet swept counts as expired.
        return matches(self._filters, heads.field_getter(text.head, state._replace(status=status)))

    def _effect(self, state: State, row: int) -> Effect | None:
        if self._request.mode is ForgetMode.HARD:
            return replace(
                unchanged_effect(state, row, Action.FORGET),
                version=state.version + 1,
                status_after=Status.FORGOTTEN,
                ts=0,
                importance=0.0,
                expires_at=0,
                recalled_at=0,
                recall_count=0,
            )
        lowered = state.importance * self._request.factor
        if lowered == state.importance:
            return None
        return replace(unchanged_effect(state, row, Action.DECAY), importance=lowered)

    def _answer(
        self, snapshot: Snapshot, matched: list[bytes], changed: int, entries: int
    ) -> ForgetAnswer:
        position = snapshot.position + entries
        return ForgetAnswer(
            matched=len(matched),
            changed=changed,
            ids=tuple(format_id(i) for i in matched[:MAX_RETURNED_IDS]),
            ids_truncated=len(matched) > MAX_RETURNED_IDS,
            position=format_position(snapshot.store_id, snapshot.epoch, position),
        )


def _answer_to_json(answer: ForgetAnswer) -> bytes:
    return json.dumps(
        [answer.matched, answer.changed, list(answer.ids), answer.ids_truncated, answer.position]
    ).encode()


def _answer_from_json(data: bytes) -> ForgetAnswer:
    matched, changed, ids, truncated, position = json.loads(data)
    return ForgetAnswer(matched, changed, tuple(ids), truncated, position, replayed=True)
