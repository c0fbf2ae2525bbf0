"""Views when files are short, replaced or of other rules, and when a refresh fails half-way."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memsvc.domain.errors import Unavailable
from memsvc.service.search import view as view_module
from memsvc.service.search.view import PartitionHolder
from memsvc.store.snapshot import Snapshot
from tests.semantics.harness import DAY, World
from tests.waiting import until

VECTOR = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
OPPOSITE = [-1.0, *VECTOR[1:]]
OTHER = ("other", "agent")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "data")
    for number in range(5):
        made.put(summary=f"alpha w{number}", vector=VECTOR)
    made.seal()
    yield made
    made.close()


def holder_of(world: World, number: int = 1) -> PartitionHolder | None:
    return world.node.views._holders.get(number)


class Shortage:
    """Makes opening segment files fail, ``left`` times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, left: int = 1 << 30) -> None:
        self.left = left
        real = Path.open

        def fail(path: Path, *args: Any, **more: Any) -> Any:
            if "segments" in path.parts and self.left > 0:
                self.left -= 1
                raise OSError(number, "short of it", str(path))
            return real(path, *args, **more)

        monkeypatch.setattr(Path, "open", fail)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES])
def test_a_shortage_sets_no_sound_file_aside(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    world.node.views.clear()
    before = sorted(world.folder.rglob("segments/*/*/*"))
    with monkeypatch.context() as patched:
        Shortage(patched, number)
        with pytest.raises(Unavailable) as caught:
            world.query(text="alpha", mode="KEYWORD")
        assert caught.value.reason == "OUT_OF_FILES"
        assert caught.value.retry_after_ms
    assert sorted(world.folder.rglob("segments/*/*/*")) == before
    assert world.node.maintenance.damaged_files == 0
    assert len(world.query(text="alpha", mode="KEYWORD")["items"]) == 5


def test_a_shortage_ends_when_views_not_used_for_long_are_let_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put(ns=OTHER, summary="alpha", vector=VECTOR)
    world.node.views.drop(1)
    world.query(ns=OTHER, text="alpha", mode="KEYWORD")
    assert holder_of(world, 2) is not None
    Shortage(monkeypatch, errno.EMFILE, left=1)
    assert len(world.query(text="alpha", mode="KEYWORD")["items"]) == 5
    assert holder_of(world, 2) is None


def test_open_segments_are_bounded(world: World) -> None:
    world.put(ns=OTHER, summary="alpha", vector=VECTOR)
    world.seal()
    world.query(text="alpha", mode="KEYWORD")
    views = world.node.views
    views.descriptors = 1
    world.query(ns=OTHER, text="alpha", mode="KEYWORD")
    assert holder_of(world) is None
    assert holder_of(world, 2) is not None
    assert len(world.query(text="alpha", mode="KEYWORD")["items"]) == 5


def test_postings_of_another_analyzer_are_not_searched(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.node.views.clear()
    monkeypatch.setattr(view_module, "ANALYZER_VERSION", "2/other")
    world.query(text="alpha", mode="KEYWORD")
    holder = holder_of(world)
    assert holder is not None
    (sealed,) = holder._sealed.values()
    assert sealed.part.segment is not None
    assert sealed.part.segment.postings is None
    assert sealed.part.segment.columns is not None
    assert "analyzer is" in sealed.part.segment.damaged[0].reason


def test_an_idle_view_lets_go_of_a_replaced_segment(world: World) -> None:
    world.query(text="alpha", mode="KEYWORD")
    holder = holder_of(world)
    assert holder is not None
    old = set(holder._sealed)
    world.put(summary="alpha late", vector=VECTOR)
    world.merge()
    world.node.views.settle(1)
    (new,) = world.segments()
    assert set(holder._sealed) == {new["name"]} != old
    assert holder._ready == {}
    assert len(world.query(text="alpha", mode="KEYWORD")["items"]) == 6


def test_files_of_a_swap_that_failed_are_not_kept_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their folder is removed, and the space would stay taken."""
    world.query(text="alpha", mode="KEYWORD")
    world.put(summary="alpha late", vector=VECTOR)
    holder = holder_of(world)
    assert holder is not None
    prepared: list[set[str]] = []

    def full(*_args: Any, **_more: Any) -> Any:
        prepared.append(set(holder._ready))
        raise Unavailable("the disk is full", reason="DISK_FULL")

    # Not for whoever else writes: this is the swap.
    monkeypatch.setattr(world.node.maintenance.builds, "_writer", SimpleNamespace(run=full))
    world.admin.maintain(1, True, False, 0)
    until(lambda: bool(prepared), 30, "the swap was tried")
    until(lambda: not holder._ready, 30, "what was opened for it is let go of")
    assert prepared[0]
    monkeypatch.undo()


def test_a_tail_that_is_left_after_sealing_is_not_read_again(world: World) -> None:
    world.put(summary="alpha sealed", vector=VECTOR, metadata={"topic": "s1"})
    late: list[str] = []

    def meanwhile(_job: dict[str, Any]) -> None:
        late.append(world.put(summary="bravo first", vector=OPPOSITE, metadata={"topic": "s2"}))
        # The tail's words and columns are asked for, so what is left will need them.
        assert world.ids(text="bravo", mode="KEYWORD") == late
        assert world.ids(mode="BROWSE", filters={"topic": "s2"}) == late

    world.query(vector=VECTOR)
    world.builders[0].after_job = meanwhile
    world.seal()
    holder = holder_of(world)
    assert holder is not None and holder._tail is not None
    assert holder._tail.part.rows.tolist() == [7] and holder._next_facets is None
    facets = holder._tail.facets
    assert (facets._words, len(facets._columns)) == (1, 1)
    assert world.ids(text="bravo", mode="KEYWORD") == late
    assert world.ids(mode="BROWSE", filters={"topic": "s2"}) == late
    assert world.query(vector=OPPOSITE, top_k=1)["items"][0]["id"] == late[0]
    late.append(world.put(summary="bravo second", vector=VECTOR))
    assert sorted(world.ids(text="bravo", mode="KEYWORD")) == sorted(late)
    assert len(world.query(vector=VECTOR, top_k=20)["items"]) == 7


def test_what_is_prepared_for_a_tail_that_was_read_anew_meanwhile_is_not_used(
    world: World,
) -> None:
    world.put(summary="alpha", vector=VECTOR)
    changed = world.put(summary="charlie", vector=VECTOR, ttl_ms=0)
    bravo = world.put(summary="bravo", vector=VECTOR, ttl_ms=0, metadata={"topic": "s2"})
    world.write({"update": {"id": changed, "summary": "delta"}})
    world.query(text="alpha", mode="KEYWORD")
    assert world.ids(mode="BROWSE", filters={"topic": "s2"}) == [bravo]
    holder, store = holder_of(world), world.node.store
    assert holder is not None
    prepared = holder.prepare_tail(7)
    assert prepared is not None
    facets, rows = prepared
    assert rows.tolist() == [7, 8, 9]
    with store.read() as snapshot:
        facets.columns(rows, snapshot)
    # The replaced version goes, and a merge leaves no changes since the view.
    world.clock.turn(7 * DAY)
    world.node.sweep()
    with store.read() as snapshot:
        record = snapshot.partition_number(1)
        assert record is not None
        merged = replace(record, manifest=record.manifest + 1, pruned=record.position)
        holder.at(snapshot, merged)
        view = holder.at(snapshot, replace(merged, manifest=merged.manifest + 1, sealed_row=7))
        tail = view.parts[-1]
        assert tail.rows.tolist() == [8, 9]
        tail.lengths(snapshot)
        assert [tail.lookup(term)[0].tolist() for term in ("bravo", "delta")] == [[0], [1]]
        assert tail.facets is not None
        assert tail.facets.columns(tail.rows, snapshot).rows.tolist() == [8, 9]


def test_settling_a_partition_nobody_asked_for_opens_nothing(world: World) -> None:
    world.node.views.clear()
    world.node.views.settle(1)
    world.node.views.settle(77)
    assert holder_of(world) is None


def test_a_refresh_that_failed_half_way_adds_no_vector_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [world.put(summary=f"bravo {n}") for n in range(2)]
    world.merge()
    world.query(vector=VECTOR)
    for id_text in ids:
        world.write({"vector": {"id": id_text, "vector": VECTOR}})
    real, calls = Snapshot.vector, 0

    def failing(self: Snapshot, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("half-way")
        return real(self, *args)

    monkeypatch.setattr(Snapshot, "vector", failing)
    with world.node.store.read() as snapshot:
        partition = snapshot.partition_number(1)
        holder = holder_of(world)
        assert partition is not None and holder is not None
        with pytest.raises(RuntimeError):
            holder.at(snapshot, partition)
        view = holder.at(snapshot, partition)
    late = [extra.local.tolist() for part in view.parts for extra in part.extra.values()]
    assert sorted(len(rows) for rows in late if rows) == [2]
    found = [item["id"] for item in world.query(vector=VECTOR, top_k=50)["items"]]
    assert len(found) == len(set(found)) == 7
