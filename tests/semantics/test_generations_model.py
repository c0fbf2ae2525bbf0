"""Random lives of a store with several embedding models, compared with dictionaries.

A sequence is decided by its seed: ``pytest -k 'models-seed-3'`` runs it again.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memsvc.domain.generations import NewGeneration
from memsvc.domain.types import Caller
from memsvc.service.coverage import LackingMemory
from tests.semantics.harness import NS, World, error_of
from tests.semantics.invariants import check_replay, check_store

ADMIN = Caller("operator")
DIMENSIONS = {"a": 8, "b": 12, "c": 8, "d": 4}
STEPS = 120
SHARE = {"write": 30, "late": 30, "update": 8, "forget": 4, "query": 40, "lacking": 6, "seal": 4,
         "merge": 3, "purge": 1, "restart": 2, "create": 3, "default": 3, "drop": 2,
         "tick": 2}  # fmt: skip


@dataclass
class Kept:
    """A memory as the model has it: its text, version, and vectors by model."""

    text: str
    version: int = 1
    vectors: dict[str, np.ndarray] = field(default_factory=dict)


class Run:
    """A store and the dictionaries beside it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.world = World(
            folder,
            random=random.Random(seed).randbytes,
            storage__seal_rows=self.rng.choice((6, 20, 1_000)),
            index__embedding="a",
        )
        self.kept: dict[str, Kept] = {}
        self.serving = ["a"]
        self.default = "a"
        self.texts = 0
        self.steps: list[str] = []

    def go(self) -> None:
        kinds, weights = list(SHARE), list(SHARE.values())
        try:
            for _ in range(STEPS):
                (kind,) = self.rng.choices(kinds, weights)
                self.steps.append(kind)
                getattr(self, f"_{kind}")()
            for name in self.serving:
                self._find(name)
            check_store(self.world.node)
            check_replay(self.world.node, self.world.folder / "replay")
        except Exception as error:
            raise AssertionError(f"{error}; steps {' '.join(self.steps)}") from error
        finally:
            self.world.close()

    # -- what clients do ---------------------------------------------------------------

    def _model(self) -> tuple[str, dict[str, str]]:
        """A model, and how a call names it: the default one also by naming none."""
        name = self.rng.choice(self.serving)
        unnamed = name == self.default and self.rng.random() < 0.5
        return name, {} if unnamed else {"embedding": name}

    def _vector(self, name: str) -> np.ndarray:
        while True:
            numbers = [self.rng.randint(-2, 2) for _ in range(DIMENSIONS[name])]
            if any(numbers):
                return np.array(numbers, np.float32)

    def _text(self) -> str:
        self.texts += 1
        return f"word{self.texts}x common"

    def _one(self) -> str | None:
        return self.rng.choice(list(self.kept)) if self.kept else None

    def _write(self) -> None:
        name, fields = self._model()
        for _ in range(self.rng.choice((1, 1, 5))):
            kept, item = Kept(self._text()), {}
            if self.rng.random() < 0.8:
                kept.vectors[name] = self._vector(name)
                item["vector"] = kept.vectors[name].tolist()
            (result,) = self.world.write({"content": kept.text, **item}, **fields)
            self.kept[result["id"]] = kept

    def _late(self) -> None:
        name, fields = self._model()
        chosen = self._one()
        if chosen is None:
            return
        kept, given = self.kept[chosen], self._vector(name)
        late = {"id": chosen, "vector": given.tolist(), "if_version": kept.version}
        (result,) = self.world.write({"vector": late}, **fields)
        before = kept.vectors.get(name)
        kept.version += before is None or before.tobytes() != given.tobytes()
        kept.vectors[name] = given
        assert result["version"] == kept.version

    def _update(self) -> None:
        name, fields = self._model()
        chosen = self._one()
        if chosen is None:
            return
        kept, item = self.kept[chosen], {}
        if self.rng.random() < 0.6:
            item["content"] = kept.text = self._text()
        draw = self.rng.random()
        if draw < 0.6:
            given = self._vector(name)
            item["vector"] = given.tolist()
            kept.vectors = {**({} if "content" in item else kept.vectors), name: given}
        elif draw < 0.7:
            item["clear_vector"] = True
            kept.vectors = {}
        (result,) = self.world.write({"update": {"id": chosen, **item}}, **fields)
        kept.version = result["version"]

    def _forget(self) -> None:
        chosen = self._one()
        if chosen is not None:
            self.world.forget(ids=[chosen], mode="HARD")
            del self.kept[chosen]

    def _query(self) -> None:
        self._find(self.rng.choice(self.serving))

    def _find(self, name: str) -> None:
        """Every vector of the model, and nothing else, in the order of a plain scan."""
        query = self._vector(name)
        fields: dict[str, Any] = {} if name == self.default else {"embedding": name}
        answer = self.world.query(
            vector=query.tolist(), min_score=-1, top_k=200, include={"vector": True}, **fields
        )
        assert answer["degraded"]["level"] == 0
        wanted = {i: k.vectors[name] for i, k in self.kept.items() if name in k.vectors}
        found = {item["id"]: item for item in answer["items"]}
        assert len(found) == min(200, len(wanted))
        assert found.keys() <= wanted.keys()
        last = 2.0
        for i, item in found.items():
            stored = wanted[i]
            cosine = float(stored @ query / np.linalg.norm(stored) / np.linalg.norm(query))
            assert abs(item["similarity"] - cosine) < 1e-5
            assert item["similarity"] <= last + 1e-6
            assert item["vector"] == stored.tolist()
            last = item["similarity"]
        chosen = self._one()
        if chosen is not None:
            word = self.kept[chosen].text.split()[0]
            assert self.world.ids(text=word, **fields) == [chosen]

    def _lacking(self) -> None:
        name = self.rng.choice(self.serving)
        found: list[LackingMemory] = []
        token = ""
        while True:
            page, token = self.world.admin.generations.lacking("", "", name, 7, token)
            found += page
            if not token:
                break
        wanted = {(k.text, k.version) for k in self.kept.values() if name not in k.vectors}
        assert {(m.content, m.version) for m in found} == wanted
        assert all((m.tenant, m.agent) == NS[:2] for m in found)
        told = {f.generation.embedding: f for f in self.world.admin.generations.facts()
                if not f.generation.dropped}  # fmt: skip
        assert set(told) == set(self.serving)
        coverage = told[name].coverage
        both = sum({name, self.default} <= k.vectors.keys() for k in self.kept.values())
        with_default = sum(self.default in k.vectors for k in self.kept.values())
        assert (coverage.memories, coverage.lacking) == (len(self.kept), len(wanted))
        assert (coverage.both, coverage.of_default) == (both, with_default)

    # -- what operators do -------------------------------------------------------------

    def _create(self) -> None:
        left = sorted(set(DIMENSIONS) - set(self.serving))
        if left:
            name = self.rng.choice(left)
            wish = NewGeneration(name, DIMENSIONS[name])
            self.world.admin.generations.create(ADMIN, wish, False)
            self.serving.append(name)

    def _default(self) -> None:
        name = self.rng.choice(self.serving)
        self.world.admin.generations.make_default(ADMIN, name, 0.0, True, False)
        self.default = name
        self.world.changes |= {"index__embedding": name, "index__dimension": DIMENSIONS[name]}
        settings = self.world.node.settings
        index = settings.index.model_copy(update={"embedding": name, "dimension": DIMENSIONS[name]})
        self.world.node.apply(settings.model_copy(update={"index": index}))

    def _drop(self) -> None:
        others = [name for name in self.serving if name != self.default]
        if not others:
            return
        name = self.rng.choice(others)
        self.world.admin.generations.drop(ADMIN, name, name, False)
        self.serving.remove(name)
        for kept in self.kept.values():
            kept.vectors.pop(name, None)
        error = error_of(lambda: self.world.query(text="common", embedding=name))
        assert error.reason == "EMBEDDING_UNKNOWN"

    def _seal(self) -> None:
        self.world.seal()

    def _merge(self) -> None:
        self.world.merge()

    def _purge(self) -> None:
        self.world.purge()

    def _tick(self) -> None:
        self.world.node.tick()

    def _restart(self) -> None:
        self.world.restart()


@pytest.mark.parametrize("seed", range(8), ids=lambda n: f"models-seed-{n}")
def test_several_models_are_as_dictionaries_say(seed: int, folder: Path) -> None:
    Run(seed, folder).go()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1_000, 1_200), ids=lambda n: f"models-seed-{n}")
def test_several_models_are_as_dictionaries_say_for_long(seed: int, folder: Path) -> None:
    Run(seed, folder).go()
