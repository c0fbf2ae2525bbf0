"""Damaged segment files: right answers from what is left, marked, and built anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memsvc.domain.recovery import GOOD_CHECKS
from memsvc.segments.errors import Damage
from memsvc.service.builder import BuilderFailed
from memsvc.service.search import vector
from tests.semantics.harness import World

WORDS = "alpha bravo charlie delta echo foxtrot golf hotel india juliet".split()  # noqa: SIM905
KINDS = ("rows", "postings", "columns", "graph")
ROWS = 200


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    _write(path, bytes(data))


def _truncate(path: Path) -> None:
    _write(path, path.read_bytes()[:-100])


def _write(path: Path, data: bytes) -> None:
    # In place of the old name: a file that is mapped must not shrink under its reader.
    fresh = path.with_suffix(".fresh")
    fresh.write_bytes(data)
    fresh.replace(path)


def _delete(path: Path) -> None:
    path.unlink()


HARMS: dict[str, Callable[[Path], None]] = {"flip": _flip, "truncate": _truncate, "delete": _delete}


class _Hurt:
    """A store with one sealed segment of every kind of file, late vectors and a tail."""

    def __init__(self, world: World, *, graph: bool) -> None:
        self.world = world
        if graph:
            settings = world.node.maintenance.settings
            world.node.maintenance.settings = replace(settings, graph_min_rows=50)
        rng = np.random.default_rng(3)
        self.vectors = rng.standard_normal((ROWS + 20, 8)).astype(np.float32)
        self.ids: list[str] = []
        for number in range(ROWS + 20):
            if number == ROWS:
                world.seal()
            self.ids.append(
                world.put(
                    summary=f"{WORDS[number % 10]} filler",
                    vector=None if number % 10 == 9 else self.vectors[number].tolist(),
                    metadata={
                        "topic": f"t{number % 3}",
                        "attributes": {"city": f"c{number % 4}", "free": number % 5},
                    },
                )
            )
        for number in range(9, ROWS, 20):  # late vectors of sealed rows
            late = {"id": self.ids[number], "vector": self.vectors[number].tolist()}
            world.write({"vector": late})
        self.has = np.array([n % 10 != 9 or (n < ROWS and n % 20 == 9) for n in range(ROWS + 20)])
        self.queries = rng.standard_normal((3, 8)).astype(np.float32)

    def files(self, kind: str) -> list[Path]:
        (segment,) = self.world.segments()
        folder = self.world.folder / "segments" / "00000001" / segment["name"]
        return [folder / name for name in segment["files"] if name.startswith(kind)]

    def hold_repairs(self) -> None:
        """Builders refuse, so that the damage lasts as long as the test looks at it."""

        def refuse(_job: dict[str, Any]) -> None:
            raise BuilderFailed("held by the test")

        for builder in self.world.builders:
            builder.before_job = refuse

    def nearest(self, query: np.ndarray, mask: np.ndarray) -> list[str]:
        unit = self.vectors / np.linalg.norm(self.vectors, axis=1, keepdims=True)
        sims = unit @ (query / np.linalg.norm(query))
        order = np.argsort(-np.where(mask & self.has, sims, -9.0), kind="stable")
        return [self.ids[i] for i in order[:10]]

    def check_vectors(self) -> set[int]:
        """Searches by meaning are right; returns the levels they were marked with."""
        everything = np.ones(ROWS + 20, np.bool_)
        numbers = np.arange(ROWS + 20)
        levels = set()
        for query in self.queries:
            for filters, mask in (
                (None, everything),
                ({"topic": "t1"}, numbers % 3 == 1),
                ({"attributes.city": "c2"}, numbers % 4 == 2),
                ({"attributes.free": 3}, numbers % 5 == 3),
            ):
                fields = {"vector": query.tolist(), "top_k": 10, "min_score": -1.0}
                answer = self.world.query(**fields, filters=filters)
                found = [h["id"] for h in answer["items"]]
                assert found == self.nearest(query, mask)
                levels.add(answer["degraded"]["level"])
        return levels

    def check_words(self) -> set[int]:
        """Searches by words; returns the levels they were marked with."""
        answer = self.world.query(text="echo", top_k=200)
        wanted = {i for n, i in enumerate(self.ids) if n % 10 == 4}
        found = {h["id"] for h in answer["items"]}
        level: int = answer["degraded"]["level"]
        assert found == wanted if level == 0 else found < wanted
        assert found >= {i for i in wanted if self.ids.index(i) >= ROWS}
        return {level}

    def check_records(self) -> None:
        """What needs no segment file is whole in any case."""
        assert self.world.ids(ids=self.ids) == self.ids
        assert len(self.world.all(filters={"topic": "t1"})) == 73
        assert self.world.all()[:20] == self.ids[::-1][:20]
        erased = self.world.forget(filters={"attributes.free": 3}, mode="HARD", validate_only=True)
        assert erased["matched"] == 44


@pytest.fixture
def hurt(make_world: Callable[..., World]) -> _Hurt:
    return _Hurt(make_world(storage__seal_rows=100_000), graph=True)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", ["before opening", "while open"])
def test_answers_stay_right_and_are_marked_and_the_file_is_built_anew(
    hurt: _Hurt, kind: str, harm: str, when: str
) -> None:
    world = hurt.world
    paths = hurt.files(kind)
    assert paths
    if when == "while open":
        assert hurt.check_vectors() == hurt.check_words() == {0}
    for path in paths:
        HARMS[harm](path)
    if when == "before opening":
        world.restart()
    hurt.hold_repairs()
    if when == "while open":
        world.admin.inspect("", "", True, 0, "")  # verify: reads every file whole
    levels = hurt.check_vectors() | hurt.check_words()
    hurt.check_records()
    if kind in ("rows", "graph", "postings"):
        assert 3 in levels, "the loss was not told"
    assert world.node.maintenance.damaged_files == len(paths)
    world.node.checkup.check()
    assert world.memory.health()["degraded"]["level"] == 3
    aside = [p.with_name(p.name + ".damaged") for p in paths]
    assert [p.exists() for p in paths] == [False] * len(paths)
    assert [p.exists() for p in aside] == [harm != "delete"] * len(paths)
    _repaired(world)
    assert hurt.check_vectors() == hurt.check_words() == {0}
    hurt.check_records()
    assert len(world.segments()) == 1
    for _ in range(GOOD_CHECKS):
        world.node.checkup.check()
    assert world.memory.health()["degraded"]["level"] == 0


def _repaired(world: World) -> None:
    """Lets the builders work again, and waits until they are done."""
    for builder in world.builders:
        builder.before_job = lambda _job: None
    assert world.node.maintenance.wait_idle(60)
    assert world.node.maintenance.damaged_files == 0


@pytest.mark.parametrize("when", ["before opening", "while open"])
def test_a_segment_whose_every_file_is_gone_is_answered_from_the_records(
    hurt: _Hurt, when: str
) -> None:
    world = hurt.world
    if when == "while open":
        hurt.check_vectors()
    for kind in KINDS:
        for path in hurt.files(kind):
            path.unlink()
    if when == "before opening":
        world.restart()
    hurt.hold_repairs()
    if when == "while open":
        world.admin.inspect("", "", True, 0, "")
    assert hurt.check_vectors() == {3}
    assert hurt.check_words() == {3}
    hurt.check_records()
    _repaired(world)
    assert hurt.check_vectors() == hurt.check_words() == {0}


def test_similarities_of_keyword_hits_are_true_also_without_vector_files(hurt: _Hurt) -> None:
    world = hurt.world
    (path,) = hurt.files("rows")
    path.unlink()
    world.restart()
    hurt.hold_repairs()
    query = hurt.queries[0]
    unit = query / np.linalg.norm(query)
    for fields in ({}, {"mode": "KEYWORD"}):
        hits = world.query(vector=query.tolist(), text="echo", top_k=200, **fields)["items"]
        assert len(hits) >= 22
        assert len({h["id"] for h in hits}) == len(hits)
        for hit in hits:
            mine = hurt.vectors[hurt.ids.index(hit["id"])]
            cosine = float(mine @ unit / np.linalg.norm(mine))
            assert hit["similarity"] == pytest.approx(cosine, abs=1e-5)


def test_what_is_left_of_a_replaced_segment_does_not_mark_the_node(hurt: _Hurt) -> None:
    world = hurt.world
    with world.node.store.read() as snapshot:
        (old,) = snapshot.segments(1)
    world.put(summary="one more")
    world.merge()
    assert old.name not in str(world.segments())
    world.node.maintenance.on_damage(old, (Damage(old.files[0], "missing"),))
    assert world.node.maintenance.damaged_files == 0
    world.node.checkup.check()
    assert world.memory.health()["degraded"]["level"] == 0


def test_vectors_that_cannot_be_read_in_time_give_way_to_words(
    hurt: _Hurt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records have the vectors, but reading them would take longer than a query may."""
    world = hurt.world
    for path in hurt.files("rows"):
        path.unlink()
    world.restart()
    hurt.hold_repairs()
    monkeypatch.setattr(vector, "RECORD_US", 1e12)
    query = hurt.queries[0].tolist()
    alone = world.query(vector=query, min_score=0.999)  # none of the tail
    assert alone["degraded"] == {"level": 3, "reason": "NO_QUERY_TEXT"}
    assert alone["items"] == []
    for mode in ("VECTOR", "AUTO", "HYBRID"):
        found = world.query(vector=query, text="echo", mode=mode)
        assert found["degraded"] == {"level": 3, "reason": "SEGMENT_DAMAGED"}
        assert found["items"], mode
    assert world.query(vector=query, text="echo", mode="VECTOR")["mode"] == "KEYWORD"
    # What is not in the segment is found by its vector all the same.
    kept = world.put(summary="new", vector=query)
    alone = world.query(vector=query, min_score=0.999)
    assert alone["degraded"] == {"level": 3, "reason": "SEGMENT_DAMAGED"}
    assert [item["id"] for item in alone["items"]] == [kept]
