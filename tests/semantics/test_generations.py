"""Changing the embedding model: two side by side, filled, switched, dropped; nothing mixed up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from memsvc.domain.errors import Code
from memsvc.domain.generations import NewGeneration
from memsvc.domain.types import Caller
from memsvc.service import coverage, dropped_files, generation_admin, generations
from memsvc.service.api import GenerationApi
from memsvc.service.node import Node
from memsvc.service.snapshots.folders import FolderPlace
from memsvc.service.snapshots.restoring import restore
from memsvc.service.snapshots.taking import take
from memsvc.service.snapshots.verifying import verify
from tests.semantics.harness import DAY, HOUR, World, error_of, vector
from tests.semantics.invariants import check_replay, check_store
from tests.semantics.test_snapshots import at

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


# -- side by side --------------------------------------------------------------------------


def test_clients_of_two_models_do_not_see_each_others_vectors(world: World) -> None:
    old = world.put(summary="tea of old", vector=vector(1))
    create(world)
    (made,) = world.write({"summary": "tea of new", "vector": wide(1)}, embedding="new")
    new = made["id"]
    for _ in range(3):
        assert world.ids(vector=vector(1), min_score=-1) == [old]
        assert world.ids(vector=vector(1), min_score=-1, embedding="old") == [old]
        assert world.ids(vector=wide(1), min_score=-1, embedding="new") == [new]
        # Words are the same for all.
        assert set(world.ids(text="tea")) == {old, new}
        assert set(world.ids(text="tea", embedding="new")) == {old, new}
        both = world.ids(vector=wide(1), text="tea", embedding="new")
        assert both[0] == new and set(both) == {old, new}
        world.seal()
        world.merge()
    shown = world.query(ids=[new], embedding="new", include={"vector": True})["items"][0]
    assert shown["vector"] == wide(1)
    assert "vector" not in (world.get(new, include={"vector": True}) or {})


def test_what_belongs_to_another_model_is_refused_and_the_known_ones_are_named(
    world: World,
) -> None:
    world.put(summary="tea", vector=vector(1))
    create(world)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: world.write({"summary": "x", "vector": wide(1)}), "items[0].memory.vector"),
        (
            lambda: world.write({"summary": "x", "vector": vector(1)}, embedding="new"),
            "items[0].memory.vector",
        ),
        (lambda: world.query(vector=wide(1)), "vector"),
        (lambda: world.query(vector=vector(1), embedding="new"), "vector"),
    ]
    for call, field in calls:
        error = error_of(call)
        assert (error.code, error.reason) == (Code.INVALID_ARGUMENT, "DIMENSION_MISMATCH")
        assert error.violations[0].field == field
        assert "old (8 numbers, default), new (12 numbers)" in error.hint
    error = error_of(lambda: world.query(vector=vector(1), embedding="other"))
    assert (error.code, error.reason) == (Code.FAILED_PRECONDITION, "EMBEDDING_UNKNOWN")
    assert error.violations[0].field == "embedding"
    assert "old (8 numbers, default), new (12 numbers)" in error.hint
    assert len(world.all()) == 1


def test_late_vectors_fill_the_new_model_while_the_old_one_serves(world: World) -> None:
    ids = [world.put(summary=f"m{n}", vector=vector(n, 1)) for n in range(20)]
    world.seal()
    ids += [world.put(summary=f"m{n}", vector=vector(n, 1)) for n in range(20, 30)]
    before = world.ids(vector=vector(3, 1), min_score=-1, top_k=50)
    create(world)
    assert world.ids(vector=wide(1), embedding="new", min_score=-1) == []
    fill(world, ids[5:])
    assert len(world.ids(vector=wide(1), embedding="new", min_score=-1, top_k=50)) == 25
    fill(world, ids[:5])
    wanted = world.ids(vector=wide(1), embedding="new", min_score=-1, top_k=50)
    assert len(wanted) == 30
    world.seal()
    world.merge()
    world.restart()
    assert world.ids(vector=wide(1), embedding="new", min_score=-1, top_k=50) == wanted
    assert world.ids(vector=vector(3, 1), min_score=-1, top_k=50) == before
    check_store(world.node)
    check_replay(world.node, world.folder / "replay")


def test_a_new_text_with_a_vector_drops_the_vectors_of_the_old_text(world: World) -> None:
    kept = world.put(summary="tea", vector=vector(1))
    create(world)
    world.write({"vector": {"id": kept, "vector": wide(1)}}, embedding="new")
    world.write({"update": {"id": kept, "vector": wide(0, 1)}}, embedding="new")
    assert world.ids(vector=vector(1)) == [kept], "the text is the same"
    world.write({"update": {"id": kept, "summary": "coffee", "vector": wide(1)}}, embedding="new")
    assert world.ids(vector=vector(1), min_score=-1) == []
    assert [m.content or m.summary for m in pages(world, "old")] == ["coffee"]


def test_a_view_from_before_the_model_goes_on(world: World) -> None:
    """A view that is in use when a model is added knows the new vectors at once."""
    world.put(summary="tea", vector=vector(1))
    world.seal()
    late = world.put(summary="coffee", vector=vector(1))
    assert len(world.ids(vector=vector(1))) == 2
    create(world)
    world.write({"vector": {"id": late, "vector": wide(1)}}, embedding="new")
    assert world.ids(vector=wide(1), embedding="new") == [late]


# -- how far it is -------------------------------------------------------------------------


def test_progress_is_told_and_what_is_lacking_can_be_paged_through(world: World) -> None:
    ids = [world.put(summary=f"m{n}", content=f"text {n}", vector=vector(n, 1)) for n in range(30)]
    ids += [world.put(("globex", "bot"), summary="other")]
    world.put(summary="over soon", ttl_ms=HOUR)
    forgotten = world.put(summary="gone", vector=vector(1))
    world.forget(ids=[forgotten], mode="HARD")
    world.clock.turn(2 * HOUR)
    create(world)
    world.seal()
    page, token = models(world).lacking("", "", "new", 12, "")
    assert [m.content for m in page] == [f"text {n}" for n in range(12)]
    # Those looked at are filled, one that comes later is changed: nothing is missed.
    fill(world, ids[:12])
    world.write({"update": {"id": ids[20], "content": "another text"}})
    rest = []
    while token:
        page, token = models(world).lacking("", "", "new", 12, token)
        rest += page
    wanted = [*(f"text {n}" for n in range(12, 30) if n != 20), "another text", ""]
    assert [m.content for m in rest] == wanted
    assert (rest[0].tenant, rest[0].agent, rest[0].session) == ("acme", "helper", "s1")
    assert rest[-2].version == 2
    assert [m.tenant for m in models(world).lacking("globex", "bot", "new", 0, "")[0]] == ["globex"]
    world.clock.turn(10_000)
    old, new = models(world).facts()
    assert (old.coverage.memories, old.coverage.vectors, old.coverage.share) == (31, 30, 1.0)
    assert (new.coverage.vectors, new.coverage.lacking) == (12, 19)
    assert new.coverage.share == pytest.approx(12 / 30)
    assert new.eta_ms == 0, "one look tells no speed"
    world.clock.turn(10_000)
    fill(world, ids[12:16])
    assert models(world).facts()[1].eta_ms == pytest.approx(10_000 * 15 / 4, abs=1)


def test_a_page_is_bounded_in_rows_looked_at_and_in_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [world.put(content=f"{n}" + "x" * 999, vector=vector(1)) for n in range(30)]
    create(world)
    fill(world, ids[:25])
    monkeypatch.setattr(coverage, "STEP", 5)
    monkeypatch.setattr(coverage, "SCAN_MAX", 26)
    first, token = models(world).lacking("", "", "new", 100, "")
    assert (first, bool(token)) == ([], True)
    assert len(pages(world, size=100)) == 5
    monkeypatch.setattr(coverage, "SCAN_MAX", 20_000)
    monkeypatch.setattr(coverage, "PAGE_BYTES", 1_500)
    first, token = models(world).lacking("", "", "new", 100, "")
    assert (len(first), bool(token)) == (2, True)
    assert len(pages(world, size=100)) == 5
    for page_size, page_token, field in ((1_001, "", "page_size"), (1, "x", "page_token")):
        error = error_of(
            lambda size=page_size, token=page_token: models(world).lacking(  # type: ignore[misc]
                "", "", "new", size, token
            )
        )
        assert error.violations[0].field == field


def test_a_vector_for_a_text_that_has_changed_since_it_was_listed_is_refused(
    world: World,
) -> None:
    kept = world.put(summary="tea", vector=vector(1))
    create(world)
    (listed,) = pages(world)
    world.write({"update": {"id": kept, "summary": "coffee"}})
    late = {"id": kept, "vector": wide(1), "if_version": listed.version}
    error = error_of(lambda: world.write({"vector": late}, embedding="new"))
    assert error.reason == "VERSION_MISMATCH"


# -- creating ------------------------------------------------------------------------------


def test_a_model_is_created_once_and_the_present_one_must_have_a_name(world: World) -> None:
    admin = models(world)
    error = error_of(lambda: admin.create(ADMIN, NewGeneration("new", WIDE, ""), False))
    assert error.reason == "EMBEDDING_UNNAMED"
    assert admin.create(ADMIN, NewGeneration("new", WIDE, "old"), True).needed_bytes > 0
    assert len(admin.facts()) == 1, "it was only tried"
    create(world)
    for name in ("new", "old"):
        assert error_of(lambda n=name: create(world, n)).reason == "EMBEDDING_EXISTS"  # type: ignore[misc]
    for name, dimension, field in (
        ("", 8, "embedding"),
        ("x" * 129, 8, "embedding"),
        ("a\nb", 8, "embedding"),
        ("third", 0, "dimension"),
        ("third", 8_193, "dimension"),
    ):
        wish = NewGeneration(name, dimension)
        error = error_of(lambda w=wish: admin.create(ADMIN, w, False))  # type: ignore[misc]
        assert error.violations[0].field == field
    for field, wish in (
        ("m", NewGeneration("third", 8, m=1)),
        ("m", NewGeneration("third", 8, m=129)),
        ("ef_construction", NewGeneration("third", 8, ef_construction=7)),
        ("ef_construction", NewGeneration("third", 8, ef_construction=4_097)),
        ("dtype", NewGeneration("third", 8, dtype="int8")),
    ):
        error = error_of(lambda w=wish: admin.create(ADMIN, w, False))  # type: ignore[misc]
        assert error.violations[0].field == field
    error = error_of(lambda: admin.create(ADMIN, NewGeneration("third", 8, "other"), False))
    assert error.violations[0].field == "current"
    for name in ("third", "fourth"):
        admin.create(ADMIN, NewGeneration(name, 8, ""), False)
    assert error_of(lambda: create(world, "fifth")).reason == "TOO_MANY_EMBEDDINGS"
    world.restart()
    assert [f.generation.embedding for f in models(world).facts()] == [
        "old",
        "new",
        "third",
        "fourth",
    ]


def test_what_the_disk_or_the_store_would_not_hold_is_not_begun(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world(storage__max_bytes=20_000)
    for _ in range(20):
        world.put(summary="x", vector=vector(1))
    needed = models(world).create(ADMIN, NewGeneration("new", WIDE, "old"), True).needed_bytes
    usage = SimpleNamespace(free=needed - 1)
    monkeypatch.setattr(generation_admin.shutil, "disk_usage", lambda _path: usage)
    assert error_of(lambda: create(world)).reason == "DISK_TOO_SMALL"
    usage.free = 1 << 40
    assert error_of(lambda: create(world, dimension=512)).reason == "STORE_FULL"
    create(world)


# -- the default ---------------------------------------------------------------------------


def test_the_default_is_switched_when_enough_is_filled_and_can_be_turned_back(
    world: World,
) -> None:
    ids = [world.put(summary=f"m{n}", vector=vector(n, 1)) for n in range(20)]
    words = world.put(summary="never had a vector")
    create(world)
    fill(world, ids[:15])
    error = error_of(lambda: make_default(world))
    assert (error.code, error.reason) == (Code.FAILED_PRECONDITION, "COVERAGE_TOO_LOW")
    assert error.metadata["coverage"] == "0.750000"
    for share in (-0.1, 1.1, float("nan")):
        refused = error_of(lambda least=share: make_default(world, least=least))  # type: ignore[misc]
        assert refused.violations[0].field == "min_coverage"
    make_default(world, least=0.75)
    assert len(world.ids(vector=wide(1), min_score=-1, top_k=50)) == 15
    assert len(world.ids(vector=vector(1), min_score=-1, top_k=50, embedding="old")) == 20
    assert error_of(lambda: world.query(vector=vector(1))).reason == "DIMENSION_MISMATCH"
    assert world.memory.health()["store"]["embedding"] == "new"
    assert world.memory.health()["store"]["embeddings"] == [
        {"name": "old", "dimension": 8, "is_default": False},
        {"name": "new", "dimension": 12, "is_default": True},
    ]
    position = world.admin.inspect("", "", False, 0, "")["position"]
    make_default(world)  # it is already
    assert world.admin.inspect("", "", False, 0, "")["position"] == position
    make_default(world, "old", force=True)
    assert len(world.ids(vector=vector(1), min_score=-1, top_k=50)) == 20
    fill(world, ids[15:])
    make_default(world)
    assert world.ids(text="never") == [words]
    check_replay(world.node, world.folder / "replay")


def test_a_graph_that_finds_too_little_does_not_become_the_default(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [world.put(summary=f"m{n}", vector=vector(n, 1)) for n in range(6)]
    create(world)
    fill(world, ids)
    builds = world.node.maintenance.builds
    builds.settings = replace(builds.settings, graph_min_rows=5)
    world.seal()
    assert "graph-2.usearch" in files(world)
    make_default(world)
    make_default(world, "old")
    tried: list[int] = []

    def try_graph(_meta: object, generation: int) -> float:
        tried.append(generation)
        return 0.5

    monkeypatch.setattr(world.node.rebuilds, "try_graph", try_graph)
    assert error_of(lambda: make_default(world)).reason == "RECALL_TOO_LOW"
    make_default(world, force=True)
    assert tried == [2]


def test_a_model_may_have_graphs_of_its_own_kind(world: World) -> None:
    """Also after a rebuild, a reload, and a restart; the others go by the node's settings."""
    ids = [world.put(summary=f"m{n}", vector=vector(n, 1)) for n in range(20)]
    wish = NewGeneration("new", WIDE, "old", dtype="f32", m=8)
    models(world).create(ADMIN, wish, False)
    fill(world, ids)
    builds = world.node.maintenance.builds
    builds.settings = replace(builds.settings, graph_min_rows=5)
    world.seal()

    def built() -> dict[int, tuple[str, int, int]]:
        with world.node.store.read() as snapshot:
            graphs = [f for s in snapshot.all_segments() for f in s.files if f.kind == "graph"]
        return {
            f.generation: (f.graph.dtype, f.graph.m, f.graph.ef_construction)
            for f in graphs
            if f.graph is not None
        }

    assert built() == {1: ("i8", 16, 200), 2: ("f32", 8, 200)}
    rebuilds = world.node.rebuilds
    assert rebuilds.start(only_tell=True).progress.segments == 0
    index = world.node.settings.index.model_copy(update={"dtype": "bf16"})
    world.node.apply(world.node.settings.model_copy(update={"index": index}))
    assert rebuilds.start(only_tell=True).progress.segments == 1
    world.merge()
    world.put(summary="one more", vector=vector(1))
    world.merge()
    assert built() == {1: ("bf16", 16, 200), 2: ("f32", 8, 200)}
    assert len(world.ids(vector=wide(1), embedding="new", min_score=-1, top_k=50)) == 20
    make_default(world, force=True)
    world.restart()
    assert models(world).facts()[1].generation.m == 8
    check_replay(world.node, world.folder / "replay")


