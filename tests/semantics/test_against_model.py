"""Random lives of a store, compared step by step with the model of it.

A sequence is decided by its seed: ``pytest tests/semantics/test_against_model.py -k 'seed-17'``
runs it again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from memsvc.segments.costs import measure_costs
from memsvc.service import node
from tests.semantics.runner import Run

STEPS = 70


@pytest.fixture(autouse=True)
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a start measures and tries has tests of its own, and would take most of the time."""
    costs = measure_costs()
    monkeypatch.setattr(node, "measure_costs", lambda: costs)
    monkeypatch.setattr(node, "check_index", lambda _settings: None)


@pytest.mark.parametrize("seed", range(30), ids=lambda n: f"seed-{n}")
def test_a_life_is_as_the_model_says(seed: int, tmp_path: Path) -> None:
    Run(seed, tmp_path).go(STEPS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1_000, 2_000), ids=lambda n: f"seed-{n}")
def test_a_long_life_is_as_the_model_says(seed: int, tmp_path: Path) -> None:
    Run(seed, tmp_path).go(3 * STEPS)
