"""The choice between an exact scan and the graph."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from memsvc.domain.planner import first_plan, next_plan


@dataclass
class Costs:
    """An exact scan costs 1 a row, the graph ``each`` a result."""

    each: float = 10.0

    def exact(self, matching: int) -> float:
        return float(matching)

    def graph(self, width: int) -> float:
        return self.each * width


def test_few_matches_are_scanned_exactly() -> None:
    assert first_plan(1_000_000, 40, 40, 64, Costs(each=0.0)).count == 0
    assert first_plan(1_000_000, 0, 40, 64, Costs(each=0.0)).count == 0
    assert first_plan(1_000_000, 500, 40, 64, Costs()).count == 0


def test_without_a_filter_the_graph_is_asked_for_just_k() -> None:
    assert first_plan(1_000_000, 1_000_000, 40, 64, Costs()).count == 40


def test_a_filter_widens_the_graph_search_by_its_share() -> None:
    plan = first_plan(1_000_000, 500_000, 40, 64, Costs())
    assert 80 <= plan.count <= 120


def test_the_narrower_the_filter_the_sooner_the_scan_wins() -> None:
    kinds = [first_plan(1_000_000, m, 40, 64, Costs()).count > 0 for m in
             (1_000_000, 300_000, 100_000, 30_000, 10_000, 3_000, 1_000, 100)]  # fmt: skip
    assert kinds == sorted(kinds, reverse=True)
    assert kinds[0] and not kinds[-1]


def test_a_wide_ef_counts_into_the_cost() -> None:
    assert first_plan(1_000, 1_000, 10, 64, Costs()).count == 10
    assert first_plan(1_000, 1_000, 10, 200, Costs()).count == 0


def test_it_never_asks_for_more_than_there_are_rows() -> None:
    assert first_plan(100, 41, 40, 64, Costs(each=0.0)).count <= 100


@pytest.mark.parametrize("found", [0, 1, 10, 39])
def test_a_search_that_found_too_little_is_widened_or_given_up(found: int) -> None:
    rows, asked = 1_000_000, 100
    plan = next_plan(rows, 500_000, 40, found, asked, 64, Costs())
    assert plan.count == 0 or plan.count >= 2 * asked
    assert next_plan(rows, 50, 40, found, asked, 64, Costs()).count == 0


def test_widening_ends() -> None:
    rows, asked, rounds = 1_000_000, 50, 0
    while asked:
        asked = next_plan(rows, 900_000, 40, 0, asked, 64, Costs(each=0.001)).count
        rounds += 1
    assert rounds < 20


def test_a_filter_opposed_to_the_query_costs_little_before_the_exact_scan() -> None:
    rows, matching, costs = 100_000, 50_000, Costs(each=5.0)
    plan = first_plan(rows, matching, 40, 64, costs)
    spent = 0.0
    while plan.count:
        spent += costs.graph(max(plan.count, 64))
        plan = next_plan(rows, matching, 40, 0, plan.count, 64, costs)
    assert 0 < spent < 0.3 * costs.exact(matching)


def test_every_plan_says_why() -> None:
    assert "exact" in first_plan(1_000, 900, 10, 64, Costs()).why
    assert first_plan(1_000, 1, 10, 64, Costs()).why.startswith("1 matching row,")
    assert "matched" in next_plan(1_000, 900, 10, 1, 50, 64, Costs()).why
