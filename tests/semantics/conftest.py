"""Worlds on fast folders, with what only costs time at every start taken out."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memsvc.segments.costs import measure_costs
from memsvc.service import derived, maintenance, node, rebuild
from tests.semantics.harness import World

_SHM = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: these tests are about meaning, not disks."""
    if not os.access(_SHM, os.W_OK):
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="memsvc-test-", dir=_SHM))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(autouse=True)
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a start measures and tries has tests of its own, and would take most of the time."""
    costs = _costs()
    monkeypatch.setattr(node, "measure_costs", lambda: costs)
    monkeypatch.setattr(node, "check_index", lambda _settings: None)
    # The pause after a build that failed.
    monkeypatch.setattr(maintenance, "RETRY_S", 0.05)
    monkeypatch.setattr(rebuild, "RETRY_S", 0.02)


@pytest.fixture
def small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs from five vectors on."""
    monkeypatch.setattr(
        node, "index_settings", lambda s: replace(derived.index_settings(s), graph_min_rows=5)
    )


_known: list[object] = []


def _costs() -> object:
    if not _known:
        _known.append(measure_costs())
    return _known[0]


@pytest.fixture
def make_world(folder: Path) -> Iterator[Callable[..., World]]:
    """Opens a world with changed settings; closed at the end."""
    made: list[World] = []

    def make(**changes: Any) -> World:
        made.append(World(folder / str(len(made)), **changes))
        return made[-1]

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    """A world with the usual settings."""
    return make_world()
