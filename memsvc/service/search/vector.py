"""Search by meaning over the parts of a partition."""

from __future__ import annotations

import time
from concurrent.futures import Executor
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.planner import Plan, first_plan, next_plan
from memsvc.domain.types import ExplainPart
from memsvc.domain.wording import counted
from memsvc.segments.errors import SegmentDamaged
from memsvc.segments.graph import Graph
from memsvc.segments.quantise import quantise_one
from memsvc.segments.rescore import ANY, through_copy
from memsvc.segments.segment import Segment
from memsvc.segments.topk import best
from memsvc.segments.vectors import VectorRows
from memsvc.service.search.beside import Begun, Beside, Check, timed
from memsvc.service.search.costs import CostBook, Missing, SegmentCosts
from memsvc.service.search.parts import Part
from memsvc.service.search.scope import Scope
from memsvc.service.search.view import OnDamage
from memsvc.store.snapshot import Snapshot

Index = NDArray[np.int64]
Sims = NDArray[np.float32]

RECORD_US = 12.0
"""Microseconds to read and score one vector of 1,536 numbers from the records, measured
(some 85,000 a second); decides whether that can still meet the time limit."""
RECORD_SHARE = 0.7

BROADER_EACH = 14.0
BROADER_LEAST = 2.0
BROADER_MOST = 4.0
NEIGHBOURS = 64
"""How much broader a graph is searched for a query whose neighbourhood is hard: ef_search times its
intrinsic dimension / 14, from twice (dimension 28) on, at most 4 times. How much is found among
ef_search candidates depends on that dimension, which these candidates tell: of 12,813 conversation
chunks, asked 836 questions (half of them hard), 0.998 of the ten nearest instead of 0.989; of
100,000 clustered rows of 1536-d (3 % hard) 0.9998 in either case."""
LEAST_SQUARE = 1e-9
"""Squared distance that counts as none."""

GLANCE_LEAST = 24
GLANCE_SHARE = 3 / 8
"""Breadth of the search of a graph of which little is expected, since k better rows are known from
other parts: a share of ef, so that a larger ef still buys recall, and at least 24. On 5,000 and
20,000 clustered rows of 1536-d breadth 24 had 0.9995 of the ten nearest, in half the time of 64.
Not for hard queries: with the conversation chunks above in three parts, 0.999 of the ten nearest
instead of 0.991, in 2.4 ms instead of 1.4."""
GLANCE_HITS = 1 / 4
"""Share of the rows found by it that may reach the bar; above, the whole breadth is searched."""


@dataclass(slots=True)
class Found:
    """Best rows of one part: local rows and true cosines, best first. ``lost`` tells that
    vectors of the part could not be searched as they should, ``blind`` that none of those in
    segment files could be searched at all, ``whole`` that late ones are among them."""

    local: Index
    sims: Sims
    lost: bool = False
    whole: bool = False
    blind: bool = False


class Bar:
    """What a row must reach to be among the ``k`` best of all parts: at first ``floor``, then
    the k-th best cosine of the parts seen."""

    def __init__(self, k: int, floor: float) -> None:
        self._k = k
        self._best = np.empty(0, np.float32)
        self.floor = floor
        self.known = False
        """Whether k rows are known that reach the floor."""

    def saw(self, sims: Sims) -> None:
        """Takes the cosines of one part in."""
        if not self._k or not len(sims):
            return
        self._best = np.concatenate((self._best, sims))
        surplus = len(self._best) - self._k
        if surplus >= 0:
            self.known = True
            self._best = np.partition(self._best, surplus)[surplus:]
            self.floor = max(self.floor, float(self._best[0]))


