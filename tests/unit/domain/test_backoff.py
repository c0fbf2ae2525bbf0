"""Whoever tries again must go on trying, however long it has failed."""

from __future__ import annotations

import pytest

from memsvc.domain.backoff import backoff_s


@pytest.mark.parametrize(
    ("failures", "pause"), [(1, 0.5), (2, 1.0), (3, 2.0), (5, 8.0), (6, 10.0), (7, 10.0)]
)
def test_pauses_double_up_to_the_longest(failures: int, pause: float) -> None:
    assert backoff_s(failures, 0.5, 10.0) == pause


@pytest.mark.parametrize("failures", [1_024, 1_025, 1_000_000])
def test_a_night_of_failures_does_not_end_the_trying(failures: int) -> None:
    assert backoff_s(failures, 0.5, 10.0) == 10.0
