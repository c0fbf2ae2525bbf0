"""The Query call, and what is counted of calls: all that a process needs that only reads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from memsvc.domain.errors import DeadlineExceeded, MemsvcError, StoreUnreadable
from memsvc.domain.types import Caller, Degraded, DegradedLevel, Mode, QueryAnswer, QueryRequest
from memsvc.domain.validate import check_query
from memsvc.service.api import Control
from memsvc.service.degradation import REPLICA_LAGGING, STORE_UNREADABLE, Degradation
from memsvc.service.generations import Generations
from memsvc.service.positions import format_position, lost_position, parse_position
from memsvc.service.recalls import RecallBuffer
from memsvc.service.search.plan import Plan, check_rights, words_of
from memsvc.service.search.scope import Reader
from memsvc.service.search.searcher import Searcher, empty_answer
from memsvc.service.writing import WriteLimits
from memsvc.store.store import Store

GENERATION_REASONS = frozenset({"DIMENSION_MISMATCH", "EMBEDDING_UNKNOWN"})
"""Reasons of refusals that depend on which embeddings there are."""
FALLBACK_TOP_K = 20
"""What top_k is lowered to at level FALLBACK, and for reads that fell back to this node."""
READ_FALLBACK = Degraded(DegradedLevel.FALLBACK, "READ_FALLBACK")
"""The mark of the answer to a read that fell back to this node."""


@dataclass(frozen=True, slots=True)
class CallSettings:
    """What the calls take from the configuration; times in ms. May be replaced at any time."""

    write_limits: WriteLimits
    default_top_k: int
    max_top_k: int
    ef_search: int
    min_score: Callable[[str, str], float]


class Progress:
    """The position that readers may rely on; lets a query wait for one."""

    def __init__(self, position: int) -> None:
        self._position = position
        self._moved = threading.Condition()

    @property
    def position(self) -> int:
        """The last one that was reached."""
        return self._position

    def reached(self, position: int) -> None:
        """Told by the writer after each commit."""
        with self._moved:
            self._position = max(self._position, position)
            self._moved.notify_all()

    def wait_for(self, position: int, control: Control) -> bool:
        """Whether the position came before the call's deadline."""
        with self._moved:
            while self._position < position:
                left = control.remaining()
                if left <= 0 or control.cancelled():
                    return False
                self._moved.wait(min(left, 0.1))
        return True


