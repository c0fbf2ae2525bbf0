"""One query at work on one snapshot. The stages are in DESIGN.md."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.hits import NO_HITS, Hits
from memsvc.domain.types import DegradedLevel, ExplainPart, Mode
from memsvc.segments.errors import SegmentDamaged
from memsvc.segments.rescore import ANY
from memsvc.segments.topk import unit
from memsvc.service.search.beside import Check
from memsvc.service.search.browse import browse
from memsvc.service.search.costs import CostBook
from memsvc.service.search.hydrate import Candidates, Hydration, Room, hydrate
from memsvc.service.search.keyword import Words, search_words
from memsvc.service.search.parts import Part
from memsvc.service.search.plan import Plan, SearchSettings
from memsvc.service.search.ranking import Chosen
from memsvc.service.search.scope import Scope, scope_of
from memsvc.service.search.selection import hits_by_id
from memsvc.service.search.vector import Bar, VectorSearch
from memsvc.service.search.view import OnDamage, PartitionView
from memsvc.store.snapshot import Snapshot
from memsvc.text.fusion import fuse

LIST_LEAST: Final = 100
"""Candidates taken from each list of a hybrid search: twice what is wanted, at least this
many. The fused score depends on the candidate alone, so more of them change little."""


class Execution:
    """Searches for a plan in the view that belongs to ``snapshot``; to be run once. ``lost``
    tells afterwards that some part could not be searched as it should, ``blind`` that the
    vectors of some could not be searched at all, in the time there is."""

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
        self.seconds: dict[str, float] = {}
        """Time that searching by vector took, by tier."""
        self.blind = False
        self._room = Room(settings.max_answer_bytes)
        # Of opposite vectors rounding may make a cosine just below -1, and -1 is for "all".
        self._least = plan.min_score if plan.min_score > -1.0 else ANY

    def run(self) -> tuple[list[Chosen], str]:
        """The lists of hits before Rank, and the next page token."""
        plan, request, view = self._plan, self._plan.request, self._view
        if view is None:
            return [_without_words(NO_HITS)] * max(1, len(request.vectors)), ""
        if request.ids:
            hits = hits_by_id(
                request.ids,
                view.partition.number,
                self._snapshot,
                plan.reader,
                self._how(view),
                self._check,
            )
            return [_without_words(hits)], ""
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
            return [_without_words(hits)], token
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
            lists.append(Chosen(hits, self._stand_ins(hits, bound)))
        return lists, ""

    # -- stages ------------------------------------------------------------------------

    def _how(self, view: PartitionView) -> Hydration:
        request = self._plan.request
        return Hydration(
            partition=view.partition.number,
            generation=self._plan.generation.number,
            half_life_ms=self._settings.half_life_ms,
            scored_at=self._plan.scored_at,
            include=request.include,
            room=self._room,
            check=self._check,
        )

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
            searcher = self._searching(view, query, wanted)
        try:
            return self._of_parts(view, searcher, query, words, wanted)
        finally:
            if searcher is not None:
                searcher.beside.abandon()

    def _searching(
        self, view: PartitionView, query: NDArray[np.float32], wanted: int
    ) -> VectorSearch:
        """The search by one vector, with what other threads can do of it begun."""
        searcher = VectorSearch(
            self._snapshot,
            view.partition.number,
            self._plan.generation.number,
            query,
            self._book,
            self._check,
            self.explain,
            self._on_damage,
            self._beside,
        )
        if len(view.parts) > 1:
            searcher.begin(view.parts[-1], self._scopes[-1], wanted)
            # One, since what two have found makes the next ones cheap.
            searcher.begin_graph(view.parts[1], self._scopes[1], wanted, self._plan.ef)
        return searcher

    def _of_parts(
        self,
        view: PartitionView,
        searcher: VectorSearch | None,
        query: NDArray[np.float32] | None,
        words: Words | None,
        wanted: int,
    ) -> list[tuple[Part, Candidates]]:
        plan, found = self._plan, []
        bar = Bar(wanted, self._least)
        for number, (part, scope) in enumerate(zip(view.parts, self._scopes, strict=True)):
            local = np.empty(0, np.int64)
            sims = np.empty(0, np.float32)
            if searcher is not None:
                # What words find is exempt from any bar, and brings vectors of its own.
                floor, known = (bar.floor, bar.known) if words is None else (ANY, False)
                began = time.perf_counter()
                result = searcher.search(part, scope, wanted, plan.ef, floor, known=known)
                spent = self.seconds.get(part.tier, 0.0) + time.perf_counter() - began
                self.seconds[part.tier] = spent
                local, sims = result.local, result.sims
                self.lost = self.lost or result.lost
                self.blind = self.blind or result.blind
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
            # Keyword hits are exempt from min_score.
            keep = (bm25 > 0) | (sims >= self._least)
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

    def _hydrated(self, view: PartitionView, found: list[tuple[Part, Candidates]]) -> Hits:
        if not found:
            return NO_HITS
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

    def _stand_ins(self, hits: Hits, bound: float) -> NDArray[np.floating[Any]]:
        """What takes the place of the similarity in Rank, for hits that have none."""
        if self._plan.mode is Mode.KEYWORD and bound > 0:
            return np.nan_to_num(hits.words) / bound
        return hits.scores


def _without_words(hits: Hits) -> Chosen:
    """Hits that were found neither by likeness nor by words."""
    return Chosen(hits, np.zeros(len(hits)))
