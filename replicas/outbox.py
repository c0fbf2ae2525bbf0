"""Recalls counted here, kept until the primary has them in its log."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from memsvc.replication.v1 import replication_service_pb2 as pb
from memsvc.rpc.replication import recalls_of
from memsvc.service.recalls import MAX_PENDING, Recalls

IDS_MAX: Final = MAX_PENDING
"""Memories in batches that wait; further batches are not counted."""


class Outbox:
    """Batches of recalls, in order. ``clock`` gives UTC ms: sequences begin with it, so that they
    go on rising after a restart. Lost by a crash, as everywhere: they steer decay, they are no
    facts."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[pb.RecallBatch] = deque()
        self._held = 0
        self._last = 0
        self._send: Callable[[pb.RecallBatch], None] | None = None

    def add(self, recalls: Recalls) -> None:
        """Takes a batch; it is sent at once when somebody listens."""
        ids, counts = list(recalls.counts), list(recalls.counts.values())
        with self._lock:
            if not ids or self._held + len(ids) > IDS_MAX:
                return
            self._last = max(self._last + 1, self._clock())
            batch = pb.RecallBatch(
                sequence=self._last,
                tenant=recalls.tenant,
                agent=recalls.agent,
                ids=b"".join(ids),
                counts=counts,
            )
            self._waiting.append(batch)
            self._held += len(ids)
            if self._send is not None:
                self._send(batch)

    def opened(self, send: Callable[[pb.RecallBatch], None]) -> None:
        """A stream is open: everything that waits is sent (again)."""
        with self._lock:
            self._send = send
            for batch in self._waiting:
                send(batch)

    def closed(self) -> None:
        """It is closed."""
        with self._lock:
            self._send = None

    def taken(self, sequence: int) -> None:
        """The primary has everything up to a batch."""
        with self._lock:
            while self._waiting and self._waiting[0].sequence <= sequence:
                self._held -= len(self._waiting.popleft().counts)

    def left(self, node_id: str) -> list[Recalls]:
        """What waits, for a log of this node's own; the former primary may have taken some."""
        with self._lock:
            return [recalls_of(batch, node_id) for batch in self._waiting]
