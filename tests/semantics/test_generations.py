"""Changing the embedding model: two side by side, filled, switched; nothing mixed up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from memsvc.domain.errors import Code
from memsvc.domain.generations import NewGeneration
from memsvc.service import coverage, generation_admin
from tests.semantics.embeddings import (
    ADMIN,
    WIDE,
    configure,
    create,
    files,
    fill,
    make_default,
    models,
    pages,
    wide,
)
from tests.semantics.harness import HOUR, World, error_of, vector
from tests.semantics.invariants import check_replay, check_store

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
