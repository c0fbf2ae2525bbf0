"""The figures the planner compares."""

from __future__ import annotations

from memsvc.segments.costs import ScanCosts, measure_costs

COSTS = ScanCosts(scan_f32=0.3, gather_f32=0.6, scan_i8=0.08, gather_i8=0.2, hop=0.16, call=50_000)


def test_measuring_gives_usable_figures() -> None:
    costs = measure_costs()
    for value in (costs.scan_f32, costs.gather_f32, costs.scan_i8, costs.gather_i8, costs.hop):
        assert 0.001 < value < 1000


def test_few_matches_are_scanned_and_many_go_to_the_graph() -> None:
    graph = COSTS.graph_ns(100_000, 1536, "i8", 64)
    assert COSTS.exact_ns(200, 100_000, 1536, True) < graph
    assert COSTS.exact_ns(50_000, 100_000, 1536, True) > 20 * graph


def test_an_exact_scan_never_costs_more_than_reading_everything() -> None:
    every = COSTS.exact_ns(100_000, 100_000, 1536, True)
    assert COSTS.exact_ns(60_000, 100_000, 1536, True) == every
    assert COSTS.exact_ns(10_000, 100_000, 1536, True) < every
