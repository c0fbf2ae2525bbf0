"""A rebuild: every segment of a plan is built anew and, when it is sound, put in its place.

The plan is written down before anything is done, and every step of it may be carried out
again after a crash: a step whose segment is gone was done, or its rows were written anew by
something else.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from memsvc.domain.manifest import GraphSettings

RECALL_MARGIN: Final = 0.02
"""How much less of what is there a new graph may find than the one it replaces."""


class RebuildState(enum.Enum):
    """Where a rebuild is."""

    RUNNING = "RUNNING"
    DONE = "DONE"
    FAILED = "FAILED"
    """It has ended; some segments stayed as they were."""
    CANCELLED = "CANCELLED"


class StepState(enum.Enum):
    """Where the rebuild of one segment is."""

    WAITING = "WAITING"
    DONE = "DONE"
    GONE = "GONE"
    """Its rows were written anew by something else, with the settings of that time."""
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for: ``tenant`` and ``agent`` ("" = all), ``everything`` = also segments
    that are as they would be built now. ``graph`` the settings that the steps were planned
    for; times are UTC ms, ``ended`` 0 while it runs."""

    id: str
    started: int
    graph: GraphSettings
    tenant: str = ""
    agent: str = ""
    everything: bool = False
    state: RebuildState = RebuildState.RUNNING
    ended: int = 0

    def to_json(self) -> bytes:
        """The form that is stored."""
        return json.dumps({**asdict(self), "state": self.state.value}).encode()

    @staticmethod
    def from_json(data: bytes) -> Plan:
        """The reverse."""
        raw: dict[str, Any] = json.loads(data)
        raw["graph"] = GraphSettings(**raw["graph"])
        raw["state"] = RebuildState(raw["state"])
        return Plan(**raw)


@dataclass(frozen=True, slots=True)
class Step:
    """Segment ``name`` of a partition with ``rows`` rows, and what became of it; ``reason``
    why it failed."""

    partition: int
    name: str
    rows: int
    state: StepState = StepState.WAITING
    reason: str = ""

    def ended(self, state: StepState, reason: str = "") -> Step:
        """The step afterwards."""
        return replace(self, state=state, reason=reason)

    def to_json(self) -> bytes:
        """The form that is stored, without what the key says."""
        return json.dumps([self.rows, self.state.value, self.reason]).encode()

    @staticmethod
    def from_json(partition: int, name: str, data: bytes) -> Step:
        """The reverse."""
        rows, state, reason = json.loads(data)
        return Step(partition, name, rows, StepState(state), reason)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a rebuild is. ``share`` 0 to 1, by rows; ``failures`` the steps that failed."""

    segments: int
    segments_left: int
    rows: int
    rows_left: int
    share: float
    failures: tuple[Step, ...]


def progress_of(steps: Iterable[Step], share_of_current: float = 0.0) -> Progress:
    """The sum of the steps; ``share_of_current`` of the first that waits is done."""
    listed = list(steps)
    waiting = [s for s in listed if s.state is StepState.WAITING]
    # A segment of no rows is work too.
    total, left = (sum(max(1, s.rows) for s in some) for some in (listed, waiting))
    done = total - left + (share_of_current * max(1, waiting[0].rows) if waiting else 0.0)
    return Progress(
        segments=len(listed),
        segments_left=len(waiting),
        rows=sum(s.rows for s in listed),
        rows_left=sum(s.rows for s in waiting),
        share=done / total if total else 1.0,
        failures=tuple(s for s in listed if s.state is StepState.FAILED),
    )


def outcome(steps: Iterable[Step]) -> RebuildState:
    """How a rebuild ended of which no step waits any more."""
    failed = any(s.state is StepState.FAILED for s in steps)
    return RebuildState.FAILED if failed else RebuildState.DONE


def unfit(
    problem: str, recalls: Sequence[tuple[int, float | None, float | None]], least: float
) -> str:
    """Why a new segment must not replace the old one, "" when it may.

    ``problem`` with its rows, as found; for each generation with a new graph what the old and
    the new graph find of what is there (None: cannot be told). The new one must find ``least``,
    and not clearly less than the old one.
    """
    if problem:
        return problem
    for generation, old, new in recalls:
        if new is None:
            return f"the graph of generation {generation} cannot be searched"
        if new < least:
            return f"recall of the new graph is {new:.3f}, below index.rebuild_min_recall {least:g}"
        if old is not None and new < old - RECALL_MARGIN:
            return (
                f"recall of the new graph is {new:.3f}, that of the old one {old:.3f}; "
                f"it may be {RECALL_MARGIN:g} less"
            )
    return ""
