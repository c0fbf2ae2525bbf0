"""Plans of rebuilds: what is kept of them, how far they are, what may be taken."""

from __future__ import annotations

import pytest

from memsvc.domain.manifest import GraphSettings
from memsvc.domain.rebuild import (
    Plan,
    RebuildState,
    Step,
    StepState,
    outcome,
    progress_of,
    unfit,
)

BUILT = GraphSettings("i8", 16, 200)


def test_a_plan_and_its_steps_come_back_as_they_were() -> None:
    plan = Plan("1f", 7, BUILT, "acme", "bot", True, RebuildState.CANCELLED, 9)
    assert Plan.from_json(plan.to_json()) == plan
    step = Step(3, "s1", 10).ended(StepState.FAILED, "no room")
    assert Step.from_json(3, "s1", step.to_json()) == step


def test_progress_counts_rows_not_segments() -> None:
    steps = [
        Step(1, "a", 90, StepState.DONE),
        Step(1, "b", 10),
        Step(1, "c", 100),
        Step(2, "d", 0, StepState.FAILED, "bad"),
    ]
    found = progress_of(steps, 0.5)
    assert (found.segments, found.segments_left, found.rows, found.rows_left) == (4, 2, 200, 110)
    assert found.share == pytest.approx((91 + 5) / 201)
    assert [s.name for s in found.failures] == ["d"]
    assert progress_of([]).share == 1.0


def test_a_failed_step_is_not_told_as_done() -> None:
    done, gone = Step(1, "a", 1, StepState.DONE), Step(1, "b", 1, StepState.GONE)
    assert outcome([done, gone]) is RebuildState.DONE
    assert outcome([done, Step(1, "c", 1, StepState.FAILED)]) is RebuildState.FAILED


@pytest.mark.parametrize(
    ("problem", "recalls", "told"),
    [
        ("", [], ""),
        ("", [(1, 0.99, 0.98)], ""),
        ("", [(1, None, 0.91)], ""),
        ("3 rows are missing", [], "3 rows are missing"),
        ("", [(1, 1.0, 0.97)], "0.02 less"),
        ("", [(1, 0.5, 0.89)], "rebuild_min_recall"),
        ("", [(1, 1.0, 1.0), (2, 1.0, None)], "generation 2 cannot be searched"),
    ],
)
def test_a_segment_that_is_worse_is_unfit(
    problem: str, recalls: list[tuple[int, float | None, float | None]], told: str
) -> None:
    found = unfit(problem, recalls, 0.9)
    assert told in found and bool(found) is bool(told)
