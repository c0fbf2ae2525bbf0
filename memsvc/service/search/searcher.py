"""Query: one request against one position. The stages are in DESIGN.md."""

from __future__ import annotations

import os
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.errors import PermissionDenied, Violation
from memsvc.domain.filters import named_statuses
from memsvc.domain.log import Generation
from memsvc.domain.records import unpack_state
from memsvc.domain.scoring import rank_score, select
from memsvc.domain.types import (
    Caller,
    Degraded,
    DegradedLevel,
    ExplainPart,
    Hit,
    Mode,
    QueryAnswer,
    QueryRequest,
    RankOptions,
    Status,
)
from memsvc.segments.errors import SegmentDamaged
from memsvc.segments.rescore import ANY
from memsvc.segments.topk import unit
from memsvc.service.api import Control
from memsvc.service.positions import format_position, parse_id
from memsvc.service.search.browse import browse
from memsvc.service.search.costs import CostBook
from memsvc.service.search.hydrate import Candidates, Hydration, Room, hydrate, unscored
from memsvc.service.search.keyword import Words, search_words
from memsvc.service.search.parts import Part
from memsvc.service.search.registry import Views
from memsvc.service.search.scope import Reader, Scope, scope_of
from memsvc.service.search.slots import OutOfTime, Slots
from memsvc.service.search.vector import Bar, Check, VectorSearch
from memsvc.service.search.view import OnDamage, PartitionView
from memsvc.store import heads, keys
from memsvc.store.snapshot import Snapshot
from memsvc.text.fusion import fuse
from memsvc.text.tokenize import query_terms

LIST_LEAST: Final = 100
"""Candidates taken from each list of a hybrid search: twice what is wanted, at least this
many. The fused score depends on the candidate alone, so more of them change little."""

BESIDE_THREADS: Final = 4
"""Threads that scan tails while the calls' own threads search graphs."""
SLOTS_MORE: Final = 1
"""Queries that search at once beyond the number of cores: while one waits for the disk."""

JUDGED_BETWEEN_CHECKS: Final = 64
"""Records judged one by one between two looks at the time."""


