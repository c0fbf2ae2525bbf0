"""Recalls, counted in batches: one log entry now and then instead of a write per query.

A crash loses what was not yet flushed: recall counts steer decay, they are not facts.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from memsvc.domain.ids import parse_id
from memsvc.domain.limits import MAX_ENTRY_EFFECTS
from memsvc.domain.log import Action, Entry, RememberedRequest, unchanged_effect
from memsvc.domain.types import Namespace, Status
from memsvc.store import keys
from memsvc.store.write_txn import WriteTxn

MAX_PENDING: Final = 100_000
"""Recalls kept between flushes; further ones are not counted."""


class RecallBuffer:
    """Collects recalls until they are flushed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[tuple[str, str], dict[str, int]] = defaultdict(dict)
        self._size = 0

    def add(self, namespace: Namespace, ids: list[str]) -> None:
        """Counts one recall of each memory."""
        with self._lock:
            if self._size + len(ids) > MAX_PENDING:
                return
            counts = self._pending[namespace.tenant, namespace.agent]
            for id_text in ids:
                counts[id_text] = counts.get(id_text, 0) + 1
            self._size += len(ids)

    def merge(self, tenant: str, agent: str, counts: Mapping[str, int]) -> None:
        """Takes in what another process of the node has collected."""
        with self._lock:
            if self._size + len(counts) > MAX_PENDING:
                return
            mine = self._pending[tenant, agent]
            for id_text, count in counts.items():
                mine[id_text] = mine.get(id_text, 0) + count
            self._size += len(counts)

    def take(self) -> list[tuple[str, str, dict[str, int]]]:
        """Takes what is pending: tenant, agent, and recalls by memory id."""
        with self._lock:
            pending, self._pending = self._pending, defaultdict(dict)
            self._size = 0
        return [(tenant, agent, counts) for (tenant, agent), counts in pending.items()]

    def batches(self) -> list[Recalls]:
        """Takes what is pending, one batch for each agent."""
        return [
            Recalls(
                tenant,
                agent,
                {id_: count for text, count in counts.items() if (id_ := parse_id(text))},
            )
            for tenant, agent, counts in self.take()
        ]


@dataclass(frozen=True, slots=True)
class Recalls:
    """Recalls of the memories of one agent, by id (16 bytes). ``source`` names the batch where it
    may come more than once, and is "" elsewhere."""

    tenant: str
    agent: str
    counts: Mapping[bytes, int]
    source: str = ""

    def __call__(self, txn: WriteTxn) -> int:
        """A decision for the writer: appends the recalls of memories that are still active, unless
        the batch was taken before; returns how many."""
        partition = txn.partition(self.tenant, self.agent)
        if partition is None:
            return 0
        request = None
        if self.source:
            key = keys.request_hash("Recalls", self.tenant, self.agent, self.source)
            if txn.request(key) is not None:
                return 0
            request = RememberedRequest(key, bytes(16), b"")
        effects = []
        for id_bytes, count in self.counts.items():
            place = txn.locate(id_bytes)
            state = txn.state(*place) if place and place[0] == partition.number else None
            if place is None or state is None or state.status != Status.ACTIVE:
                continue
            effects.append(
                unchanged_effect(state, place[1], Action.RECALL)._replace(
                    recall_count=min(state.recall_count + count, 0xFFFFFFFF),
                    recalled_at=max(state.recalled_at, txn.now),
                )
            )
        for start in range(0, len(effects), MAX_ENTRY_EFFECTS):
            chunk = tuple(effects[start : start + MAX_ENTRY_EFFECTS])
            entry = Entry(self.tenant, self.agent, Action.RECALL, chunk, actor="system")
            txn.append(replace(entry, request=request))
            request = None
        return len(effects)
