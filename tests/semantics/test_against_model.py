"""Random lives of a store, compared step by step with the model of it.

A sequence is decided by its seed: ``pytest tests/semantics/test_against_model.py -k 'seed-17'``
runs it again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.semantics.runner import SHARE, Run

STEPS = 70


@pytest.mark.parametrize("seed", range(30), ids=lambda n: f"seed-{n}")
def test_a_life_is_as_the_model_says(seed: int, folder: Path) -> None:
    Run(seed, folder).go(STEPS)


@pytest.mark.parametrize("seed", range(500, 510), ids=lambda n: f"seed-{n}")
def test_a_life_in_two_tiers_is_as_the_model_says(seed: int, folder: Path) -> None:
    """Memories become cold within a day, and go from tier to tier."""
    share = {**SHARE, "turn": 8, "seal": 6, "merge": 8}
    Run(seed, folder, share, lifecycle__cold_archive_after_days=1).go(STEPS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1_000, 2_000), ids=lambda n: f"seed-{n}")
def test_a_long_life_is_as_the_model_says(seed: int, folder: Path) -> None:
    Run(seed, folder).go(3 * STEPS)
