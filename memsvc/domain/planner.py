"""Which way to search one part: exactly over the matching rows, or through the graph.

A graph search that must return ``k`` of the rows that pass a filter is widened to about
``k / share`` results, which costs time in proportion; an exact scan costs time in
proportion to the matching rows. The planner compares the two with measured figures, and
compares again when a widened search brought less than expected (the filter is opposed to
the query).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from memsvc.domain.wording import counted

SLACK: Final = 1.25
"""Results asked for beyond k / share, since matches are not spread evenly."""
GROWTH: Final = 4.0
"""Widening when nothing at all matched."""
LEAD: Final = 2.0
"""How many times dearer the exact scan must be for a graph search to be widened."""
OPPOSED: Final = 0.25
"""Share of k below which the results of a search say that filter and query are opposed."""
OPPOSED_LEAD: Final = 4.0
"""``LEAD`` then, over the widened search and the last one together."""


class Costs(Protocol):
    """Costs of searching one segment on this machine, in microseconds."""

    def exact(self, matching: int) -> float:
        """Scoring the matching rows exactly."""

    def graph(self, width: int) -> float:
        """A graph search of effective breadth ``width``: the larger of ef and results."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``count`` results from the graph, or, with 0, an exact scan; and why."""

    count: int
    why: str


def first_plan(rows: int, matching: int, k: int, ef: int, costs: Costs) -> Plan:
    """How to begin; ``rows`` have a vector, ``matching`` of them pass."""
    exact = costs.exact(matching)
    if matching <= k:
        return Plan(0, f"{counted(matching, 'matching row')}, no more than asked for")
    count = _count(k, matching / rows, rows)
    graph = costs.graph(max(count, ef))
    why = (
        f"graph for {counted(count, 'result')} {graph:.0f} us, "
        f"exact over {counted(matching, 'row')} {exact:.0f} us"
    )
    return Plan(count if graph < exact else 0, why)


def next_plan(
    rows: int, matching: int, k: int, found: int, asked: int, ef: int, costs: Costs
) -> Plan:
    """How to go on when ``asked`` results held only ``found`` < k matches."""
    share = found / asked
    opposed = found < OPPOSED * k
    count = _count(k, share, rows) if found else int(min(rows, asked * GROWTH))
    count = max(count, 2 * asked)
    exact = costs.exact(matching)
    graph = costs.graph(max(count, ef))
    why = (
        f"{found} of {asked} results matched; graph for {counted(count, 'result')} {graph:.0f} us, "
        f"exact over {counted(matching, 'row')} {exact:.0f} us"
    )
    # A search that was wrong once may be wrong again: the graph must win clearly. Where next to
    # nothing matched, what matches is far away, and widening only adds to what is lost.
    needed = OPPOSED_LEAD * (graph + costs.graph(max(asked, ef))) if opposed else LEAD * graph
    return Plan(count if count < rows and needed < exact else 0, why)


def _count(k: int, share: float, rows: int) -> int:
    if share >= 1.0:
        return k
    return int(min(rows, k / share * SLACK + 8))
