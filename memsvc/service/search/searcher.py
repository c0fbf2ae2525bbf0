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
from memsvc.service.search.beside import Check
from memsvc.service.search.cache import Kept, ResultCache, key_of, stamp_of
from memsvc.service.search.costs import CostBook
from memsvc.service.search.execution import Execution
from memsvc.service.search.mutable import NEVER
from memsvc.service.search.plan import CacheBounds, Plan, SearchSettings
from memsvc.service.search.registry import Views
from memsvc.service.search.selection import ids_matching
from memsvc.service.search.slots import OutOfTime, Slots
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
        self.cache = ResultCache()
        self.on_cache: Callable[[bool], None] = lambda _hit: None
        """Told of each query that was looked for in the cache whether it was there; set once."""

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

        bounds = self.settings.cache
        key = None if bounds is None else key_of(plan)
        if bounds is not None and key is not None:
            # Before it waits for a place: a kept answer takes next to nothing.
            kept = self._kept(plan, key, bounds)
            self.on_cache(kept is not None)
            if kept is not None:
                return kept
        who = (plan.request.namespace.tenant, plan.request.namespace.agent)
        try:
            self._slots.enter(check, who)
        except OutOfTime:
            with self._views.store.read() as snapshot:
                position = _position_of(snapshot)
            return empty_answer(plan, position, TOO_LATE)
        try:
            answer, to_keep = self._answer(plan, check)
        finally:
            self._slots.leave(who)
        if bounds is not None and key is not None and to_keep is not None:
            self.cache.put(key, to_keep.owned(), bounds)
        return answer

    def _kept(self, plan: Plan, key: bytes, bounds: CacheBounds) -> QueryAnswer | None:
        """An answer that was kept, as it is at this moment; None when there is none that holds."""
        namespace = plan.request.namespace
        with self._views.store.read() as snapshot:
            partition = snapshot.partition(namespace.tenant, namespace.agent)
            if partition is None or not snapshot.serves(plan.generation.number):
                return None
            stamp = stamp_of(snapshot, partition)
            plan = plan.at(snapshot.time)
            position = _position_of(snapshot)
        kept = self.cache.find(key, stamp, plan.reader.now, bounds)
        if kept is None:
            return None
        half_life = self.settings.half_life_ms
        lists = [
            chosen.at(plan.reader.now, plan.scored_at, half_life).ranked(
                plan.request.rank, plan.scored_at
            )
            for chosen in kept.lists
        ]
        return QueryAnswer(
            tuple(lists), plan.request.many, plan.mode, position, plan.degraded, kept.token
        )

    def _answer(self, plan: Plan, check: Check) -> tuple[QueryAnswer, Kept | None]:
        """The answer, and what of it may be kept."""
        namespace = plan.request.namespace
        with self._views.read(namespace.tenant, namespace.agent) as (snapshot, view):
            position = _position_of(snapshot)
            if plan.request.vectors and not snapshot.serves(plan.generation.number):
                # Dropped since the plan was made.
                raise unknown_embedding(plan.generation.embedding, snapshot.generations())
            plan = plan.at(snapshot.time)
            stamp = None if view is None else stamp_of(snapshot, view.partition)
            try:
                check()
                execution = self._execution(plan, snapshot, view, check)
                chosen, token = execution.run()
                if execution.blind and plan.mode is Mode.VECTOR and plan.terms:
                    # No vectors, and no time to read those in the records: words instead.
                    plan = replace(plan, mode=Mode.KEYWORD)
                    execution = self._execution(plan, snapshot, view, check)
                    execution.lost = True
                    chosen, token = execution.run()
            except OutOfTime:
                return empty_answer(plan, position, TOO_LATE), None
        for tier, seconds in execution.seconds.items():
            self.on_searched(tier, seconds)
        lists = [one.ranked(plan.request.rank, plan.scored_at) for one in chosen]
        degraded = plan.degraded
        if execution.lost and degraded.level < DegradedLevel.NO_VECTORS:
            nothing = execution.blind and not plan.terms and not any(lists)
            degraded = NO_QUERY_TEXT if nothing else SEGMENT_DAMAGED
        answer = QueryAnswer(
            tuple(lists),
            plan.request.many,
            plan.mode,
            position,
            degraded,
            token,
            tuple(execution.explain or ()),
        )
        if stamp is None or view is None or degraded.level is not DegradedLevel.NONE:
            return answer, None
        until = min((part.mutable.first_expiry for part in view.parts), default=NEVER)
        if until <= plan.reader.now:
            return answer, None
        return answer, Kept(stamp, until, tuple(chosen), token)

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


def _position_of(snapshot: Snapshot) -> str:
    return format_position(snapshot.store_id, snapshot.epoch, snapshot.position)


def empty_answer(plan: Plan, position: str, degraded: Degraded) -> QueryAnswer:
    """An empty, marked answer."""
    lists = (NO_HITS,) * max(1, len(plan.request.vectors))
    return QueryAnswer(lists, plan.request.many, plan.mode, position, degraded)
