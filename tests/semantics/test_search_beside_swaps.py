"""Queries with all their helpers while tails are sealed, segments merged and memories become cold:
what was acknowledged is found, whole, once, and in every way."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from memsvc.service import derived, node
from memsvc.service.search import beside, parts
from tests.semantics.harness import DIMENSION, HOUR, World
from tests.switching import switching_every

MakeWorld = Callable[..., World]
BATCH = 30


class Asking:
    """Two threads that ask for memories which are there, until told to stop."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.there: dict[str, tuple[list[float], str]] = {}
        self.lock = threading.Lock()
        self.failures: list[Any] = []
        self.asked = 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(seed,)) for seed in range(2)]

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, seed: int) -> None:
        draw = random.Random(seed)
        try:
            while not self._stop.is_set() and not self.failures:
                with self.lock:
                    if not self.there:
                        continue
                    wanted, (vector, word) = draw.choice(list(self.there.items()))
                self._look(wanted, vector, word, draw.randrange(4))
                self.asked += 1
        except BaseException as error:
            self.failures.append(error)
            raise

    def _look(self, wanted: str, vector: list[float], word: str, kind: int) -> None:
        fields: dict[str, Any] = [
            {"vector": vector},
            {"text": word},
            {"vector": vector, "text": word},
            {"vector": vector, "filters": {"topic": f"t{word[-1]}"}},
        ][kind]
        answer = self.world.query(top_k=10, **fields)
        found = [item["id"] for item in answer["items"]]
        assert answer["degraded"]["level"] == 0, answer["degraded"]
        assert len(set(found)) == len(found), "a memory came twice"
        with self.lock:
            still = wanted in self.there
        assert wanted in found or not still, (fields, found)


def live(world: World, rounds: int) -> tuple[int, int]:
    """How often was asked, and how often a helper brought something."""
    rng, draw = np.random.default_rng(1), random.Random(5)
    helped = 0
    result = beside.Beside.result

    def counted(self: beside.Beside, job: Any) -> Any:
        nonlocal helped
        helped += 1
        return result(self, job)

    with pytest.MonkeyPatch.context() as patched, Asking(world) as asking:
        patched.setattr(beside.Beside, "result", counted)
        with switching_every(1e-4):
            for number in range(rounds):
                if asking.failures:
                    break
                vectors = rng.standard_normal((BATCH, DIMENSION)).tolist()
                words = [f"word{number * BATCH + i}" for i in range(BATCH)]
                results = world.write(
                    *(
                        {"content": word, "vector": vector, "metadata": {"topic": f"t{word[-1]}"}}
                        for word, vector in zip(words, vectors, strict=True)
                    )
                )
                with asking.lock:
                    for written, vector, word in zip(results, vectors, words, strict=True):
                        asking.there[written["id"]] = (vector, word)
                world.clock.turn(HOUR)
                if number % 3 == 0:
                    with asking.lock:
                        gone = draw.sample(list(asking.there), 5)
                        for id_text in gone:
                            del asking.there[id_text]
                    world.forget(ids=gone, mode="HARD")
                if number % 4 == 3:
                    world.seal()
                elif number % 13 == 12:
                    world.merge()
                elif number % 39 == 38:
                    world.purge()
    assert not asking.failures
    return asking.asked, helped


@pytest.fixture
def graphs_and_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of fifty vectors, and nothing too small to be begun beside."""
    monkeypatch.setattr(
        node, "index_settings", lambda s: replace(derived.index_settings(s), graph_min_rows=50)
    )
    monkeypatch.setattr(beside, "LEAST", 1)
    monkeypatch.setattr(parts, "BLOCK_ROWS", 32)


@pytest.mark.usefixtures("graphs_and_helpers")
def test_what_is_there_is_found_while_segments_come_and_go(make_world: MakeWorld) -> None:
    world = make_world(storage__seal_rows=100, query__min_score=-1.0)
    asked, _ = live(world, 15)
    assert asked > 0


@pytest.mark.soak
@pytest.mark.usefixtures("graphs_and_helpers")
@pytest.mark.parametrize("cache", [False, True])
def test_what_is_there_is_found_through_a_long_life_of_segments(
    make_world: MakeWorld, cache: bool
) -> None:
    world = make_world(
        storage__seal_rows=200,
        query__min_score=-1.0,
        query__cache=cache,
        lifecycle__cold_archive_after_days=1,
    )
    asked, helped = live(world, 200)
    assert asked > 500 and helped > 0
