"""What searching costs here: a model measured at start-up, corrected by every search."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from mmap import PAGESIZE
from typing import Final

from memsvc.segments.costs import ScanCosts, nodes_met
from memsvc.segments.graph import Graph
from memsvc.segments.vectors import VectorRows

_WEIGHT: Final = 0.05
"""Weight of the newest measurement; old ones fade over some twenty searches."""
_BOUNDS: Final = (0.05, 20.0)
"""A stalled search must not make a plan look hopeless for ever."""
DISK_BYTE_NS: Final = 1.0
"""Reading one byte after the other from disk: 1 GB/s."""
DISK_PAGE_NS: Final = 40_000.0
"""Waiting for one page that a graph leads to: 37 us, measured on a virtual disk of 1.3 GB/s.
Measuring it at a start would tell of the page cache."""
_TOGETHER: Final = 2
"""Pages that the disk brings in the time of one when they are asked for together: rows."""
_NODE_PAGES: Final = 2
"""Pages of a node of a graph: its links, and its vector."""
_RESCORED: Final = 200
"""Rows of which a scan of the 8-bit copy reads the full vectors."""
_LEAST_ROWS: Final = 500
"""Scans of fewer rows tell more about the call than about the rows."""


class CostBook:
    """The model, and how far off it has been."""

    def __init__(self, model: ScanCosts) -> None:
        self.model = model
        self.graph_factor = 1.0
        self.exact_factor = 1.0
        self._lock = threading.Lock()

    def of(self, vectors: VectorRows, graph: Graph, missing: Missing | None = None) -> SegmentCosts:
        """The costs of one segment; of a cold one also what is ``missing``."""
        return SegmentCosts(self, vectors, graph, missing)

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
class Missing:
    """Shares of the files of a cold segment that are not in memory, 0 to 1."""

    rows: float
    scan: float
    graph: float


@dataclass(frozen=True, slots=True)
class SegmentCosts:
    """Costs of searching one segment, in microseconds (domain.planner.Costs). What searches of a
    cold one took says more of the disk than of this machine's arithmetic, and corrects nothing."""

    book: CostBook
    vectors: VectorRows
    by_graph: Graph
    missing: Missing | None = None

    def exact(self, matching: int) -> float:
        """Cost of scoring the matching rows exactly."""
        return self._exact(matching) * self.book.exact_factor + self._exact_disk(matching)

    def graph(self, width: int) -> float:
        """Cost of a graph search of effective breadth ``width``."""
        return self._graph(width) * self.book.graph_factor + self._graph_disk(width)

    def _exact_disk(self, matching: int) -> float:
        """Waiting for the disk in a scan: whole stretches, or a page for each matching row."""
        if self.missing is None:
            return 0.0
        v = self.vectors
        copied = v.quantised and matching > 2 * _RESCORED
        share = self.missing.scan if copied else self.missing.rows
        row = v.dimension if copied else 4 * v.dimension
        pages = 1 + row // PAGESIZE
        apart = matching * pages * DISK_PAGE_NS / _TOGETHER
        waited: float = share * min(apart, v.vectors * row * DISK_BYTE_NS)
        if copied:
            pages = 1 + 4 * v.dimension // PAGESIZE
            waited += self.missing.rows * _RESCORED * pages * DISK_PAGE_NS / _TOGETHER
        return waited / 1e3

    def _graph_disk(self, width: int) -> float:
        """Waiting for the disk in a graph: page by page, since each tells of the next."""
        if self.missing is None:
            return 0.0
        met = nodes_met(self.by_graph.vectors, width)
        return self.missing.graph * met * _NODE_PAGES * DISK_PAGE_NS / 1e3

    def saw_exact(self, seconds: float, matching: int) -> None:
        """An exact scan took this long."""
        if matching >= _LEAST_ROWS and self.missing is None:
            self.book.correct(exact=seconds * 1e6 / self._exact(matching))

    def saw_graph(self, seconds: float, width: int) -> None:
        """A graph search took this long."""
        if self.missing is not None:
            return
        self.book.correct(graph=seconds * 1e6 / self._graph(width))

    def _exact(self, matching: int) -> float:
        v = self.vectors
        return self.book.model.exact_ns(matching, v.vectors, v.dimension, v.quantised) / 1e3

    def _graph(self, width: int) -> float:
        g = self.by_graph
        return self.book.model.graph_ns(g.vectors, g.dimension, g.dtype, width) / 1e3
