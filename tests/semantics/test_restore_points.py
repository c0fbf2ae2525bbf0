"""A node restored to a position is the node that stopped there, but for what was erased since.

The node that stopped there is a real one: its directory is copied while it is stopped. At the
end both are opened at the same time of the clock, and what was forgotten since is forgotten on
the one that stopped too; then they must not differ in a byte of any record.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from memsvc.domain.types import Caller
from memsvc.service.snapshots.folders import FolderPlace
from memsvc.service.snapshots.restoring import restore
from memsvc.service.snapshots.taking import take
from memsvc.store.store import Store
from tests.semantics.harness import HOUR, World, vector
from tests.semantics.invariants import check_replay, check_store

ADMIN = Caller("admin", may_review=True, may_admin=True)
SPACES = [("acme", "helper"), ("acme", "other"), ("globex", "bot")]
STEPS = 90
STOPS = 6
KINDS = {
    "put": 8, "update": 3, "touch": 3, "vector": 2, "status": 2, "decay": 2, "forget": 2,
    "forget many": 1, "erase": 0.3, "wait": 2, "seal": 1, "purge": 0.5, "snapshot": 1,
}  # fmt: skip
RECORDS = ("names", "tenants", "ids", "versions", "states", "texts", "vectors", "dedup",
           "generations", "expiry")  # fmt: skip
COUNTERS = (b"memories", b"bytes")


@dataclass
class Life:
    """A node that random things happen to, and directories of it as it was when stopped."""

    world: World
    root: Path
    draw: random.Random
    ids: dict[str, tuple[str, str]] = field(default_factory=dict)
    erased: dict[str, int] = field(default_factory=dict)
    """Forgotten HARD or erased with their tenant, and the position of that."""
    stops: dict[int, Path] = field(default_factory=dict)

    @property
    def position(self) -> int:
        with self.world.node.store.read() as snapshot:
            return snapshot.position

    def live(self, many: int = 1) -> list[str]:
        left = sorted(set(self.ids) - set(self.erased))
        return self.draw.sample(left, min(many, len(left)))

    def step(self, number: int) -> None:
        """One thing happens, or nothing, where there is nobody for it to happen to."""
        world, draw = self.world, self.draw
        (kind,) = draw.choices(list(KINDS), list(KINDS.values()))
        world.clock.turn(draw.randrange(1, 2_000))
        if kind == "put":
            ns = draw.choice(SPACES)
            item: dict[str, Any] = {"summary": f"m{number}", "content": f"long {number}"}
            if draw.random() < 0.7:
                item["vector"] = vector(number + 1, draw.random())
            if draw.random() < 0.5:
                item["dedup_key"] = f"k{draw.randrange(30)}"
            if draw.random() < 0.3:
                item["ttl_ms"] = draw.randrange(1, 4) * HOUR
            (result,) = world.write(item, ns=ns, request_id=f"r{number}")
            self.ids.setdefault(result["id"], ns)
        elif kind == "wait":
            world.clock.turn(draw.randrange(HOUR))
            world.node.sweep()
        elif kind == "seal":
            world.seal()
        elif kind == "purge":
            world.purge()
        elif kind == "snapshot":
            take(world.node.store, self.root / "snapshots" / f"{number}", now_ms=world.clock.now)
        elif kind == "erase":
            tenant = draw.choice(SPACES)[0]
            world.memory.admin.erase_tenant(ADMIN, tenant, "", False, "")
            for one, ns in self.ids.items():
                if ns[0] == tenant:
                    self.erased.setdefault(one, self.position)
        else:
            self._change(kind, number)

    def _change(self, kind: str, number: int) -> None:
        world, draw = self.world, self.draw
        for one in self.live(5 if kind == "forget many" else 1):
            ns = self.ids[one]
            if world.memory.query(list(ns), ids=[one])["items"] == []:
                continue  # expired, or archived
            if kind == "update":
                changes = {"id": one, "content": f"changed {number}"}
                if draw.random() < 0.5:
                    changes["vector"] = vector(number + 1, draw.random(), 1)
                world.write({"update": changes}, ns=ns)
            elif kind == "touch":
                world.write({"touch": {"id": one, "kind": draw.choice(["USED", "SEEN"])}}, ns=ns)
            elif kind == "vector":
                world.write({"vector": {"id": one, "vector": vector(number + 1, 2)}}, ns=ns)
            elif kind == "status":
                world.write({"update": {"id": one, "status": "ARCHIVED"}}, ns=ns)
            elif kind == "decay":
                world.forget(ns, ids=[one], mode="DECAY", factor=0.5)
            else:
                world.forget(ns, ids=[one], mode="HARD")
                self.erased[one] = self.position

    def stop_here(self) -> None:
        """Keeps a copy of the stopped node."""
        at = self.position
        self.world.close()
        if at not in self.stops:
            self.stops[at] = self.root / f"stopped-{at}"
            shutil.copytree(self.world.folder, self.stops[at])
        self.world.open()

    def erase_since(self, world: World, position: int) -> None:
        """On a node that stopped at a position: what was forgotten later is forgotten."""
        for one, at in self.erased.items():
            if at > position:
                world.forget(self.ids[one], ids=[one], mode="HARD")


def _tables(store: Store) -> dict[str, dict[bytes, bytes]]:
    with store.env.lmdb.begin() as txn:
        return {name: dict(txn.cursor(db)) for name, db in store.env.tables.items()}


def _log_of(folder: Path) -> dict[bytes, bytes]:
    store = Store(folder)
    try:
        return _tables(store)["log"]
    finally:
        store.close()


def _opened(life: Life, make_world: Callable[..., World], folder: Path) -> World:
    world = make_world(clock=life.world.clock)
    world.close()
    world.folder = folder
    world.open()
    return world


@pytest.mark.parametrize(
    "seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 23))]
)
def test_any_position_of_a_random_life_comes_back_as_it_was(
    world: World, folder: Path, make_world: Callable[..., World], seed: int
) -> None:
    life = Life(world, folder, random.Random(seed))
    stops = {*life.draw.sample(range(1, STEPS), STOPS - 1), STEPS - 1}
    for number in range(STEPS):
        life.step(number)
        if number in stops:
            life.stop_here()
    take(world.node.store, folder / "snapshots" / "last", now_ms=world.clock.now)
    world.close()
    for number, (position, stopped) in enumerate(life.stops.items()):
        target = folder / f"restored-{number}"
        done = restore(
            FolderPlace(folder / "snapshots"), target,
            now_ms=world.clock.now, position=position, data_dir=world.folder,
        )  # fmt: skip
        assert done.position == position
        # The headers up to there, and with each the running digest.
        was = _log_of(stopped)
        assert was.items() <= _log_of(target).items()
        _assert_same(life, make_world, position, stopped, target)
    world.open()


def _assert_same(
    life: Life, make_world: Callable[..., World], position: int, stopped: Path, target: Path
) -> None:
    then, again = (_opened(life, make_world, at) for at in (stopped, target))
    life.erase_since(then, position)
    for one in (then, again):
        one.node.sweep()
        one.purge()
    found, expected = _tables(again.node.store), _tables(then.node.store)
    for name in RECORDS:
        assert found[name] == expected[name], f"table {name} at {position}"
    for counter in COUNTERS:
        assert found["meta"].get(counter) == expected["meta"].get(counter), counter
    assert again.admin.list_tenants("", 100, "") == then.admin.list_tenants("", 100, "")
    for space in SPACES:
        assert again.all(space) == then.all(space)
    check_store(again.node)
    check_replay(again.node, again.folder / "replay")
    then.close()
    again.close()
