"""The writer thread: one queue, group commit, answers after the fsync.

Invariants: one thread writes; a decision sees every decision before it; a caller is
answered only when its effects are committed (``always``) or applied and committed within
a second (``every_1000ms``); a decision that raises leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import lmdb

from memsvc.domain.errors import DeadlineExceeded, MemsvcError, ResourceExhausted
from memsvc.store.store import Store
from memsvc.store.write_queue import Request, WriteQueue
from memsvc.store.write_txn import WriteTxn

log = logging.getLogger(__name__)
T = TypeVar("T")

LAZY_COMMIT_S: Final = 1.0


@dataclass(slots=True)
class _Done:
    """A transaction about to commit: outcomes, position, rows in the tails it touched by
    partition, and when the commit began (monotonic)."""

    outcomes: list[tuple[bool, Any]]
    position: int
    tails: dict[int, int]
    started: float


@dataclass(slots=True)
class WriterStats:
    """Counters for metrics: groups committed, their items, seconds spent committing."""

    groups: int = 0
    items: int = 0
    commit_seconds: float = 0.0
    last_commit_seconds: float = 0.0


class Writer:
    """Serialises all changes of a store.

    ``clock`` gives UTC ms. ``queue_max`` bounds the waiting items; past it ``submit``
    raises ResourceExhausted at once. ``lazy`` is storage.wal_sync = every_1000ms.
    ``room`` is asked when a commit found no room on the disk, and may free a reserve so
    that requests that free space can go on.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int],
        *,
        queue_max: int,
        lazy: bool = False,
        on_commit: Callable[[int, float, int, dict[int, int]], None] = lambda _p, _s, _n, _t: None,
        on_full: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._lazy = lazy
        self._on_commit = on_commit
        self._on_full = on_full
        self._queue = WriteQueue(queue_max)
        self._begun = 0.0
        self.stats = WriterStats()
        self._lost = store.unsettled() and not store.follower
        """Positions may have been told that no entry has: an epoch begins before the next
        transaction, which takes them back."""
        self._marked = self._lost
        if lazy:
            # On a full disk the first transaction has to try again.
            with contextlib.suppress(lmdb.Error, OSError):
                self._mark()
        self._thread = threading.Thread(target=self._run, name="memsvc-writer", daemon=True)
        self._thread.start()

    @property
    def queue_max(self) -> int:
        """Items that may wait."""
        return self._queue.most

    @queue_max.setter
    def queue_max(self, most: int) -> None:
        self._queue.most = most

    @property
    def queued(self) -> int:
        """Items that wait."""
        return self._queue.queued

    @property
    def alive(self) -> bool:
        """Whether the thread that writes runs."""
        return self._thread.is_alive()

    @property
    def native_id(self) -> int | None:
        """The system's number of that thread."""
        return self._thread.native_id

    @property
    def busy_s(self) -> float:
        """Seconds since the group was begun that is being carried out; 0 when there is none."""
        begun = self._begun
        return time.monotonic() - begun if begun else 0.0

    def submit(
        self,
        decide: Callable[[WriteTxn], T],
        *,
        items: int = 1,
        deadline: float = float("inf"),
        frees: bool = False,
        internal: bool = False,
    ) -> Future[T]:
        """Queues a decision. Its result arrives when its effects are committed.

        ``deadline`` is a time.monotonic() value: a request not begun by then is refused.
        ``frees`` marks what must go on when the store or disk is full. ``internal`` work of
        the node does not count against the bound. Raises ResourceExhausted, Unavailable.
        """
        request = Request(decide, items, deadline, frees, internal)
        retry_after_ms = max(100, int(1_000 * self.stats.last_commit_seconds) * 4)
        self._queue.put(request, retry_after_ms)
        return request.future

    def run(self, decide: Callable[[WriteTxn], T], *, frees: bool = True) -> T:
        """Queues internal work of the node and waits for it."""
        return self.submit(decide, frees=frees, internal=True).result()

    def settle(self) -> None:
        """Returns when whatever was acknowledged is committed, where readers see it."""
        if self._lazy:
            # When the commit fails, what was acknowledged is gone, and readers see what is.
            with contextlib.suppress(ResourceExhausted):
                self.run(lambda _txn: None)

    def exclusive(self, action: Callable[[], T]) -> T:
        """Runs an action while no write transaction is open and none begins."""
        return self._queue.exclusive(action)

    def stop(self) -> None:
        """Finishes what is queued, then ends."""
        self._queue.stop()
        self._thread.join()
        if self._marked and not self._lost:
            self._marked = False
            # A mark that stays only costs an epoch.
            with contextlib.suppress(lmdb.Error, OSError):
                self._store.set_unsettled(False)

    # -- the thread --------------------------------------------------------------------

    def _run(self) -> None:
        while self._write_group():
            pass  # in a method, so that nothing of a group is kept while waiting for the next

    def _write_group(self) -> bool:
        group = self._queue.next_group()
        if group is None:
            return False
        self._begun = time.monotonic()
        try:
            if self._lazy:
                self._commit_lazily(group)
            else:
                self._commit(group)
        except BaseException as error:  # the thread must survive anything
            log.exception("writer failed")
            for request in group:
                request.fail(error)
        finally:
            self._begun = 0.0
        return True

    def _mark(self) -> None:
        """Before anything is acknowledged that a crash may lose: tells the next start."""
        if not self._marked:
            self._store.set_unsettled(True)
            self._marked = True

    def _begin_epoch(self) -> None:
        """Alone, and before anything is answered: readers must know the epoch of a position
        that they are asked to wait for. Not where the log is another's by now."""
        if self._lost and not self._store.follower:
            with self._store.write(self._clock()) as txn:
                txn.begin_epoch()
                txn.set_unsettled(self._lazy)
            self._lost, self._marked = False, self._lazy

    def _decide(self, request: Request[Any], txn: WriteTxn) -> tuple[bool, Any]:
        """(True, result) or (False, error that is the caller's own)."""
        if not request.begin():
            return False, None
        if request.deadline < time.monotonic():
            return False, DeadlineExceeded(
                "the deadline passed while the write waited; nothing was applied",
                hint="the node is busy: allow more time or slow down",
            )
        try:
            return True, request.decide(txn)
        except MemsvcError as error:
            # Its traceback names this frame, this frame the request, and the request's future
            # would name the error: a ring that keeps the whole request until it is collected.
            error.__context__ = None
            return False, error.with_traceback(None)

    def _commit(self, group: list[Request[Any]]) -> None:
        try:
            done = self._transact(group)
        except Exception as error:
            self._one_by_one(group, error)
            return
        self._committed(sum(request.items for request in group), done)
        self._answer(group, done.outcomes)

    def _transact(self, group: list[Request[Any]]) -> _Done:
        self._begin_epoch()
        with self._store.write(self._clock()) as txn:
            outcomes = [self._decide(request, txn) for request in group]
            done = _Done(outcomes, txn.position, txn.tails(), time.monotonic())
        return done

    def _one_by_one(self, group: list[Request[Any]], error: Exception) -> None:
        """After a group failed: each alone, so that one cannot take others with it."""
        full = self._store.no_room(error)  # asked before the reserve is given up
        if full:
            self._on_full()
        if len(group) == 1 and not (full and group[0].frees):
            group[0].fail(_explained(error, full))
            return
        for request in group:
            if full and not request.frees:
                request.fail(_explained(error, full))
                continue
            try:
                done = self._transact([request])
            except Exception as again:
                request.fail(_explained(again, self._store.no_room(again)))
                continue
            self._committed(request.items, done)
            self._answer([request], done.outcomes)

    def _committed(self, items: int, done: _Done) -> None:
        seconds = time.monotonic() - done.started
        self.stats.groups += 1
        self.stats.items += items
        self.stats.commit_seconds += seconds
        self.stats.last_commit_seconds = seconds
        self._on_commit(done.position, seconds, items, done.tails)

    @staticmethod
    def _answer(group: list[Request[Any]], outcomes: list[tuple[bool, Any]]) -> None:
        for request, (good, value) in zip(group, outcomes, strict=True):
            if good:
                request.future.set_result(value)
            elif value is not None:
                request.future.set_exception(value)

    def _commit_lazily(self, group: list[Request[Any]]) -> None:
        """``every_1000ms``: answers after applying, commits with fsync within a second.

        A request is decided inside the open transaction; one that fails for want of room
        aborts it, and what it had answered is lost, as after a crash: it is logged, and an
        epoch begins before the next transaction, so that the positions are not given out again. The
        node's own work acts on files according to what is on disk, so it is answered after
        the commit, which it brings on.
        """
        until = time.monotonic() + LAZY_COMMIT_S
        answered = items = 0
        waiting: list[Request[Any]] = []
        outcomes: list[tuple[bool, Any]] = []
        try:
            self._begin_epoch()
            self._mark()
            with self._store.write(self._clock()) as txn:
                while group:
                    for request in group:
                        outcome = self._decide(request, txn)
                        items += request.items
                        if request.internal:
                            waiting.append(request)
                            outcomes.append(outcome)
                            continue
                        self._answer([request], [outcome])
                        answered += 1
                    more = [] if waiting else self._queue.next_group(until)
                    if not more:
                        break
                    group = more
                done = _Done([], txn.position, txn.tails(), time.monotonic())
            # After the commit: whoever waits for the position reads at once.
            self._committed(items, done)
            self._answer(waiting, outcomes)
        except Exception as error:
            full = self._store.no_room(error)
            if full:
                self._on_full()
            self._lost = self._lost or answered > 0
            log.error("lost %d acknowledged writes of the last second", answered, exc_info=error)
            for request in (*waiting, *group):
                request.fail(_explained(error, full))


def _explained(error: Exception, full: bool) -> Exception:
    if full:
        return disk_full()
    log.error("write failed", exc_info=error)
    return error


def disk_full() -> ResourceExhausted:
    """The error of a write that found no room on the disk."""
    return ResourceExhausted(
        "no room on the disk of the data directory",
        reason="DISK_FULL",
        hint="free disk space or forget memories; writes go on by themselves once there is room",
        retry_after_ms=5_000,
    )