TOO_LATE: Final = Degraded(DegradedLevel.TIMEOUT, "TIMEOUT")


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """What the searcher takes from the configuration; times in ms."""

    default_top_k: int
    ef_search: int
    timeout_ms: int
    half_life_ms: int
    max_answer_bytes: int = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked request: how it will be answered."""

    request: QueryRequest
    reader: Reader
    mode: Mode
    generation: Generation
    top_k: int
    min_score: float
    ef: int
    terms: tuple[str, ...]
    degraded: Degraded


class Searcher:
    """Answers queries from views; ``book`` has the planner's figures."""

    def __init__(self, views: Views, settings: SearchSettings, book: CostBook) -> None:
        self._views = views
        self.settings = settings
        self._book = book
        self._slots = Slots((os.cpu_count() or 1) + SLOTS_MORE)
        self._beside = ThreadPoolExecutor(BESIDE_THREADS, "memsvc-search")

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

        try:
            self._slots.enter(check)
        except OutOfTime:
            with self._views.store.read() as snapshot:
                position = format_position(snapshot.store_id, snapshot.epoch, snapshot.position)
            return empty_answer(plan, position, TOO_LATE)
        try:
            return self._answer(plan, check)
        finally:
            self._slots.leave()

    def _answer(self, plan: Plan, check: Check) -> QueryAnswer:
        namespace = plan.request.namespace
        with self._views.read(namespace.tenant, namespace.agent) as (snapshot, view):
            position = format_position(snapshot.store_id, snapshot.epoch, snapshot.position)
            if snapshot.time > plan.reader.now:
                # This clock is behind the one that wrote; expiry goes by the later.
                plan = replace(plan, reader=replace(plan.reader, now=snapshot.time))
            try:
                check()
                search = self._search(plan, snapshot, view, check)
                lists, token = search.run()
            except OutOfTime:
                return empty_answer(plan, position, TOO_LATE)
        degraded = plan.degraded
        if search.lost and degraded.level < DegradedLevel.NO_VECTORS:
            degraded = Degraded(DegradedLevel.NO_VECTORS, "SEGMENT_DAMAGED")
        return QueryAnswer(
            tuple(lists),
            plan.request.many,
            plan.mode,
            position,
            degraded,
            token,
            tuple(search.explain or ()),
        )

    def _search(
        self,
        plan: Plan,
        snapshot: Snapshot,
        view: PartitionView | None,
        check: Check,
    ) -> _Search:
        return _Search(
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

            def check() -> float:
                control.check()
                return control.remaining()

            return self._search(plan, snapshot, view, check).matching_ids()


def empty_answer(plan: Plan, position: str, degraded: Degraded) -> QueryAnswer:
    """An empty, marked answer."""
    lists: tuple[list[Hit], ...] = tuple([] for _ in range(max(1, len(plan.request.vectors))))
    return QueryAnswer(lists, plan.request.many, plan.mode, position, degraded)


def check_rights(caller: Caller, request: QueryRequest) -> None:
    """Raises PermissionDenied when hidden statuses are asked for without the review right."""
    hidden = named_statuses(request.filters) - {int(Status.ACTIVE)}
    if hidden and not caller.may_review:
        names = ", ".join(Status(number).name for number in sorted(hidden) if number)
        raise PermissionDenied(
            f"filters.status: {names} needs the review right",
            reason="REVIEW_RIGHT_NEEDED",
            hint="ask for a token with the right review, or filter for ACTIVE",
            violations=(Violation("filters.status", "only ACTIVE without the review right"),),
        )


def words_of(text: str) -> tuple[str, ...]:
    """Distinct terms of a query text; empty when it has no letter or digit."""
    return tuple(query_terms(text)) if text and not text.isspace() else ()


class _Search:
    """One query at work on one snapshot."""

    def __init__(
        self,
        plan: Plan,
        snapshot: Snapshot,
        view: PartitionView | None,
        settings: SearchSettings,
        book: CostBook,
        check: Check,
        on_damage: OnDamage,
        beside: Executor | None,
    ) -> None:
        self._on_damage = on_damage
        self._beside = beside
        self._plan = plan
        self._snapshot = snapshot
        self._view = view
        self._settings = settings
        self._book = book
        self._check = check
        self._scopes: list[Scope] = []
        self.explain: list[ExplainPart] | None = [] if plan.request.include.explain else None
        self.lost = False
        self._room = Room(settings.max_answer_bytes)

    def run(self) -> tuple[list[list[Hit]], str]:
        """The lists of hits and the next page token."""
        plan, request, view = self._plan, self._plan.request, self._view
        if view is None:
            return [[] for _ in range(max(1, len(request.vectors)))], ""
        if request.ids:
            return [self._by_ids(view)], ""
        self._scopes = [scope_of(part, plan.reader, self._snapshot) for part in view.parts]
        if plan.mode is Mode.BROWSE:
            hits, token = browse(
                view.parts,
                self._scopes,
                plan.reader,
                self._snapshot,
                self._how(view),
                request,
                plan.top_k,
                self._check,
            )
            return [self._ranked(hits, [0.0] * len(hits))], token
        words = None
        if plan.mode in (Mode.KEYWORD, Mode.HYBRID):
            words = search_words(
                view.parts,
                list(plan.terms),
                self._snapshot,
                self._check,
                hidden=plan.reader.sees_hidden,
            )
            self.lost = self.lost or words.lost
        # Where vectors are switched off there is still one list for each.
        blind = plan.degraded.level is DegradedLevel.NO_VECTORS
        queries = [None if blind else unit(v) for v in request.vectors] or [None]
        lists = []
        for query in queries:
            self._check()
            candidates = self._candidates(view, query, words)
            hits = self._hydrated(view, candidates)
            bound = words.bound if words else 0.0
            lists.append(self._ranked(hits, self._stand_ins(hits, bound)))
        return lists, ""

    def matching_ids(self) -> list[bytes]:
        """Ids of all rows that pass, judged on their records where columns cannot tell."""
        view = self._view
        assert view is not None
        found: list[bytes] = []
        for part in view.parts:
            self._check()
            scope = scope_of(part, self._plan.reader, self._snapshot)
            rows = part.rows[scope.mask].tolist()
            states = self._snapshot.packed_states(view.partition.number, rows)
            if scope.exact:
                found.extend(data[:16] for data in states if data is not None)
                continue
            texts = self._snapshot.raw_texts(view.partition.number, rows)
            for number, (data, text) in enumerate(zip(states, texts, strict=True)):
                if not number % JUDGED_BETWEEN_CHECKS:
                    self._check()
                if data is None or text is None:
                    continue
                state = unpack_state(data)
                if self._plan.reader.passes(keys.text_head(text), state):
                    found.append(state.id)
        return found

    # -- stages ------------------------------------------------------------------------

    def _how(self, view: PartitionView) -> Hydration:
        request = self._plan.request
        return Hydration(
            partition=view.partition.number,
            generation=self._plan.generation.number,
            half_life_ms=self._settings.half_life_ms,
            scored_at=self._plan.reader.now if request.as_of is None else request.as_of,
            include=request.include,
            room=self._room,
            check=self._check,
        )

    def _by_ids(self, view: PartitionView) -> list[Hit]:
        rows = []
        for asked, id_text in enumerate(self._plan.request.ids):
            if not asked % JUDGED_BETWEEN_CHECKS:
                self._check()
            id_bytes = parse_id(id_text)
            place = self._snapshot.locate(id_bytes) if id_bytes else None
            if place is not None and place[0] == view.partition.number:
                rows.append(place[1])
        found = unscored(np.array(rows, np.int64))
        reader, how = self._plan.reader, self._how(view)
        return hydrate(found, self._snapshot, reader, how, len(rows), judge=True)

    def _candidates(
        self, view: PartitionView, query: NDArray[np.float32] | None, words: Words | None
    ) -> list[tuple[Part, Candidates]]:
        """Candidates of each part, scored by the mode. Not yet merged."""
        plan = self._plan
        hybrid = plan.mode is Mode.HYBRID
        wanted = max(2 * plan.top_k, LIST_LEAST) if hybrid else plan.top_k
        judge = not all(scope.exact for scope in self._scopes)
        if judge:
            # Columns cannot tell: take every row in scope, in order, and judge the records.
            wanted = sum(scope.count for scope in self._scopes)
        searcher = None
        if query is not None and plan.mode is not Mode.KEYWORD:
            searcher = VectorSearch(
                self._snapshot,
                view.partition.number,
                plan.generation.number,
                query,
                self._book,
                self._check,
                self.explain,
                self._on_damage,
                self._beside,
            )
            if len(view.parts) > 1:
                searcher.begin(view.parts[-1], self._scopes[-1], wanted)
        found = []
        bar = Bar(wanted, plan.min_score)
        for number, (part, scope) in enumerate(zip(view.parts, self._scopes, strict=True)):
            local = np.empty(0, np.int64)
            sims = np.empty(0, np.float32)
            if searcher is not None:
                # What words find is exempt from any bar, and brings vectors of its own.
                floor, known = (bar.floor, bar.known) if words is None else (ANY, False)
                result = searcher.search(part, scope, wanted, plan.ef, floor, known=known)
                local, sims = result.local, result.sims
                self.lost = self.lost or result.lost
            if words is None:
                keep = sims >= bar.floor
                local, sims = local[keep], sims[keep]
                bar.saw(sims)
                nan = np.full(len(local), np.nan, np.float32)
                found.append((part, Candidates(part.rows[local], sims, sims, nan)))
                continue
            found.append(
                (part, self._with_words(number, part, scope, words, wanted, query, local, sims))
            )
        return found

    def _with_words(
        self,
        number: int,
        part: Part,
        scope: Scope,
        words: Words,
        wanted: int,
        query: NDArray[np.float32] | None,
        local: NDArray[np.int64],
        sims: NDArray[np.float32],
    ) -> Candidates:
        by_words, _ = words.top(number, scope, wanted)
        self._note_words(part, scope, by_words)
        if query is not None:
            fresh = by_words[~np.isin(by_words, local)]
            late = self._similarities(part, fresh, query)
            local, sims = np.concatenate((local, fresh)), np.concatenate((sims, late))
        else:
            local, sims = by_words, np.full(len(by_words), np.nan, np.float32)
        bm25 = words.of(number, local)
        if query is not None and self._plan.mode is Mode.HYBRID:
            scores = fuse(bm25, words.bound, sims).astype(np.float32)
            # Keyword hits are exempt from min_score (S8).
            keep = (bm25 > 0) | (sims >= self._plan.min_score)
            local, sims, bm25, scores = local[keep], sims[keep], bm25[keep], scores[keep]
        else:
            scores = bm25.astype(np.float32)
        shown = np.where(bm25 > 0, bm25, np.nan).astype(np.float32)
        return Candidates(part.rows[local], scores, sims, shown)

    def _similarities(
        self, part: Part, local: NDArray[np.int64], query: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Cosines of rows that words have found; from the records where files are unusable."""
        assert self._view is not None
        generation, number = self._plan.generation.number, self._view.partition.number
        try:
            sims = part.scores_of(generation, local, query)
        except SegmentDamaged:
            assert part.segment is not None
            self._on_damage(part.segment.meta, part.segment.damaged)
            self.lost = True
            sims = part.scores_of(generation, local, query)
        if part.segment is None or part.vectors(generation) is not None:
            return sims
        for place in np.flatnonzero(np.isnan(sims)).tolist():
            raw = self._snapshot.vector(generation, number, int(part.rows[local[place]]))
            if raw is not None:
                sims[place] = np.vecdot(unit(np.frombuffer(raw, np.float32)), query)
        return sims

    def _note_words(self, part: Part, scope: Scope, local: NDArray[np.int64]) -> None:
        if self.explain is not None:
            why = f"{len(self._plan.terms)} terms"
            self.explain.append(
                ExplainPart(part.name, "keyword", len(part), scope.count, len(local), why)
            )

    def _hydrated(self, view: PartitionView, found: list[tuple[Part, Candidates]]) -> list[Hit]:
        if not found:
            return []
        merged = Candidates(
            np.concatenate([c.rows for _, c in found]),
            np.concatenate([c.scores for _, c in found]),
            np.concatenate([c.similarities for _, c in found]),
            np.concatenate([c.words for _, c in found]),
        )
        # Equal scores by row number, which is the same on every node.
        merged = merged.take(np.lexsort((merged.rows, -merged.scores)))
        judge = not all(scope.exact for scope in self._scopes)
        self._check()
        return hydrate(
            merged,
            self._snapshot,
            self._plan.reader,
            self._how(view),
            self._plan.top_k,
            judge=judge,
        )

    def _stand_ins(self, hits: list[Hit], bound: float) -> list[float]:
        """What takes the place of the similarity in Rank, for hits that have none."""
        if self._plan.mode is Mode.KEYWORD and bound > 0:
            return [(hit.keyword_score or 0.0) / bound for hit in hits]
        return [hit.score for hit in hits]

    def _ranked(self, hits: list[Hit], stand_ins: list[float]) -> list[Hit]:
        options = self._plan.request.rank
        if options is None or not hits:
            return hits
        at = self._plan.reader.now
        if self._plan.request.as_of is not None:
            at = self._plan.request.as_of
        return rank_hits(hits, stand_ins, options, at)


def rank_hits(
    hits: list[Hit], stand_ins: list[float], options: RankOptions, at_ms: int
) -> list[Hit]:
    """The hits that Rank keeps, best first, with their rank scores (S43)."""
    parsed = [heads.parse_head(hit.head) for hit in hits]
    scored = [
        (
            rank_score(
                options,
                stand_in if hit.similarity is None else hit.similarity,
                hit.importance,
                at_ms - hit.ts,
            ),
            hit.id,
        )
        for hit, stand_in in zip(hits, stand_ins, strict=True)
    ]
    kept = select(options, scored, lambda i: parsed[i].metadata.topic, lambda i: parsed[i].summary)
    return [replace(hits[i], score=scored[i][0]) for i in kept]
