"""Tells the service which memories were put before a model, without making anybody wait."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Final

from memsvc.client.calls import MemoryCalls
from memsvc.client.errors import ClientError
from memsvc.client.messages import NamespaceLike
from memsvc.domain.types import Touch, TouchKind

MAX_WAITING: Final = 64
"""Contexts whose touches wait; those of further ones are dropped. Recall counts steer decay, they
are not facts."""

_log = logging.getLogger(__name__)


class UsedTouches:
    """Touches memories as USED from a thread of its own, which starts when it is first needed.

    What fails is dropped and counted: memories that are gone by now, a service that is down, a
    token that may not write.
    """

    def __init__(self, client: MemoryCalls) -> None:
        self._client = client
        self._waiting: queue.Queue[tuple[NamespaceLike, Sequence[str]] | None]
        self._waiting = queue.Queue(MAX_WAITING)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.dropped = 0
        """Contexts whose touches did not reach the service."""

    def add(self, namespace: NamespaceLike, ids: Sequence[str]) -> None:
        """These memories were used. Never waits."""
        if not ids:
            return
        with self._lock:
            if self._closed:
                return
            if self._thread is None or not self._thread.is_alive():
                if self._thread is not None:  # it is the parent's, and so is who waits there
                    self._waiting = queue.Queue(MAX_WAITING)
                self._thread = threading.Thread(
                    target=self._work, name="memsvc-touches", daemon=True
                )
                self._thread.start()
            try:
                self._waiting.put_nowait((namespace, ids))
            except queue.Full:
                self.dropped += 1

    def flush(self, seconds: float) -> bool:
        """Waits until all that was added was sent, or dropped; False when the time was over."""
        end = time.monotonic() + seconds
        with self._waiting.all_tasks_done:
            while self._waiting.unfinished_tasks:
                thread = self._thread
                if thread is None or not thread.is_alive():
                    return False
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._waiting.all_tasks_done.wait(left)
        return True

    def close(self, seconds: float) -> None:
        """Sends what is waiting, for at most so long, and ends the thread."""
        self.flush(seconds)
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is None or not thread.is_alive():
            return
        while True:
            try:
                self._waiting.put_nowait(None)
                break
            except queue.Full:
                try:
                    self._waiting.get_nowait()
                    self._waiting.task_done()
                except queue.Empty:
                    continue

    def _work(self) -> None:
        while True:
            entry = self._waiting.get()
            try:
                if entry is None:
                    return
                namespace, ids = entry
                self._client.write(namespace, [Touch(id_, kind=TouchKind.USED) for id_ in ids])
            except (ClientError, ValueError) as error:
                # ValueError: the caller closed the client before.
                self.dropped += 1
                _log.debug("memories that were used are not counted: %s", error)
            finally:
                self._waiting.task_done()
