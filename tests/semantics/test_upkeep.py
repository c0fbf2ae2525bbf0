"""Maintenance beside reads and writes, at the moments where they could meet badly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memsvc.domain.manifest import SegmentMeta
from memsvc.segments.segment import Segment
from memsvc.service.search import view
from tests.semantics.harness import World, vector


@pytest.mark.parametrize("fields", [{"vector": vector(1)}, {"text": "tea"}], ids=str)
def test_a_query_that_finds_its_segments_merged_away_takes_a_newer_snapshot(
    world: World, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    ids = []
    dead = world.put()
    for _ in range(2):
        ids += [world.put(summary="tea", vector=vector(1)) for _ in range(2)]
        world.seal()
        world.forget(ids=[dead], mode="HARD")  # so that the segment does not grow
    assert len(world.segments()) == 2
    world.restart()
    merged: list[str] = []
    really_open = Segment.open

    class Merging(Segment):
        @classmethod
        def open(cls, root: Path, meta: SegmentMeta, **options: Any) -> Segment:
            # The snapshot is taken, its files are not yet open: now they go.
            if not merged:
                merged.append(meta.name)
                world.merge()
            return really_open(root, meta, **options)

    monkeypatch.setattr(view, "Segment", Merging)
    # This query waits for the merge with the view in hand, which no query does; the merge
    # must not wait for the view in turn.
    for waiting in ("expect", "settle"):
        monkeypatch.setattr(type(world.node.views), waiting, lambda *_: None)
    answer = world.query(**fields)
    assert merged and merged[0] not in str(world.segments())
    assert [h["id"] for h in answer["items"]] == ids
    assert answer["degraded"]["level"] == 0
    assert world.node.maintenance.damaged_files == 0


def test_sealing_that_was_asked_for_ends_under_steady_writes(world: World) -> None:
    world.put()
    jobs: list[dict[str, Any]] = []

    def more(job: dict[str, Any]) -> None:
        jobs.append(job)
        if len(jobs) < 20:
            world.put()

    for builder in world.builders:
        builder.after_job = more
    world.seal()
    assert len(jobs) == 1
    assert len(world.all()) == 2


def test_merging_everything_includes_what_is_sealed_meanwhile(world: World) -> None:
    world.put()
    world.seal()
    for round_ in range(10):
        world.put()
        world.merge()
        assert len(world.segments()) == 1, f"round {round_}"


def test_a_seal_by_growth_leaves_the_tail_that_is_written_meanwhile(make_world: Any) -> None:
    world: World = make_world(storage__seal_rows=10)
    written = [world.put(summary="tea", vector=vector(1)) for _ in range(9)]

    def more(_job: dict[str, Any]) -> None:
        if len(written) < 15:
            written.append(world.put(summary="tea", vector=vector(1)))

    for builder in world.builders:
        builder.before_job = more
        builder.after_job = more
    written.append(world.put(summary="tea", vector=vector(1)))
    assert world.node.maintenance.wait_idle(60)
    for fields in ({"vector": vector(1)}, {"text": "tea"}, {"mode": "BROWSE"}):
        assert set(world.ids(**fields)) == set(written)
    (segment,) = world.segments()
    assert segment["rows"] == [1, 11]


@pytest.mark.parametrize("grown", [False, True], ids=["new", "grown"])
@pytest.mark.parametrize("change", ["forget", "update", "vector", "archive"])
def test_what_changes_while_a_segment_is_built_is_seen_afterwards(
    world: World, change: str, grown: bool
) -> None:
    kept = world.put(summary="quokka")
    if grown:
        world.seal()
    other = world.put(summary="quokka", vector=vector(1))
    items: dict[str, dict[str, Any]] = {
        "update": {"update": {"id": kept, "summary": "wombat"}},
        "vector": {"vector": {"id": kept, "vector": vector(1)}},
        "archive": {"update": {"id": kept, "status": "ARCHIVED"}},
    }

    def now(_job: dict[str, Any]) -> None:
        for builder in world.builders:
            builder.after_job = lambda _job: None
        if change == "forget":
            world.forget(ids=[kept], mode="HARD")
        else:
            world.write(items[change])

    for builder in world.builders:
        builder.after_job = now
    world.seal()
    for step in (lambda: None, world.restart, world.purge):
        step()
        words = {"vector": {kept, other}}.get(change, {other})
        assert set(world.ids(text="quokka")) == words
        assert set(world.ids(text="wombat")) == ({kept} if change == "update" else set())
        near = {kept, other} if change == "vector" else {other}
        assert set(world.ids(vector=vector(1))) == near
