"""Queries are let in, given a snapshot and a time limit, and answered."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from memsvc.domain.generations import unknown_embedding
from memsvc.domain.hits import NO_HITS
from memsvc.domain.types import Degraded, DegradedLevel, Mode, QueryAnswer
from memsvc.service.api import Control
from memsvc.service.cores import usable_cores
from memsvc.service.degradation import NO_QUERY_TEXT, SEGMENT_DAMAGED
from memsvc.service.positions import format_position
from memsvc.service.search.costs import CostBook
from memsvc.service.search.execution import Execution
from memsvc.service.search.plan import Plan, SearchSettings
from memsvc.service.search.registry import Views
from memsvc.service.search.selection import ids_matching
from memsvc.service.search.slots import OutOfTime, Slots
from memsvc.service.search.vector import Check
from memsvc.service.search.view import PartitionView
from memsvc.store.snapshot import Snapshot

BESIDE_THREADS: Final = 4
"""Threads that scan beside the calls' own: tails while those search graphs, halves of scans."""
SLOTS_MORE: Final = 1
"""Queries that search at once beyond the number of cores: while one waits for the disk, and so
that one agent never has all places."""

TOO_LATE: Final = Degraded(DegradedLevel.TIMEOUT, "TIMEOUT")


class Searcher:
    """Answers queries from views; ``book`` has the planner's figures."""

    def __init__(
        self, views: Views, settings: SearchSettings, book: CostBook, processes: int = 1
    ) -> None:
        """``processes`` share the cores by searching."""
        self._views = views
        self.settings = settings
        self._book = book
        cores = -(-usable_cores() // processes)
        self._slots = Slots(cores + SLOTS_MORE, each=cores)
        self._beside = ThreadPoolExecutor(BESIDE_THREADS, "memsvc-search")
        self.on_searched: Callable[[str, float], None] = lambda _tier, _seconds: None
        """Told of each search by vector how long each tier took; set once."""

    def close(self) -> None:
        """Ends the threads; to be called when no query runs."""
        self._beside.shutdown()

    def answer(self, plan: Plan, control: Control) -> QueryAnswer:
        """The answer; empty and marked when ``timeout_ms`` passes first.

        Raises DeadlineExceeded or Cancelled when the caller's own deadline passes.
        """
        limit = time.monotonic() + self.settings.timeout_ms / 1_000

        def check() -> float:
            control.check()
            left = limit - time.monotonic()
            if left < 0:
                raise OutOfTime
            return min(left, control.remaining())

        who = (plan.request.namespace.tenant, plan.request.namespace.agent)
        try:
            self._slots.enter(check, who)
        except OutOfTime:
            with self._views.store.read() as snapshot:
                position = format_position(snapshot.store_id, snapshot.epoch, snapshot.position)
            return empty_answer(plan, position, TOO_LATE)
        try:
            return self._answer(plan, check)
        finally:
            self._slots.leave(who)

    def _answer(self, plan: Plan, check: Check) -> QueryAnswer:
        namespace = plan.request.namespace
        with self._views.read(namespace.tenant, namespace.agent) as (snapshot, view):
            position = format_position(snapshot.store_id, snapshot.epoch, snapshot.position)
            if plan.request.vectors and not snapshot.serves(plan.generation.number):
                # Dropped since the plan was made.
                raise unknown_embedding(plan.generation.embedding, snapshot.generations())
            if snapshot.time > plan.reader.now:
                # This clock is behind the one that wrote; expiry goes by the later.
                plan = replace(plan, reader=replace(plan.reader, now=snapshot.time))
            try:
                check()
                execution = self._execution(plan, snapshot, view, check)
                lists, token = execution.run()
                if execution.blind and plan.mode is Mode.VECTOR and plan.terms:
                    # No vectors, and no time to read those in the records: words instead.
                    plan = replace(plan, mode=Mode.KEYWORD)
                    execution = self._execution(plan, snapshot, view, check)
                    execution.lost = True
                    lists, token = execution.run()
            except OutOfTime:
                return empty_answer(plan, position, TOO_LATE)
        for tier, seconds in execution.seconds.items():
            self.on_searched(tier, seconds)
        degraded = plan.degraded
        if execution.lost and degraded.level < DegradedLevel.NO_VECTORS:
            nothing = execution.blind and not plan.terms and not any(lists)
            degraded = NO_QUERY_TEXT if nothing else SEGMENT_DAMAGED
        return QueryAnswer(
            tuple(lists),
            plan.request.many,
            plan.mode,
            position,
            degraded,
            token,
            tuple(execution.explain or ()),
        )

    def _execution(
        self, plan: Plan, snapshot: Snapshot, view: PartitionView | None, check: Check
    ) -> Execution:
        return Execution(
            plan,
            snapshot,
            view,
            self.settings,
            self._book,
            check,
            self._views.on_damage,
            # While others search, every thread has enough to do.
            self._beside if self._slots.taken <= 1 else None,
        )

    def matching_ids(self, plan: Plan, control: Control) -> list[bytes]:
        """Ids of everything that passes the plan's reader, for a Forget by filter."""
        namespace = plan.request.namespace
        with self._views.read(namespace.tenant, namespace.agent) as (snapshot, view):
            if view is None:
                return []
            return ids_matching(view, snapshot, plan.reader, control.check)


def empty_answer(plan: Plan, position: str, degraded: Degraded) -> QueryAnswer:
    """An empty, marked answer."""
    lists = (NO_HITS,) * max(1, len(plan.request.vectors))
    return QueryAnswer(lists, plan.request.many, plan.mode, position, degraded)
