"""What waits for the writer thread, and what of it is committed together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from memsvc.domain.errors import ResourceExhausted, Unavailable
from memsvc.store.write_txn import WriteTxn

T = TypeVar("T")

GROUP_ITEMS: Final = 512
"""Items after which a group is committed without waiting for more."""
GROUP_WAIT_S: Final = 0.002
"""Longest wait for a group to become as large as the one before (traps: producers that
wait for their answer otherwise alternate in halves)."""


@dataclass(slots=True)
class Request(Generic[T]):
    """A decision that waits for its turn, and whoever waits for its result."""

    decide: Callable[[WriteTxn], T]
    items: int
    deadline: float
    frees: bool
    internal: bool = False
    future: Future[T] = field(default_factory=Future)
    begun: bool = False

    def begin(self) -> bool:
        """Whether the request still waits for an answer. From here on the caller can no
        longer take it back, so that "not applied" is true."""
        if not self.begun:
            # A future does not bear to be told twice that it was cancelled.
            if self.future.cancelled() or not self.future.set_running_or_notify_cancel():
                return False
            self.begun = True
        return not self.future.done()

    def fail(self, error: BaseException) -> None:
        """Tells whoever waits."""
        if self.begin():
            self.future.set_exception(error)


class WriteQueue:
    """Requests in the order of their arrival. ``most`` bounds the items that wait."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._queue: deque[Request[Any]] = deque()
        self._queued = 0
        self._wake = threading.Condition()
        self._stopping = False
        self._paused = 0
        self._idle = True
        self._last_group = 1

    @property
    def queued(self) -> int:
        """Items that wait."""
        return self._queued

    def put(self, request: Request[Any], retry_after_ms: int) -> None:
        """Raises ResourceExhausted when too many wait, and Unavailable at the end."""
        with self._wake:
            if self._stopping:
                raise Unavailable(
                    "the node is shutting down", reason="SHUTTING_DOWN", retry_after_ms=1_000
                )
            if not request.internal and self._queued + request.items > self.most:
                raise ResourceExhausted(
                    "too many writes are waiting",
                    reason="WRITE_QUEUE_FULL",
                    hint="slow down, or raise storage.write_queue_max",
                    retry_after_ms=retry_after_ms,
                )
            self._queue.append(request)
            self._queued += request.items
            self._wake.notify_all()

    def stop(self) -> None:
        """Takes nothing more; what is there is still given out."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()

    def exclusive(self, action: Callable[[], T]) -> T:
        """Runs an action while no write transaction is open and none begins."""
        with self._wake:
            self._paused += 1
            self._wake.notify_all()
            while not self._idle:
                self._wake.wait()
        try:
            return action()
        finally:
            with self._wake:
                self._paused -= 1
                self._wake.notify_all()

    def next_group(self, until: float | None = None) -> list[Request[Any]] | None:
        """What is to be committed together. None: the end. With ``until`` (monotonic), an
        empty list when nothing came by then."""
        with self._wake:
            while not self._queue or self._paused:
                if until is None:
                    # Not with a transaction open: whoever waits for a pause would go ahead.
                    self._idle = True
                    self._wake.notify_all()
                if self._stopping and not self._queue:
                    return None
                timeout = None if until is None else until - time.monotonic()
                if timeout is not None and (timeout <= 0 or self._paused):
                    return []
                self._wake.wait(timeout)
            self._idle = False
            grown = time.monotonic() + GROUP_WAIT_S
            while len(self._queue) < self._last_group and self._queued < GROUP_ITEMS:
                left = grown - time.monotonic()
                if left <= 0 or self._stopping:
                    break
                self._wake.wait(left)
            group: list[Request[Any]] = []
            items = 0
            while self._queue and (not group or items + self._queue[0].items <= GROUP_ITEMS):
                request = self._queue.popleft()
                items += request.items
                group.append(request)
            self._queued -= items
            self._last_group = len(group)
            return group
