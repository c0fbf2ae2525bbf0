"""Rebuilds of a world, for tests: what is there before, how it runs, what it leaves."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from memsvc.service.rebuild import RebuildFacts
from memsvc.service.workqueue import LANES
from tests.semantics.harness import NS, InlineBuilder, World

ROWS = 60


def fill(world: World, rows: int = ROWS, ns: tuple[str, ...] = NS) -> list[str]:
    """Memories with random vectors, sealed into one segment; their ids."""
    rng = np.random.default_rng(5)
    items = [
        {"content": f"memory {n}", "vector": rng.standard_normal(8).tolist()} for n in range(rows)
    ]
    ids = [result["id"] for result in world.write(*items, ns=ns)]
    world.seal()
    return ids


def change(world: World, **index: object) -> None:
    """Reloads settings of the index."""
    settings = world.node.settings
    world.node.apply(settings.model_copy(update={"index": settings.index.model_copy(update=index)}))


def builder_of(world: World) -> InlineBuilder:
    """The builder of rebuilds."""
    return world.builders[len(LANES)]


def ended(world: World, seconds: float = 20.0) -> RebuildFacts:
    """The rebuild when it has ended."""
    until = time.monotonic() + seconds
    while (facts := world.node.rebuilds.facts()).running:
        assert time.monotonic() < until, f"still running: {facts}"
        time.sleep(0.005)
    return facts


def rebuilt(world: World, **scope: Any) -> RebuildFacts:
    """A whole rebuild."""
    world.node.rebuilds.start(**scope, only_tell=False)
    return ended(world)


def graphs(world: World, ns: tuple[str, ...] = NS) -> list[tuple[str, int, int]]:
    """Settings of the graphs of an agent."""
    with world.node.store.read() as snapshot:
        partition = snapshot.partition(*ns[:2])
        assert partition is not None
        files = [f for s in snapshot.segments(partition.number) for f in s.files]
    built = [f.graph for f in files if f.kind == "graph"]
    return [(g.dtype, g.m, g.ef_construction) for g in built if g is not None]


def folders(world: World) -> list[str]:
    """Segment folders of the first agent."""
    return sorted(p.name for p in (world.folder / "segments" / "00000001").iterdir())


def found(world: World) -> list[tuple[str, float]]:
    """What a fixed query finds."""
    items = world.query(vector=[1.0, 0.5, *[0.1] * 6], top_k=20, min_score=-1)["items"]
    return [(item["id"], item["similarity"]) for item in items]
