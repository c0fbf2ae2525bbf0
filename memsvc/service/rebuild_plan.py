"""What a rebuild has to do: its plan in the store, and the survey of the graphs it is about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from memsvc.domain.manifest import GraphSettings, SegmentMeta
from memsvc.domain.rebuild import Plan, Step
from memsvc.service.segment_builds import SegmentBuilds
from memsvc.store.snapshot import Snapshot
from memsvc.store.store import Store

PLAN: Final = b"rebuild-plan"
"""Name of the plan among the local records of the store."""
_STEP: Final = b"rebuild-step/"
"""What the names of its steps begin with; then partition (u32) and segment."""

Steps = dict[tuple[int, str], Step]
"""By partition and segment, in the order in which they are carried out."""


@dataclass(frozen=True, slots=True)
class Survey:
    """Segments with a graph, and how many of them have one of other settings than the present
    ones, or one of which it is not known (built by memsvc 0.1)."""

    graphs: int = 0
    outdated: int = 0
    unknown: int = 0

    @property
    def to_rebuild(self) -> int:
        """Segments that a rebuild would go through."""
        return self.outdated + self.unknown


def step_name(step: Step) -> bytes:
    """The name of a step among the local records."""
    return _STEP + step.partition.to_bytes(4, "big") + step.name.encode()


def load(store: Store) -> tuple[Plan | None, Steps]:
    """The plan that was written down last, and what became of its steps."""
    with store.read() as snapshot:
        plan = next((Plan.from_json(v) for k, v in snapshot.local(PLAN) if not k), None)
        steps = [
            Step.from_json(int.from_bytes(key[:4], "big"), key[4:].decode(), value)
            for key, value in snapshot.local(_STEP)
        ]
    return plan, by_key(steps)


def by_key(steps: Iterable[Step]) -> Steps:
    """Steps by what they are about."""
    return {(s.partition, s.name): s for s in steps}


def records(plan: Plan, steps: Iterable[Step], before: Iterable[Step]) -> dict[bytes, bytes | None]:
    """What to write down so that a plan takes the place of the steps ``before``."""
    found: dict[bytes, bytes | None] = {step_name(s): None for s in before}
    found |= {step_name(s): s.to_json() for s in steps}
    return {**found, PLAN: plan.to_json()}


def in_scope(snapshot: Snapshot, tenant: str, agent: str) -> Iterator[SegmentMeta]:
    """Segments of an agent, of a tenant, or of the whole node."""
    if not tenant:
        yield from snapshot.all_segments()
        return
    if agent:
        found = snapshot.partition(tenant, agent)
        partitions = [found] if found else []
    else:
        partitions = list(snapshot.partitions(prefix=f"{tenant}\0".encode()))
    for partition in partitions:
        yield from snapshot.segments(partition.number)


def wanted_graphs(snapshot: Snapshot, usual: GraphSettings) -> dict[int, GraphSettings]:
    """What the graphs of each generation are built with, where ``usual`` is what the node says."""
    return {g.number: g.graph(usual) for g in snapshot.generations()}


def to_rebuild(
    store: Store, wanted: GraphSettings, tenant: str, agent: str, everything: bool
) -> list[SegmentMeta]:
    """Segments that a rebuild has to go through."""
    with store.read() as snapshot:
        graphs = wanted_graphs(snapshot, wanted)
        return [m for m in in_scope(snapshot, tenant, agent) if everything or m.outdated(graphs)]


def survey(store: Store, wanted: GraphSettings) -> Survey:
    """Looks through the manifest: some 20 us for each segment."""
    graphs = different = unknown = 0
    with store.read() as snapshot:
        wanted_by = wanted_graphs(snapshot, wanted)
        for meta in snapshot.all_segments():
            files = [f for f in meta.files if f.kind == "graph"]
            graphs += bool(files)
            if any(f.graph is None for f in files):
                unknown += 1
            elif meta.outdated(wanted_by):
                different += 1
    return Survey(graphs, different, unknown)


def bytes_needed(builds: SegmentBuilds, store: Store, metas: Iterable[SegmentMeta]) -> int:
    """About how much room the new files take beside the old ones, rather too much."""
    with store.read() as snapshot:
        generations = tuple((g.number, g.dimension) for g in snapshot.generations())
    return sum(max(m.size, builds.estimate(m.count, generations)) for m in metas)
