"""Kept answers: whatever happens to a store, they are those that a search would give.

The searcher beside a node searches the same store and keeps nothing, so the two must agree to
the byte, positions and importances included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from memsvc.domain.errors import MemsvcError
from memsvc.domain.types import Mode, RankOptions
from memsvc.service.api import Control
from memsvc.service.derived import search_settings
from memsvc.service.node import Node
from memsvc.service.querying import QueryService
from memsvc.service.recalls import RecallBuffer
from memsvc.service.search.costs import CostBook
from memsvc.service.search.searcher import Searcher
from tests.semantics.generate import Generator
from tests.semantics.harness import DAY, HOUR, READER, REVIEWER, World
from tests.semantics.kept_answers import CACHE, hits_and_misses, told

MakeWorld = Callable[..., World]


class Beside:
    """Answers from the store of a node without keeping any."""

    def __init__(self, node: Node) -> None:
        settings = replace(search_settings(node.settings), cache=None)
        self.searcher = Searcher(node.views, settings, CostBook(node.costs))
        self.recalls = RecallBuffer()
        self.service = QueryService(
            node.store,
            self.searcher,
            node.generations,
            node.degradation,
            self.recalls,
            node.progress,
            node.memory.settings,
            clock=node.clock,
            own_log_wait_s=lambda: 0.0,
        )


class Life:
    """Random changes of a store, and questions that come again and again."""

    def __init__(self, seed: int, world: World) -> None:
        self.draw = Generator(seed)
        self.world = world
        self.beside = Beside(world.node)
        questions = [self.draw.query(world.clock.now) for _ in range(12)]
        ranks = (None, None, RankOptions(), RankOptions(0.0, 0.5, 0.5, HOUR, 1, 40, 4))
        self.questions = [
            q if q.mode is Mode.BROWSE or q.ids else replace(q, rank=self.draw.rng.choice(ranks))
            for q in questions
        ]

        self.write()

    def write(self) -> None:
        """Something that is accepted; many of what is drawn names ids that are not there."""
        for _ in range(50):
            request = self.draw.write(self.world.clock.now)
            try:
                answer = self.world.node.memory.write(REVIEWER, request, Control())
            except MemsvcError:
                continue
            self.draw.ids += [r.id for r in answer.results]
            return

    def change(self) -> None:
        node, clock, rng = self.world.node, self.world.clock, self.draw.rng
        kinds = {"write": 8, "forget": 3, "turn": 8, "sweep": 4, "flush": 2, "seal": 1, "merge": 1,
                 "purge": 1}  # fmt: skip
        (kind,) = rng.choices(list(kinds), list(kinds.values()))
        if kind == "write":
            self.write()
        elif kind == "forget":
            try:
                node.memory.forget(REVIEWER, self.draw.forget(clock.now), Control())
            except MemsvcError:
                return
        elif kind == "turn":
            clock.turn(rng.choice((1, 1_000, 1_000, HOUR, 7 * HOUR, DAY)))
        elif kind == "sweep":
            node.sweep()
        elif kind == "flush":
            node.upkeep.flush_recalls()
        else:
            getattr(self.world, kind)()

    def ask(self) -> None:
        asked = self.draw.rng.sample(self.questions, 4)
        for number, request in enumerate((*asked, *asked)):
            if number == len(asked):
                self.world.clock.turn(self.draw.rng.choice((0, 1, 1_000, HOUR)))
            caller = REVIEWER if self.draw.chance(0.5) else READER
            kept = told(self.world.node.memory, caller, request)
            assert kept == told(self.beside.service, caller, request), request
        # What was selected counts, whether it was searched for or kept.
        mine = self.world.node.recalls
        with mine._lock, self.beside.recalls._lock:
            assert mine._pending == self.beside.recalls._pending

    def go(self, steps: int) -> None:
        try:
            for _ in range(steps):
                self.change()
                if not self.world.node.recalls._pending:
                    self.beside.recalls.take()  # they were flushed
                self.ask()
        finally:
            self.beside.searcher.close()


@pytest.mark.parametrize("seed", range(6), ids=lambda n: f"seed-{n}")
def test_a_kept_answer_is_the_one_that_a_search_gives(seed: int, make_world: MakeWorld) -> None:
    world = make_world(storage__seal_rows=10, **CACHE)
    Life(seed, world).go(40)
    hits, misses = hits_and_misses(world.node)
    assert hits > 20 and misses > 20, "the questions came too rarely, or never again"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 160), ids=lambda n: f"seed-{n}")
def test_kept_answers_of_a_long_life(seed: int, make_world: MakeWorld) -> None:
    Life(seed, make_world(storage__seal_rows=10, **CACHE)).go(200)
