"""What other threads do for a query while its own does something else."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from memsvc.segments.graph import Graph
from memsvc.segments.quantise import Quantised
from memsvc.service.search.extra import Extra, Rough

Index = NDArray[np.int64]
Sims = NDArray[np.float32]
Check = Callable[[], float]
"""Seconds left; raises when there are none, or when the caller went away."""
T = TypeVar("T")

LEAST: Final = 500_000
"""Numbers to be scanned above which another thread is woken for it: some 40 microseconds."""
_LOOK_S: Final = 0.1
"""How often whoever waits looks whether its caller is still there."""


class Timed(NamedTuple):
    """What a search of a graph found, local rows and rough cosines, and its seconds."""

    near: tuple[Index, Sims]
    seconds: float


def timed(
    graph: Graph, query: NDArray[np.float32], asked: int, ef: int, quantised: Quantised
) -> Timed:
    """Searches a graph for ``asked`` rows."""
    started = time.perf_counter()
    return Timed(graph.search(query, asked, ef, quantised), time.perf_counter() - started)


class Begun(NamedTuple):
    """A search of a graph for ``asked`` rows that goes on beside others."""

    asked: int
    job: Future[Timed]


class Beside:
    """The jobs of one query vector, by the names of parts. Without ``threads`` none is begun.

    A job reads arrays and mapped files alone, which it keeps alive: neither the snapshot nor the
    view of the query need be there for as long as it runs. What it raises is raised where its
    result is asked for, and lost where nobody asks any more.
    """

    def __init__(
        self,
        threads: Executor | None,
        query: NDArray[np.float32],
        quantised: Quantised,
        check: Check,
    ) -> None:
        self._threads = threads
        self._query = query
        self._quantised = quantised
        self._check = check
        self.scans: dict[str, Future[Rough]] = {}
        self.graphs: dict[str, Begun] = {}

    @property
    def threads(self) -> Executor | None:
        """Who does them."""
        return self._threads

    def begin_scan(self, name: str, outside: Extra) -> None:
        """Starts on the rough cosines of vectors in memory, where these are many."""
        if self._threads is not None and outside.count * len(self._query) >= LEAST:
            self.scans[name] = self._threads.submit(outside.rough, self._quantised)

    def begin_graph(self, name: str, graph: Graph, asked: int, ef: int) -> None:
        """Starts on a graph."""
        if self._threads is not None:
            job = self._threads.submit(timed, graph, self._query, asked, ef, self._quantised)
            self.graphs[name] = Begun(asked, job)

    def scanned(self, name: str) -> Rough | None:
        """What ``begin_scan`` has brought; None when its turn has not come."""
        job = self.scans.pop(name, None)
        return None if job is None or job.cancel() else self.result(job)

    def searching(self, name: str) -> Begun | None:
        """What ``begin_graph`` has begun; None when its turn has not come."""
        begun = self.graphs.pop(name, None)
        return None if begun is None or begun.job.cancel() else begun

    def result(self, job: Future[T]) -> T:
        """What a job brings. When there is no time for it, it goes on alone: of the two threads,
        the one that a slow disk holds up is not the caller's."""
        while not job.done():
            wait((job,), min(self._check(), _LOOK_S))
        return job.result()

    def abandon(self) -> None:
        """Takes back what nobody will ask for: a query that ended early, or a part that needed
        none of it. What runs already cannot be stopped, and ends in milliseconds."""
        for scan in self.scans.values():
            scan.cancel()
        for begun in self.graphs.values():
            begun.job.cancel()
        self.scans.clear()
        self.graphs.clear()