def broader(sims: Sims) -> float:
    """How many times ef_search a query needs, 1 or BROADER_LEAST to BROADER_MOST, told by the
    cosines (best first) of its nearest neighbours.

    The intrinsic dimension is the maximum likelihood estimate of Levina and Bickel (2005) over
    distances of unit vectors, d^2 = 2 (1 - cosine): the inverse of the mean of log(d_last / d_i).
    """
    # By scalars, which takes a quarter of the time. Of equal vectors rounding may make a distance
    # of 0 or less.
    squares = [max(1 - sim, LEAST_SQUARE) for sim in sims[:NEIGHBOURS].tolist()]
    if len(squares) < 2 or squares[-1] <= LEAST_SQUARE:
        return 1.0
    spread = (log(squares[-1]) - sum(map(log, squares)) / len(squares)) / 2
    share = BROADER_MOST if spread <= 0 else 1 / (spread * BROADER_EACH)
    return min(share, BROADER_MOST) if share >= BROADER_LEAST else 1.0


def _missing(segment: Segment, generation: int) -> Missing | None:
    if not segment.cold:
        return None
    return Missing(*(segment.missing(kind, generation) for kind in ("rows", "scan", "graph")))


def _with_vectors(vectors: VectorRows, scope: Scope) -> tuple[NDArray[np.bool_], int]:
    """Which rows in scope have a vector in the files, and how many."""
    if vectors.present is None:
        return scope.mask, scope.count
    mask = scope.mask & vectors.present
    return mask, int(np.count_nonzero(mask))


def _first_search(
    graph: Graph, matching: int, k: int, ef: int, costs: SegmentCosts
) -> tuple[Plan, int]:
    """How a search of a graph begins, and how many rows it asks for."""
    plan = first_plan(graph.vectors, matching, k, ef, costs)
    return plan, max(plan.count, min(ef, graph.vectors))


