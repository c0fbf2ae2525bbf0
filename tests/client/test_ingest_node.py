"""Ingestion into a real node: nothing missing, nothing doubled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from memsvc.client import HashingEmbedder, Include, MemoryClient
from memsvc.client.embedders import EmbeddingMismatch
from memsvc.client.ingest import Ingestor, Turn
from memsvc.v1 import memory_service_pb2 as pb
from tests.client.conversations import conversation
from tests.scenarios.conftest import MakeNode
from tests.scenarios.harness import Node

SPACE = "acme/bot"
EMBEDDER = HashingEmbedder(64)


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node(index__dimension=64, index__embedding=EMBEDDER.name).start()


def client_of(node: Node) -> MemoryClient:
    return MemoryClient(f"{node.host}:{node.port}")


def memories(node: Node) -> list[pb.Hit]:
    with client_of(node) as client:
        return list(client.browse(SPACE, include=Include(content=True), page_size=200))


def missing(turns: Sequence[Turn], found: Sequence[pb.Hit]) -> list[Turn]:
    return [turn for turn in turns if not any(turn.text in hit.content for hit in found)]


def test_the_same_data_twice_leaves_the_same_memories(node: Node, tmp_path: Path) -> None:
    turns = [turn for name in ("s1", "s2", "s3") for turn in conversation(name, 41)]
    with client_of(node) as client:
        with Ingestor(client, SPACE, EMBEDDER, spill=tmp_path / "spill") as ingest:
            ingest.add(*turns)
            first = ingest.flush()
        before = memories(node)
        assert not missing(turns, before) and len(before) == first.written and not first.pending
        for name in ("spill", "another"):
            with Ingestor(client, SPACE, EMBEDDER, spill=tmp_path / name) as ingest:
                for turn in turns:
                    ingest.add(turn)
                again = ingest.flush()
            assert again.written == again.grown == 0 and not again.problem
    after = memories(node)
    assert [(hit.id, hit.content, hit.version) for hit in after] == [
        (hit.id, hit.content, hit.version) for hit in before
    ]


def test_an_embedder_of_another_model_is_refused_with_a_way_on(node: Node) -> None:
    with client_of(node) as client:
        ingest = Ingestor(client, SPACE, HashingEmbedder(32), spill=None)
        ingest.add(*conversation("s1", 5))
        with pytest.raises(EmbeddingMismatch, match="memsvc generation create --embedding hash"):
            ingest.flush()
        with pytest.raises(EmbeddingMismatch):
            ingest.close()
    assert not memories(node)