def test_segments_that_lack_many_late_vectors_hold_the_switch_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [world.put(summary=f"m{n}", vector=vector(n, 1)) for n in range(6)]
    world.seal()
    create(world)
    fill(world, ids)
    monkeypatch.setattr(generation_admin, "CHANGES_MAX", 5)
    assert error_of(lambda: make_default(world)).reason == "SEGMENTS_OUTDATED"
    make_default(world, force=True)


def test_a_node_comes_up_right_after_the_switch_and_tells_what_to_configure(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.put(summary="tea", vector=vector(1))
    create(world)
    make_default(world, least=0, force=True)
    world.restart()
    assert "set them to 'new' and 12" in caplog.text
    configure(world, "new", WIDE)
    caplog.clear()
    world.restart()
    assert "set them to" not in caplog.text


@pytest.mark.parametrize(
    ("name", "dimension", "reason", "told"),
    [
        ("", 9, "DIMENSION_MISMATCH", "index.dimension: the store has vectors of old (8 numbers"),
        ("third", 12, "EMBEDDING_MISMATCH", "index.embedding: the store has vectors of old"),
        ("new", 8, "EMBEDDING_MISMATCH", "index.embedding"),
    ],
)
def test_a_configuration_that_means_no_embedding_of_the_store_does_not_start(
    world: World, name: str, dimension: int, reason: str, told: str
) -> None:
    world.put(summary="tea", vector=vector(1))
    create(world)
    world.close()
    before = dict(world.changes)
    world.changes |= {"index__embedding": name, "index__dimension": dimension}
    error = error_of(world.open)
    assert error.reason == reason
    assert told in error.message
    assert "index.dimension to 8" in error.hint
    world.changes = before
    world.open()


# -- dropping ------------------------------------------------------------------------------


def switched(world: World, memories: int = 30) -> list[str]:
    """A store that has gone over to the new model; the old one is still there."""
    ids = [world.put(summary=f"m{n}", vector=vector(n, 1)) for n in range(memories)]
    world.seal()
    world.write({"update": {"id": ids[0], "summary": "another text"}})
    create(world)
    fill(world, ids)
    make_default(world)
    configure(world, "new", WIDE)
    return ids


def test_what_is_in_use_cannot_be_dropped(world: World) -> None:
    world.put(summary="tea", vector=vector(1))
    create(world)
    assert error_of(lambda: drop(world, "old")).reason == "GENERATION_IS_DEFAULT"
    assert error_of(lambda: drop(world, "other")).reason == "EMBEDDING_UNKNOWN"
    make_default(world, force=True)
    error = error_of(lambda: drop(world, "old"))
    assert error.reason == "CONFIG_OUTDATED"
    assert "index.dimension: 12 and index.embedding: new" in error.hint
    configure(world, "new", WIDE)
    error = error_of(lambda: models(world).drop(ADMIN, "old", "new", False))
    assert error.violations[0].field == "confirm"
    assert models(world).drop(ADMIN, "old", "", True).coverage.vectors == 1
    assert stored(world) == {1}
    drop(world, "old")


def test_what_was_dropped_leaves_records_and_files_and_everything_else_stays(
    world: World,
) -> None:
    switched(world)
    world.seal()
    assert {"rows-1.bin", "rows-2.bin"} <= files(world)
    query = {"vector": wide(1), "min_score": -1, "top_k": 50}
    before = world.ids(**query), world.ids(text="another"), world.all()
    position = world.query(**query)["position"]
    size = world.admin.inspect("", "", False, 0, "")["accounted_bytes"]
    drop(world)
    assert files(world) == {"rows-2.bin", "scan-2.bin"} & files(world)
    assert "rows-2.bin" in files(world)
    assert stored(world) == {2}
    assert (world.ids(**query), world.ids(text="another"), world.all()) == before
    assert world.query(**query, min_position=position)["items"], "positions stay"
    after = world.admin.inspect("", "", False, 0, "")
    assert after["accounted_bytes"] == size - 31 * 32, "also of the version that was replaced"
    assert [f.erasing for f in models(world).facts()] == [False, False]
    for call in (
        lambda: world.query(vector=vector(1), embedding="old"),
        lambda: world.write({"summary": "x"}, embedding="old"),
    ):
        assert error_of(call).reason == "EMBEDDING_UNKNOWN"
    assert after["damaged_files"] == 0
    world.merge()
    world.restart()
    assert (world.ids(**query), world.ids(text="another"), world.all()) == before
    assert world.admin.inspect("", "", True, 0, "")["damaged_found"] == 0
    check_store(world.node)
    check_replay(world.node, world.folder / "replay")


def test_dropped_vectors_are_gone_from_the_database_file_on_the_schedule_of_erasure(
    world: World,
) -> None:
    needle = np.array(vector(0.123456, 0.654321), np.float32).tobytes()
    kept = world.put(summary="tea", vector=vector(0.123456, 0.654321))
    create(world)
    world.write({"vector": {"id": kept, "vector": wide(1)}}, embedding="new")
    make_default(world)
    configure(world, "new", WIDE)
    drop(world)
    facts = world.admin.inspect("", "", False, 0, "")
    assert facts["dirty_since"] == world.clock.now
    world.purge()
    assert needle not in (world.folder / "store" / "data.mdb").read_bytes()
    assert world.ids(vector=wide(1)) == [kept]


def test_a_drop_that_was_cut_off_is_gone_on_with_after_a_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = switched(world)
    world.seal()
    monkeypatch.setattr(generations, "PURGE_BATCH", 7)
    monkeypatch.setattr(dropped_files, "SEGMENTS_AT_ONCE", 1)
    models(world).drop(ADMIN, "old", "old", False)
    assert models(world).facts()[0].erasing
    world.node.writer.run(generations.purge_vectors)
    assert stored(world) == {1, 2}
    world.restart()
    assert models(world).facts()[0].erasing
    assert len(world.ids(vector=wide(1), min_score=-1, top_k=50)) == len(ids)
    for _ in range(4):
        world.node.tick()
    assert stored(world) == {2}
    assert not any("-1." in name for name in files(world))
    assert not models(world).facts()[0].erasing
    check_store(world.node)
    check_replay(world.node, world.folder / "replay")


def test_files_that_a_crash_left_beside_the_manifest_are_removed(world: World) -> None:
    switched(world)
    world.seal()
    (first, *_) = world.folder.glob("segments/*/*/rows-1.bin")
    data = first.read_bytes()
    drop(world)
    first.write_bytes(data)
    first.with_name("rows-1.bin.damaged").write_bytes(data)
    world.restart()
    world.node.tick()
    assert not any("-1." in name for name in files(world))


def test_a_segment_that_was_being_built_when_its_model_was_dropped_lacks_it(
    world: World,
) -> None:
    switched(world)
    builder = world.builders[1]

    def dropping(job: dict[str, Any]) -> None:
        if job["job"] == "build":
            builder.after_job = lambda _job: None
            drop(world)

    for one in world.builders:
        one.after_job = dropping
    world.put(summary="more")
    world.merge()
    # Upkeep had its turn while it was built, and has nothing more to do.
    assert not any("-1." in name for name in files(world))
    assert len(world.ids(vector=wide(1), min_score=-1, top_k=50)) == 30


def test_a_write_that_was_under_way_when_its_model_was_dropped_is_refused(world: World) -> None:
    switched(world)
    gate, release = threading.Event(), threading.Event()

    def hold(_txn: object) -> None:
        gate.set()
        release.wait(10)

    held = world.node.writer.submit(hold, internal=True)
    assert gate.wait(10)
    found: list[str] = []
    models_ = models(world)
    dropping = threading.Thread(target=lambda: models_.drop(ADMIN, "old", "old", False))
    dropping.start()
    while world.node.writer.queued < 1:
        pass
    writing = threading.Thread(
        target=lambda: found.append(
            error_of(
                lambda: world.write({"summary": "x", "vector": vector(1)}, embedding="old")
            ).reason
        )
    )
    writing.start()
    while world.node.writer.queued < 2:
        pass
    release.set()
    held.result()
    for thread in (dropping, writing):
        thread.join(10)
    assert found == ["EMBEDDING_UNKNOWN"]
    world.node.tick()
    assert stored(world) == {2}


def test_a_name_may_be_used_again_and_means_the_new_vectors(world: World) -> None:
    ids = switched(world)
    drop(world)
    models(world).create(ADMIN, NewGeneration("old", 8, ""), False)
    assert [f.generation.number for f in models(world).facts()] == [1, 2, 3]
    assert world.ids(vector=vector(1), embedding="old", min_score=-1) == []
    world.write({"vector": {"id": ids[4], "vector": vector(1)}}, embedding="old")
    assert world.ids(vector=vector(1), embedding="old") == [ids[4]]
    world.merge()
    world.purge()
    assert world.ids(vector=vector(1), embedding="old") == [ids[4]]
    check_store(world.node)
    check_replay(world.node, world.folder / "replay")


def test_late_vectors_of_a_dropped_model_do_not_stop_a_replay(world: World) -> None:
    """Their entries bring nothing any more, and the payloads' hashes cannot be computed."""
    kept = world.put(summary="tea", vector=vector(1))
    bare = world.put(summary="coffee")
    create(world)
    world.write({"vector": {"id": bare, "vector": vector(2)}})
    world.write({"vector": {"id": kept, "vector": vector(0, 1)}})
    for one in (kept, bare):
        world.write({"vector": {"id": one, "vector": wide(1)}}, embedding="new")
    make_default(world)
    configure(world, "new", WIDE)
    drop(world)
    world.forget(ids=[kept], mode="HARD")
    world.clock.turn(30 * DAY)
    world.purge()
    check_store(world.node)
    check_replay(world.node, world.folder / "replay")


def test_a_snapshot_has_both_models_and_restores_before_and_after_a_drop(
    world: World, folder: Path
) -> None:
    ids = switched(world)
    world.seal()
    snapshots = folder / "snapshots"
    take(world.node.store, snapshots / "1", now_ms=world.clock.now)
    assert verify(at(snapshots / "1")).sound
    with world.node.store.read() as snapshot:
        before = snapshot.position
    world.clock.turn(1_000)
    models(world).drop(ADMIN, "old", "old", False)
    take(world.node.store, snapshots / "2", now_ms=world.clock.now)
    assert verify(at(snapshots / "2")).sound, "while it is being erased"
    world.node.tick()
    world.clock.turn(1_000)
    take(world.node.store, snapshots / "3", now_ms=world.clock.now)
    assert verify(at(snapshots / "3")).sound
    for number, wish in enumerate(({"position": before}, {})):
        target = folder / f"restored-{number}"
        restore(FolderPlace(snapshots), target, now_ms=world.clock.now, **wish)
        again = World(target, world.clock, index__embedding="new", index__dimension=WIDE)
        again.node.tick()
        assert len(again.ids(vector=wide(1), min_score=-1, top_k=50)) == len(ids)
        if wish:
            assert len(again.ids(vector=vector(1), embedding="old", min_score=-1, top_k=50)) == 30
        else:
            assert stored(again) == {2}
        check_store(again.node)
        again.close()


def test_a_stored_format_of_two_models_is_refused_by_software_that_knows_one(
    world: World,
) -> None:
    def formats(node: Node) -> int:
        with node.store.env.lmdb.begin() as txn:
            return int.from_bytes(txn.get(b"format", db=node.store.env.tables["meta"]), "big")

    assert formats(world.node) == 1
    create(world)
    assert formats(world.node) == 2
    world.restart()