class VectorSearch:
    """Searches one part after another for one query vector.

    ``query`` is a unit vector.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        partition: int,
        generation: int,
        query: NDArray[np.float32],
        book: CostBook,
        check: Check,
        explain: list[ExplainPart] | None,
        on_damage: OnDamage,
        beside: Executor | None,
    ) -> None:
        self._snapshot = snapshot
        self._partition = partition
        self._generation = generation
        self._query = query
        self._quantised = quantise_one(query)
        self._book = book
        self._check = check
        self._explain = explain
        self._on_damage = on_damage
        self.beside = Beside(beside, query, self._quantised, check)

    def begin(self, part: Part, scope: Scope, k: int) -> None:
        """Starts on a part that is searched after others: a graph leaves the interpreter to
        other threads, and scanning the tail takes about as long as searching a graph."""
        if through_copy(scope.count, k):
            self.beside.begin_scan(part.name, part.outside(self._generation))

    def begin_graph(self, part: Part, scope: Scope, k: int, ef: int) -> None:
        """Starts on the graph of a part that is searched after others, as it is searched when
        nothing is known from those: two graphs take the time of one where a processor is free.
        Not through a narrow filter, which the others may make needless."""
        vectors, graph = part.vectors(self._generation), part.graph(self._generation)
        if self.beside.threads is None or part.segment is None or vectors is None or graph is None:
            return
        _, matching = _with_vectors(vectors, scope)
        if not k or 2 * matching <= graph.vectors:
            return
        costs = self._book.of(vectors, graph, _missing(part.segment, self._generation))
        plan, asked = _first_search(graph, matching, k, ef, costs)
        if plan.count:
            self.beside.begin_graph(part.name, graph, asked, ef)

    def search(
        self, part: Part, scope: Scope, k: int, ef: int, floor: float = ANY, *, known: bool = False
    ) -> Found:
        """The k best rows of a part among those in scope. Rows whose cosine is below ``floor``
        may be left out; ``known`` tells that k better ones are known from other parts."""
        self._check()
        started = time.perf_counter()
        if not scope.count or not k:
            self._note(part, scope, "none", "no row passes", 0, started)
            return Found(np.empty(0, np.int64), np.empty(0, np.float32))
        found, plan, why = self._sealed_sound(part, scope, k, ef, floor, known)
        outside = part.outside(self._generation)
        if outside.count and not found.whole:
            rough = self.beside.scanned(part.name)
            local, sims = outside.top(self._query, scope.mask, k, floor, rough, self._quantised)
            if len(found.local):
                local = np.concatenate((found.local, local))
                sims = np.concatenate((found.sims, sims))
                local, sims = best(sims, local, k)
            else:
                plan, why = "exact", why or f"{counted(outside.count, 'row')} outside segment files"
            found = Found(local, sims, found.lost, blind=found.blind)
        self._note(part, scope, plan, why, len(found.local), started)
        return found

    def _sealed_sound(
        self, part: Part, scope: Scope, k: int, ef: int, floor: float, known: bool
    ) -> tuple[Found, str, str]:
        """``_sealed`` from what is left when a file turns out to be damaged. Each damage
        takes the file out of service, so this ends."""
        reasons: list[str] = []
        while True:
            try:
                found, plan, why = self._sealed(part, scope, k, ef, floor, known)
            except SegmentDamaged as damaged:
                reasons.append(damaged.reason)
                continue
            if part.segment is not None and part.segment.damaged:
                self._on_damage(part.segment.meta, part.segment.damaged)
            found.lost = found.lost or bool(reasons)
            return found, plan, "; ".join([*reasons, why])

    def _sealed(
        self, part: Part, scope: Scope, k: int, ef: int, floor: float, known: bool
    ) -> tuple[Found, str, str]:
        """From the files of a segment: found, plan, why."""
        nothing = Found(np.empty(0, np.int64), np.empty(0, np.float32))
        if part.segment is None:
            return nothing, "none", ""
        vectors, graph = part.vectors(self._generation), part.graph(self._generation)
        if vectors is None:
            if part.segment.meta.file("rows", self._generation) is None:
                return nothing, "none", ""
            needed = len(part) * RECORD_US * len(self._query) / 1_536 / 1e6
            if needed > RECORD_SHARE * self._check():
                nothing.lost = nothing.blind = True
                return nothing, "none", f"vector file unusable, {needed:.1f} s to read records"
            found = self._from_records(part, scope, k)
            return found, "exact", "vector file unusable, read from the records"
        mask, matching = _with_vectors(vectors, scope)
        if not matching:
            return nothing, "none", "no row that passes has a vector"
        lost = graph is None and part.segment.meta.file("graph", self._generation) is not None
        if graph is not None:
            costs = self._book.of(vectors, graph, _missing(part.segment, self._generation))
            local, why = None, f"few reach {floor:.3f}"
            begun = self.beside.searching(part.name)
            breadth = max(GLANCE_LEAST, int(GLANCE_SHARE * ef))
            if (
                begun is None
                and known
                and ef > breadth
                and 2 * matching > graph.vectors
                and graph.glances.worth
            ):
                local = self._glance(graph, vectors, mask, breadth, floor)
                graph.glances.saw(local is not None)
            if local is None:
                near, why = self._through_graph(graph, costs, mask, matching, k, ef, begun)
                if near is not None:
                    local = vectors.hopeful(*near, self._quantised[1], floor)
            if local is not None:
                sims = vectors.score(local, self._query)
                local, sims = best(sims, local, k)
                return Found(local, sims), "graph", why
        else:
            why = "no graph"
        started = time.perf_counter()
        everything = matching == len(part)
        match = None if everything else mask
        local, sims = vectors.scan(
            self._query,
            match,
            k,
            self._no_result,
            floor=floor,
            beside=self.beside.threads,
            quantised=self._quantised,
        )
        if graph is not None:
            costs.saw_exact(time.perf_counter() - started, matching)
        return Found(local, sims, lost), "exact", why

    def _glance(
        self,
        graph: Graph,
        vectors: VectorRows,
        mask: NDArray[np.bool_],
        breadth: int,
        floor: float,
    ) -> Index | None:
        """Rows that may reach ``floor``, by a narrow search; None when so many do, or the
        query's neighbourhood is so hard, that there may be more."""
        local, rough = graph.search(self._query, breadth, breadth, self._quantised)
        # Those outside the mask count too: they tell how far down the search has come.
        if broader(rough) > 1:
            return None
        hopeful = vectors.hopeful(local, rough, self._quantised[1], floor)
        return hopeful[mask[hopeful]] if len(hopeful) <= GLANCE_HITS * breadth else None

    def _no_result(self) -> None:
        self._check()

    def _through_graph(
        self,
        graph: Graph,
        costs: SegmentCosts,
        mask: NDArray[np.bool_],
        matching: int,
        k: int,
        ef: int,
        begun: Begun | None,
    ) -> tuple[tuple[Index, Sims] | None, str]:
        """Candidates from the graph with their rough cosines, or None when an exact scan is the
        better way. ``begun`` is the search that was started before."""
        rows = graph.vectors
        plan, asked = _first_search(graph, matching, k, ef, costs)
        breadth = 0.0
        while plan.count:
            local, rough = self._timed(graph, asked, ef, costs, begun)
            begun = None
            if not breadth:
                breadth = broader(rough)
                if breadth > 1 and len(local) < rows:
                    ef, asked = int(breadth * ef), min(int(breadth * asked), rows)
                    if costs.graph(max(asked, ef)) >= costs.exact(matching):
                        return None, f"{plan.why}, but {breadth:.1f} times as broad it is dearer"
                    local, rough = self._timed(graph, asked, ef, costs, None)
            exhausted = len(local) < asked or asked >= rows
            passing = mask[local]
            local = local[passing]
            if len(local) >= k or (exhausted and len(local) >= matching):
                # All of them are scored exactly: a narrow dtype may rank true neighbours last.
                return (local, rough[passing]), plan.why
            if exhausted:
                break
            plan = next_plan(rows, matching, k, len(local), asked, ef, costs)
            asked = plan.count
        return None, plan.why

    def _timed(
        self, graph: Graph, asked: int, ef: int, costs: SegmentCosts, begun: Begun | None
    ) -> tuple[Index, Sims]:
        self._check()
        if begun is not None and begun.asked == asked:
            found, seconds = self.beside.result(begun.job)
        else:
            found, seconds = timed(graph, self._query, asked, ef, self._quantised)
        costs.saw_graph(seconds, max(asked, ef))
        return found

    def _from_records(self, part: Part, scope: Scope, k: int) -> Found:
        """Exact scan of the stored vectors, for a segment whose files are unusable."""
        if not len(part):
            return Found(np.empty(0, np.int64), np.empty(0, np.float32), True)
        lo, hi = int(part.rows[0]), int(part.rows[-1]) + 1
        locals_: list[Index] = []
        sims: list[Sims] = []
        batch: list[tuple[int, bytes]] = []

        def flush() -> None:
            self._check()
            at = np.searchsorted(part.rows, np.array([row for row, _ in batch]))
            at = np.minimum(at, len(part.rows) - 1)
            good = (part.rows[at] == [row for row, _ in batch]) & scope.mask[at]
            wide = np.frombuffer(b"".join(data for _, data in batch), np.float32)
            wide = wide.reshape(len(batch), -1)[good]
            norms = np.sqrt(np.vecdot(wide.astype(np.float64), wide.astype(np.float64)))
            unit = (wide / norms[:, None]).astype(np.float32)
            locals_.append(at[good])
            sims.append(np.vecdot(unit, self._query))
            batch.clear()

        for pair in self._snapshot.vector_range(self._generation, self._partition, lo, hi):
            batch.append(pair)
            if len(batch) == 512:
                flush()
        if batch:
            flush()
        if not locals_:
            return Found(np.empty(0, np.int64), np.empty(0, np.float32), True, True)
        local, scores = best(np.concatenate(sims), np.concatenate(locals_), k)
        return Found(local, scores, True, True)

    def _note(
        self, part: Part, scope: Scope, plan: str, why: str, candidates: int, started: float
    ) -> None:
        if self._explain is not None:
            elapsed = int((time.perf_counter() - started) * 1e6)
            self._explain.append(
                ExplainPart(part.name, plan, len(part), scope.count, candidates, why, elapsed)
            )