class QueryService:
    """Answers Query from a store, which another process may write. ``clock`` gives UTC ms.
    ``own_log_wait_s`` is how long a position may take to arrive on the node that writes the
    log; None on one that follows another."""

    def __init__(
        self,
        store: Store,
        searcher: Searcher,
        generations: Generations,
        degradation: Degradation,
        recalls: RecallBuffer,
        progress: Progress,
        settings: CallSettings,
        *,
        clock: Callable[[], int],
        own_log_wait_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._store = store
        self._searcher = searcher
        self._generations = generations
        self._degradation = degradation
        self._recalls = recalls
        self._progress = progress
        self.settings = settings
        self._clock = clock
        self._own_log_wait_s = own_log_wait_s
        self.on_unreadable: Callable[[], None] = lambda: None
        """Told when the database cannot be read."""
        self._active = 0
        self._active_lock = threading.Lock()

    @property
    def active_calls(self) -> int:
        """Calls being served."""
        return self._active

    # -- query -------------------------------------------------------------------------

    def query(self, caller: Caller, request: QueryRequest, control: Control) -> QueryAnswer:
        """Answers for one position; past query.timeout_ms, and when the database cannot be read,
        empty and marked."""
        with self._counted():
            control.check()
            plan = self._first_plan(caller, request)
            try:
                self._await_position(request.min_position, control)
                plan = self._settled(plan, caller, request)
                forced = self._degradation.forced_empty(plan.mode, bool(plan.terms))
                if forced is not None:
                    return empty_answer(plan, self._position(), forced)
                answer = self._searcher.answer(plan, control)
            except StoreUnreadable:
                if plan is None:
                    raise
                # It knows no position: whoever waits for one must not take this for it.
                self.on_unreadable()
                return empty_answer(plan, "", STORE_UNREADABLE)
            if request.rank is not None and not request.include.explain:
                # To explain is to look at the ranking, not to use what it finds.
                self._recalls.add(
                    request.namespace, [id_ for hits in answer.lists for id_ in hits.ids]
                )
            return answer

    def _first_plan(self, caller: Caller, request: QueryRequest) -> Plan | None:
        """The plan by the embeddings there are; None when it waits for a position by which there
        may be others: an entry on the way may add one, or make it the default."""
        try:
            return self._plan(caller, request)
        except MemsvcError as error:
            if request.min_position and error.reason in GENERATION_REASONS:
                return None
            raise

    def _settled(self, plan: Plan | None, caller: Caller, request: QueryRequest) -> Plan:
        """The plan once the position that was asked for is there."""
        if plan is None or (
            request.min_position and self._generations.named(request.embedding) != plan.generation
        ):
            return self._plan(caller, request)
        return plan

    def _plan(self, caller: Caller, request: QueryRequest) -> Plan:
        settings, namespace = self.settings, request.namespace
        generation = self._generations.named(request.embedding)
        terms = words_of(request.text)
        try:
            filters, mode = check_query(
                request, generation.dimension, settings.max_top_k, bool(terms)
            )
        except MemsvcError as error:
            raise self._generations.explain(error) from None
        if filters is not request.filters:
            request = replace(request, filters=filters)
        check_rights(caller, request)
        degraded = self._degradation.of_queries()
        if request.fallback and degraded.level < DegradedLevel.FALLBACK:
            degraded = READ_FALLBACK
        top_k = request.top_k or settings.default_top_k
        if request.ids:
            top_k = len(request.ids)
        elif request.fallback or (
            # What lags has nothing to spare itself for.
            degraded.level is DegradedLevel.FALLBACK and degraded != REPLICA_LAGGING
        ):
            top_k = min(top_k, FALLBACK_TOP_K)
        if degraded.level is DegradedLevel.NO_VECTORS and terms:
            mode = Mode.KEYWORD if mode in (Mode.VECTOR, Mode.HYBRID) else mode
        min_score = settings.min_score(namespace.tenant, namespace.agent)
        return Plan(
            request=request,
            reader=Reader(filters, self._clock(), caller.may_review, request.as_of),
            mode=mode,
            generation=generation,
            top_k=top_k,
            min_score=min_score if request.min_score is None else request.min_score,
            ef=request.ef_search or settings.ef_search,
            terms=terms,
            degraded=degraded,
        )

    def _await_position(self, text: str, control: Control) -> None:
        if not text:
            return
        until, own = control.deadline, self._own_log_wait_s()
        while (position := self._parse_position(text, ahead=own is None)) is None:
            # Of an epoch that this follower has not heard of.
            if not self._progress.wait_for(self._progress.position + 1, control):
                raise _not_reached()
        if own is not None:
            # What this node has answered is in its log by now, and nobody else adds to it. To
            # wait longer would hold a thread for each made-up position.
            until = min(until, time.monotonic() + own)
        if not self._progress.wait_for(position, Control(until, control.cancelled)):
            if own is not None and control.remaining() > 0 and not control.cancelled():
                raise lost_position()
            raise _not_reached()
        # While it waited, the position may have been lost and given to another write.
        self._parse_position(text)

    def _parse_position(self, text: str, *, ahead: bool = False) -> int | None:
        with self._store.read() as snapshot:
            return parse_position(
                text, snapshot.store_id, snapshot.epoch, snapshot.epochs, ahead=ahead
            )

    def _position(self) -> str:
        with self._store.read() as snapshot:
            return format_position(snapshot.store_id, snapshot.epoch, snapshot.position)

    # -- counting calls ----------------------------------------------------------------

    def _counted(self) -> _Counted:
        return _Counted(self)

    def enter(self) -> None:
        """One more call is being served."""
        with self._active_lock:
            self._active += 1

    def leave(self) -> None:
        """One fewer."""
        with self._active_lock:
            self._active -= 1


def _not_reached() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the position was not reached within the deadline",
        reason="POSITION_NOT_REACHED",
        hint="allow more time, or ask the primary",
        retry_after_ms=200,
    )


class _Counted:
    def __init__(self, service: QueryService) -> None:
        self._service = service

    def __enter__(self) -> None:
        self._service.enter()

    def __exit__(self, *_: object) -> None:
        self._service.leave()
