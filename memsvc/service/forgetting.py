"""Forget: HARD erases, DECAY lowers the importance. The log gets ids, never the filter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from memsvc.domain.filters import Filter, matches
from memsvc.domain.ids import format_id
from memsvc.domain.limits import MAX_RETURNED_IDS
from memsvc.domain.log import Action, Effect, Entry, RememberedRequest, unchanged_effect
from memsvc.domain.records import State, current_status
from memsvc.domain.types import Caller, ForgetAnswer, ForgetMode, ForgetRequest, Status
from memsvc.service.positions import format_position
from memsvc.service.writing import remembered
from memsvc.store import heads, keys
from memsvc.store.snapshot import Snapshot
from memsvc.store.write_txn import WriteTxn

ID_BYTES: Final = 16
FORGET_BATCH: Final = 2_000
"""Candidates judged in one transaction, so that writes of others go on in between."""


class ForgetDecision:
    """Decides a Forget, or one batch of a large one, over candidate ids inside a transaction.

    The candidates were found at an earlier position; each is judged again here, so that a
    memory that changed in between is not taken by an outdated match.
    """

    def __init__(
        self,
        request: ForgetRequest,
        filters: Filter | None,
        candidates: Sequence[bytes],
        caller: Caller,
        operation_id: str = "",
        *,
        last: bool = True,
    ) -> None:
        self._request = request
        self._filters = filters
        self._candidates = candidates
        self._caller = caller
        self._operation_id = operation_id
        self._last = last
        self.before: ForgetAnswer | None = None
        """Answer of the batches before this one."""

    def __call__(self, txn: WriteTxn) -> ForgetAnswer:
        """The answer, with that of the batches before; appends at most one entry."""
        request, namespace = self._request, self._request.namespace
        before, done = self.before, b""
        remember: RememberedRequest | None = None
        key = progress = b""
        if request.request_id:
            names = (namespace.tenant, namespace.agent, request.request_id)
            key = keys.request_hash("Forget", *names)
            known = remembered(txn, key, request.fingerprint)
            if known is not None:
                return _answer_from_json(known)
            progress = keys.request_hash("Forget, so far", *names)
            so_far = remembered(txn, progress, request.fingerprint)
            if so_far is not None:
                done, before = so_far[:ID_BYTES], _answer_from_json(so_far[ID_BYTES:])
        if done:
            # An earlier try ended in the middle: it had judged the ids up to this one.
            self._candidates = [i for i in self._candidates if i > done]
        matched, effects = self.judge(txn)
        entries = int(bool(effects) or bool(key))
        answer = _sum(before, self._answer(txn, matched, len(effects), entries))
        if key and self._last:
            remember = RememberedRequest(key, request.fingerprint, _answer_to_json(answer))
        elif key:
            judged = max([done, *self._candidates])
            remember = RememberedRequest(
                progress, request.fingerprint, judged + _answer_to_json(answer)
            )
        if entries:
            action = Action.FORGET if request.mode is ForgetMode.HARD else Action.DECAY
            txn.append(
                Entry(
                    tenant=namespace.tenant,
                    agent=namespace.agent,
                    action=action if effects else Action.NONE,
                    effects=tuple(effects),
                    actor=self._caller.actor,
                    reason=request.reason,
                    operation_id=self._operation_id,
                    request=remember,
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
            return unchanged_effect(state, row, Action.FORGET)._replace(
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
        return unchanged_effect(state, row, Action.DECAY)._replace(importance=lowered)

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


def forget_batches(
    request: ForgetRequest,
    filters: Filter | None,
    candidates: Sequence[bytes],
    caller: Caller,
    operation_id: str,
) -> list[ForgetDecision]:
    """The decisions of a Forget, one behind the other; give each the answer ``before``.

    Batches go up in the order of ids. With a request id each notes the last id it judged,
    and what came of it: the same request sent again leaves those out, whatever has been
    written meanwhile, and tells the same in the end.
    """
    if len(candidates) <= FORGET_BATCH:
        return [ForgetDecision(request, filters, candidates, caller)]
    ordered = sorted(set(candidates))
    starts = range(0, len(ordered), FORGET_BATCH)
    return [
        ForgetDecision(
            request,
            filters,
            ordered[start : start + FORGET_BATCH],
            caller,
            operation_id,
            last=start == starts[-1],
        )
        for start in starts
    ]


def _sum(before: ForgetAnswer | None, answer: ForgetAnswer) -> ForgetAnswer:
    if before is None:
        return answer
    matched = before.matched + answer.matched
    return ForgetAnswer(
        matched,
        before.changed + answer.changed,
        (*before.ids, *answer.ids)[:MAX_RETURNED_IDS],
        matched > MAX_RETURNED_IDS,
        answer.position,
    )


def _answer_to_json(answer: ForgetAnswer) -> bytes:
    return json.dumps(
        [answer.matched, answer.changed, list(answer.ids), answer.ids_truncated, answer.position]
    ).encode()


def _answer_from_json(data: bytes) -> ForgetAnswer:
    matched, changed, ids, truncated, position = json.loads(data)
    return ForgetAnswer(matched, changed, tuple(ids), truncated, position, replayed=True)
