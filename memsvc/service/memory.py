"""The four calls: what agents may ask of a node."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TypeVar

from memsvc.domain.errors import DeadlineExceeded, MemsvcError, Unavailable
from memsvc.domain.filters import Filter
from memsvc.domain.ids import parse_id
from memsvc.domain.types import (
    Caller,
    Degraded,
    ForgetAnswer,
    ForgetMode,
    ForgetRequest,
    Mode,
    QueryRequest,
    WriteAnswer,
    WriteRequest,
)
from memsvc.domain.validate import check_forget, check_write
from memsvc.service.api import Control
from memsvc.service.degradation import Degradation
from memsvc.service.forgetting import ForgetDecision, forget_batches
from memsvc.service.generations import Generations
from memsvc.service.querying import CallSettings, Progress, QueryService
from memsvc.service.recalls import RecallBuffer
from memsvc.service.search.plan import Plan, check_rights
from memsvc.service.search.scope import Reader
from memsvc.service.search.searcher import Searcher
from memsvc.service.writing import WriteDecision, prepare
from memsvc.store.store import Store
from memsvc.store.writer import Writer

T = TypeVar("T")


class MemoryService(QueryService):
    """Implements api.MemoryApi except health. ``clock`` gives UTC ms, ``random(n)`` n bytes.
    ``confirm`` waits, after a change, for the replicas that are to have it.
    ``own_log_wait_s`` is how long a position may take to arrive on the node that writes the
    log; None on one that follows another."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        searcher: Searcher,
        generations: Generations,
        degradation: Degradation,
        recalls: RecallBuffer,
        progress: Progress,
        settings: CallSettings,
        *,
        clock: Callable[[], int],
        random: Callable[[int], bytes] = os.urandom,
        guard_writes: Callable[[], None] = lambda: None,
        guard_changes: Callable[[], None] = lambda: None,
        confirm: Callable[[Control], None] = lambda _control: None,
        own_log_wait_s: Callable[[], float | None] = lambda: 0.0,
    ) -> None:
        super().__init__(
            store,
            searcher,
            generations,
            degradation,
            recalls,
            progress,
            settings,
            clock=clock,
            own_log_wait_s=own_log_wait_s,
        )
        self._writer = writer
        self._random = random
        self._guard_writes = guard_writes
        self._guard_changes = guard_changes
        self._confirm = confirm

    # -- write -------------------------------------------------------------------------

    def write(self, caller: Caller, request: WriteRequest, control: Control) -> WriteAnswer:
        """Applies all items or none; returns when they are committed."""
        with self._counted():
            control.check()
            generation = self._generations.named(request.embedding)
            try:
                check_write(request, generation.dimension)
            except MemsvcError as error:
                raise self._generations.explain(error) from None
            self._guard_changes()
            self._guard_writes()
            prepared = prepare(request, generation.number, self._clock(), self._random)
            decision = WriteDecision(
                request,
                caller,
                prepared,
                generation,
                self.settings.write_limits,
                self._random,
            )
            answer = _result(
                self._writer.submit(decision, items=len(request.items), deadline=control.deadline),
                control,
            )
            self._confirm(control)
            return answer

    # -- forget ------------------------------------------------------------------------

    def forget(self, caller: Caller, request: ForgetRequest, control: Control) -> ForgetAnswer:
        """Erases or lowers memories; with validate_only tells what would be."""
        with self._counted():
            control.check()
            filters = check_forget(request)
            if request.validate_only:
                # It tells what a query with these filters would tell.
                check_rights(caller, QueryRequest(request.namespace, filters=filters))
            if not request.validate_only:
                self._guard_changes()
            if request.validate_only or not request.ids:
                # What is acknowledged must be among what is selected.
                self._writer.settle()
            candidates = self._selected(request, filters, control)
            if request.validate_only:
                decision = ForgetDecision(request, filters, candidates, caller)
                with self._store.read() as snapshot:
                    return decision.preview(snapshot, max(self._clock(), snapshot.time))
            answer = self._forget(
                forget_batches(request, filters, candidates, caller, self._random(8).hex()),
                control,
            )
            self._confirm(control)
            return answer

    def _forget(self, batches: list[ForgetDecision], control: Control) -> ForgetAnswer:
        """Batch by batch, so that writes of others go on in between."""
        answer: ForgetAnswer | None = None
        for batch in batches:
            batch.before = answer
            future = self._writer.submit(
                batch,
                items=1,
                deadline=control.deadline,
                frees=True,
                # What has begun is not refused half way because others fill the queue.
                internal=answer is not None,
            )
            try:
                answer = _result(future, control)
            except DeadlineExceeded as error:
                if answer is None:
                    raise
                raise DeadlineExceeded(
                    f"the deadline passed when {answer.changed} memories were done",
                    hint="send it again with the same request_id: it goes on with the rest",
                ) from error
            finally:
                del future  # see _result
            if answer.replayed:
                break
        assert answer is not None
        return answer

    def _selected(
        self, request: ForgetRequest, filters: Filter | None, control: Control
    ) -> list[bytes]:
        """Ids that the decision will judge: those named, or those that match now."""
        if request.ids:
            return [i for i in map(parse_id, request.ids) if i is not None]
        # HARD is about what is stored, not about what is visible.
        hidden = request.mode is ForgetMode.HARD
        plan = Plan(
            request=QueryRequest(request.namespace),
            reader=Reader(filters, self._clock(), True, None, all_statuses=hidden),
            mode=Mode.BROWSE,
            generation=self._generations.default,
            top_k=0,
            min_score=-1.0,
            ef=0,
            terms=(),
            degraded=Degraded(),
        )
        return self._searcher.matching_ids(plan, control)


def _result(future: Future[T], control: Control) -> T:
    """The result of a write, waited for until the call's deadline."""
    try:
        while True:
            left = control.remaining()
            try:
                return future.result(timeout=max(0.0, min(left, 0.25)))
            except FutureTimeout:
                if control.remaining() > 0 and not control.cancelled():
                    continue
                if future.cancel():
                    raise DeadlineExceeded("the deadline of the call has passed") from None
                raise DeadlineExceeded(
                    "the deadline passed while the write was being committed; it may or may "
                    "not have been applied",
                    hint="send it again with the same request_id and dedup_keys: it is "
                    "applied once",
                ) from None
    except MemsvcError:
        raise
    except Exception as error:
        raise Unavailable(
            "the write could not be stored",
            reason="STORE_FAILED",
            hint="the node's log has the cause; the request may be repeated",
            retry_after_ms=1_000,
        ) from error
    finally:
        # The future holds the error, whose traceback holds this frame.
        del future
