"""Short ways to add, fill, switch and drop embedding models of a test's store."""

from __future__ import annotations

from typing import Any

import numpy as np

from memsvc.domain.generations import NewGeneration
from memsvc.domain.types import Caller
from memsvc.service.api import GenerationApi
from tests.semantics.harness import World

ADMIN = Caller("operator")
WIDE = 12
"""Numbers of the new model; the old one has 8."""


def wide(*numbers: float) -> list[float]:
    """A vector of the new model."""
    return [*numbers, *([0.0] * (WIDE - len(numbers)))]


def models(world: World) -> GenerationApi:
    """What people who run the store may ask for."""
    return world.admin.generations


def create(world: World, name: str = "new", dimension: int = WIDE) -> None:
    """Adds a model; the one there was gets the name "old"."""
    models(world).create(ADMIN, NewGeneration(name, dimension, "old"), False)


def make_default(world: World, name: str = "new", least: float = 0.99, **more: bool) -> None:
    """Makes a model the default."""
    models(world).make_default(ADMIN, name, least, more.get("force", False), False)


def configure(world: World, name: str, dimension: int) -> None:
    """What an operator does after the switch: sets the configuration, and reloads."""
    world.changes |= {"index__embedding": name, "index__dimension": dimension}
    index = world.node.settings.index.model_copy(update={"embedding": name, "dimension": dimension})
    world.node.apply(world.node.settings.model_copy(update={"index": index}))


def drop(world: World, name: str = "old") -> None:
    """Drops a model, and does what upkeep does."""
    models(world).drop(ADMIN, name, name, False)
    world.node.tick()


def pages(world: World, embedding: str = "new", size: int = 7) -> list[Any]:
    """All memories without a vector of a model."""
    found: list[Any] = []
    token = ""
    while True:
        page, token = models(world).lacking("", "", embedding, size, token)
        assert len(page) <= size
        found += page
        if not token:
            return found


def fill(world: World, ids: list[str], name: str = "new") -> None:
    """Late vectors of the new model, one direction for each memory."""
    rng = np.random.default_rng(3)
    for kept in ids:
        late = {"id": kept, "vector": rng.standard_normal(WIDE).tolist()}
        world.write({"vector": late}, embedding=name)


def files(world: World) -> set[str]:
    """Names of the vector files there are."""
    return {p.name for p in world.folder.glob("segments/*/*/*-?.*")}


def stored(world: World) -> set[int]:
    """Generations that vectors in the records are of."""
    with world.node.store.read() as snapshot:
        known = snapshot.all_generations()
        return {g.number for g in known if snapshot.first_vectors(g.number, 1)}
