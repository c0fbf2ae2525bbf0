"""What searching costs here: a model measured at start-up, corrected by every search."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from memsvc.segments.costs import ScanCosts
from memsvc.segments.graph import Graph
from memsvc.segments.vectors import VectorRows

_WEIGHT: Final = 0.05
"""Weight of the newest measurement; old ones fade over some twenty searches."""
_BOUNDS: Final = (0.05, 20.0)
"""A stalled search must not make a plan look hopeless for ever."""
_LEAST_ROWS: Final = 500
"""Scans of fewer rows tell more about the call than about the rows."""


class CostBook:
    """The model, and how far off it has been."""

    def __init__(self, model: ScanCosts) -> None:
        self.model = model
        self.graph_factor = 1.0
        self.exact_factor = 1.0
        self._lock = threading.Lock()

    def of(self, vectors: VectorRows, graph: Graph) -> SegmentCosts:
        """The costs of one segment."""
        return SegmentCosts(self, vectors, graph)

    def correct(self, *, graph: float | None = None, exact: float | None = None) -> None:
        """Takes in the ratio of measured to modelled time of one search."""
        low, high = _BOUNDS
        with self._lock:
            if graph is not None:
                step = min(max(graph, low), high) - self.graph_factor
                self.graph_factor += _WEIGHT * step
            if exact is not None:
                step = min(max(exact, low), high) - self.exact_factor
                self.exact_factor += _WEIGHT * step


@dataclass(frozen=True, slots=True)
class SegmentCosts:
    """Costs of searching one segment, in microseconds (domain.planner.Costs)."""

    book: CostBook
    vectors: VectorRows
    by_graph: Graph

    def exact(self, matching: int) -> float:
        """Cost of scoring the matching rows exactly."""
        return self._exact(matching) * self.book.exact_factor

    def graph(self, width: int) -> float:
        """Cost of a graph search of effective breadth ``width``."""
        return self._graph(width) * self.book.graph_factor

    def saw_exact(self, seconds: float, matching: int) -> None:
        """An exact scan took this long."""
        if matching >= _LEAST_ROWS:
            self.book.correct(exact=seconds * 1e6 / self._exact(matching))

    def saw_graph(self, seconds: float, width: int) -> None:
        """A graph search took this long."""
        self.book.correct(graph=seconds * 1e6 / self._graph(width))

    def _exact(self, matching: int) -> float:
        v = self.vectors
        return self.book.model.exact_ns(matching, v.vectors, v.dimension, v.quantised) / 1e3

    def _graph(self, width: int) -> float:
        g = self.by_graph
        return self.book.model.graph_ns(g.vectors, g.dimension, g.dtype, width) / 1e3
