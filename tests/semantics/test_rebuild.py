"""Rebuilding segments while the node serves: what is replaced, what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from memsvc.domain.rebuild import RebuildState
from memsvc.service import rebuild
from tests.semantics.harness import HOUR, World, error_of
from tests.semantics.rebuilding import (
    ROWS,
    builder_of,
    change,
    fill,
    folders,
    found,
    graphs,
    rebuilt,
)

pytestmark = pytest.mark.usefixtures("small_graphs")


# -- what is replaced --------------------------------------------------------------------


def test_a_changed_number_format_reaches_segments_that_are_there(world: World) -> None:
    fill(world)
    before, (old,) = found(world), world.segments()
    change(world, dtype="f16", m=24)
    facts = rebuilt(world)
    assert facts.plan is not None and facts.plan.state is RebuildState.DONE
    assert (facts.progress.segments, facts.progress.share) == (1, 1.0)
    assert graphs(world) == [("f16", 24, 200)]
    assert world.segments()[0]["name"] != old["name"]
    assert found(world) == before


def test_what_is_as_it_would_be_built_is_left_alone(world: World) -> None:
    fill(world)
    (old,) = world.segments()
    assert rebuilt(world).progress.segments == 0
    assert world.segments()[0]["name"] == old["name"]
    assert rebuilt(world, everything=True).progress.segments == 1
    assert world.segments()[0]["name"] != old["name"]


def test_one_tenant_is_rebuilt_without_the_others(world: World) -> None:
    other = ("globex", "helper", "s1")
    fill(world)
    fill(world, ns=other)
    change(world, dtype="bf16")
    assert rebuilt(world, tenant="globex").progress.segments == 1
    assert (graphs(world)[0][0], graphs(world, other)[0][0]) == ("i8", "bf16")
    assert rebuilt(world, tenant="acme", agent="nobody").progress.segments == 0
    assert rebuilt(world).progress.segments == 1


def test_dead_rows_are_left_out_of_what_is_rebuilt(world: World) -> None:
    ids = fill(world)
    world.forget(ids=ids[:10], mode="HARD")
    rebuilt(world, everything=True)
    assert world.segments()[0]["count"] == ROWS - 10


def test_graphs_of_earlier_settings_are_told(world: World) -> None:
    fill(world)
    change(world, m=8)
    until = time.monotonic() + 5
    while world.node.rebuilds.survey.outdated != 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert world.node.rebuilds.survey.outdated == 1
    assert world.node.telling.readings().graphs_outdated == 1
    rebuilt(world)
    while world.node.rebuilds.survey.outdated and time.monotonic() < until:
        time.sleep(0.01)
    assert world.node.telling.readings().graphs_outdated == 0
    assert world.node.telling.readings().rebuild_progress == 1.0


# -- old files ---------------------------------------------------------------------------


def test_replaced_files_stay_for_a_while_and_then_go(world: World) -> None:
    fill(world)
    (old,) = world.segments()
    rebuilt(world, everything=True)
    assert len(folders(world)) == 2
    world.node.tick()
    assert len(folders(world)) == 2
    world.restart()  # they are no orphans
    assert old["name"] in folders(world)
    world.clock.turn(5 * 60_000)
    world.node.tick()
    assert folders(world) == [world.segments()[0]["name"]]


def test_replaced_files_do_not_keep_what_is_purged(world: World) -> None:
    ids = fill(world)
    rebuilt(world, everything=True)
    world.forget(ids=ids[:1], mode="HARD")
    world.purge()
    assert folders(world) == [s["name"] for s in world.segments()]


def test_a_segment_with_erased_rows_is_removed_at_once(world: World) -> None:
    """The swap strikes the erasure off, so nothing else would remember the old files."""
    ids = fill(world)
    world.forget(ids=ids[:1], mode="HARD")
    rebuilt(world, everything=True)
    assert folders(world) == [world.segments()[0]["name"]]
    assert world.admin.inspect("", "", False, 0, "")["waiting_for_erasure"] == 0


def test_replaced_files_are_removed_before_the_time_of_erasure(
    make_world: Callable[..., World],
) -> None:
    world = make_world(lifecycle__purge_within_hours=0.02)
    fill(world)
    rebuilt(world, everything=True)
    world.clock.turn(int(0.01 * HOUR))
    world.node.tick()
    assert len(folders(world)) == 1


# -- refusals ----------------------------------------------------------------------------


def test_a_disk_that_cannot_hold_both_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(world)
    needed = world.node.rebuilds.start(everything=True, only_tell=True).needed_bytes
    assert needed >= world.segments()[0]["bytes"]
    usage = SimpleNamespace(free=needed - 1)
    monkeypatch.setattr(rebuild.shutil, "disk_usage", lambda _path: usage)
    start = lambda: world.node.rebuilds.start(everything=True, only_tell=False)  # noqa: E731
    assert error_of(start).reason == "DISK_TOO_SMALL"
    assert world.node.rebuilds.facts().plan is None
    usage.free = 1 << 40
    assert rebuilt(world, everything=True).progress.segments == 1


def test_one_rebuild_at_a_time_and_none_to_cancel(world: World) -> None:
    fill(world)
    rebuilds = world.node.rebuilds
    assert error_of(rebuilds.cancel).reason == "NO_REBUILD"
    again: list[str] = []
    builder_of(world).before_job = lambda _job: again.append(
        error_of(lambda: rebuilds.start(only_tell=False)).reason
    )
    rebuilt(world, everything=True)
    assert set(again) == {"REBUILD_RUNNING"}


def test_what_is_cancelled_stops_and_keeps_what_was_done(world: World) -> None:
    fill(world)
    fill(world, ns=("globex", "helper", "s1"))

    def cancel(job: dict[str, Any]) -> None:
        if job["job"] == "build" and job["spec"]["partition"] == 2:
            world.node.rebuilds.cancel()

    builder_of(world).before_job = cancel
    change(world, dtype="f16")
    facts = rebuilt(world)
    assert facts.plan is not None and facts.plan.state is RebuildState.CANCELLED
    world.node.rebuilds._wake.set()
    time.sleep(0.1)
    assert (graphs(world), graphs(world, ("globex", "helper"))) == (
        [("f16", 16, 200)],
        [("i8", 16, 200)],
    )
    world.restart()  # it is not gone on with
    assert world.node.rebuilds.facts().plan == facts.plan
    assert rebuilt(world).progress.segments == 1
