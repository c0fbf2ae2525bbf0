"""Upkeep of records by the clock: expiry, truncation of payloads, old request ids.

Each step is a decision for the writer that does a bounded amount of work and returns whether
more may be left.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from memsvc.domain.limits import REQUEST_ID_TTL_MS
from memsvc.domain.log import Action, Effect, Entry, unchanged_effect
from memsvc.domain.records import FLAG_ERASED
from memsvc.domain.types import Status
from memsvc.service.generations import purge_vectors
from memsvc.store import keys
from memsvc.store.store import Store
from memsvc.store.write_txn import WriteTxn

BATCH: Final = 2_000
"""Rows handled in one transaction, so that writes never wait long for the sweeper."""

Step = Callable[[WriteTxn], bool]


def due_steps(
    store: Store, now: int, *, expired_before: int, replaced_before: int, follows: bool
) -> list[Step]:
    """The steps that have something to do. Times are UTC ms; see ``purge`` for the last two.
    ``follows``: the log is another node's, and with it come expiry and truncation."""
    with store.read() as snapshot:
        steps: list[Step] = []
        if snapshot.due_requests(now - REQUEST_ID_TTL_MS, 1):
            steps.append(forget_requests)
        if follows:
            return steps
        if snapshot.due("expiry", now, 1):
            steps.append(expire)
        if snapshot.due("expired", expired_before, 1) or snapshot.due(
            "replaced", replaced_before, 1
        ):
            steps.append(lambda txn: purge(txn, expired_before, replaced_before))
        dropped = (g.number for g in snapshot.all_generations() if g.dropped)
        if any(snapshot.first_vectors(number, 1) for number in dropped):
            steps.append(purge_vectors)
        return steps


def expire(txn: WriteTxn) -> bool:
    """Turns memories whose lifetime has passed into EXPIRED."""
    due = txn.due("expiry", txn.now, BATCH)
    effects: dict[int, list[Effect]] = defaultdict(list)
    stale = []
    for time, number, row in due:
        state = txn.state(number, row)
        if (
            state is None
            or not state.current
            or state.expires_at != time
            or (state.status in (Status.EXPIRED, Status.FORGOTTEN))
        ):
            stale.append(keys.TIMED_ROW.pack(time, number, row))
            continue
        effects[number].append(
            unchanged_effect(state, row, Action.EXPIRE)._replace(
                status_after=Status.EXPIRED,
                version=state.version + 1,
            )
        )
    txn.drop("expiry", stale)
    _append(txn, Action.EXPIRE, effects, "lifetime passed")
    return len(due) == BATCH


def purge(txn: WriteTxn, expired_before: int, replaced_before: int) -> bool:
    """Drops payloads of memories that expired, and of versions that were replaced, before
    the given times (UTC ms)."""
    effects: dict[int, list[Effect]] = defaultdict(list)
    handled = 0
    for table, until in (("expired", expired_before), ("replaced", replaced_before)):
        due = txn.due(table, until, BATCH)
        handled += len(due)
        for _time, number, row in due:
            state = txn.state(number, row)
            if state is None or state.flags & FLAG_ERASED:
                continue
            if table == "expired" and state.status != Status.EXPIRED:
                continue  # a reviewer brought it back
            effects[number].append(unchanged_effect(state, row, Action.PURGE))
        txn.drop(table, (keys.TIMED_ROW.pack(*key) for key in due))
    _append(txn, Action.PURGE, effects, "payload dropped on schedule")
    return handled >= BATCH


def forget_requests(txn: WriteTxn) -> bool:
    """Forgets request ids after their 24 hours."""
    due = txn.due_requests(txn.now - REQUEST_ID_TTL_MS, BATCH)
    txn.drop_requests(due)
    return len(due) == BATCH


def _append(txn: WriteTxn, action: Action, effects: dict[int, list[Effect]], reason: str) -> None:
    for number, found in effects.items():
        partition = txn.partition_number(number)
        assert partition is not None
        txn.append(
            Entry(
                partition.tenant,
                partition.agent,
                action,
                tuple(_once(found)),
                actor="system",
                reason=reason,
            )
        )


def _once(effects: Iterable[Effect]) -> list[Effect]:
    """One effect a row: a row may stand in both by-time tables."""
    return list({effect.row: effect for effect in effects}.values())
