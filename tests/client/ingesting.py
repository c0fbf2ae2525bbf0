"""What tests of ingestion share."""

from __future__ import annotations

from collections.abc import Sequence

from memsvc.client import (
    HashingEmbedder,
    Include,
    MemoryClient,
)
from memsvc.client.ingest import Ingestor, IngestReport, Turn
from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios.harness import Node
from tests.waiting import until

EMBEDDER = HashingEmbedder(64)
MODEL = {"index__dimension": 64, "index__embedding": EMBEDDER.name}


def client_of(node: Node) -> MemoryClient:
    return MemoryClient(f"{node.host}:{node.port}")


def memories(node: Node, space: str) -> list[pb.Hit]:
    with client_of(node) as client:
        return list(client.browse(space, include=Include(content=True), page_size=200))


def missing(turns: Sequence[Turn], found: Sequence[pb.Hit]) -> list[Turn]:
    return [turn for turn in turns if not any(turn.text in hit.content for hit in found)]


def stored(node: Node, space: str) -> set[str]:
    found = [hit.content for hit in memories(node, space)]
    assert len(set(found)) == len(found)
    return set(found)


def settled(ingest: Ingestor) -> IngestReport:
    """Once nothing waits any more, however slow the machine is."""
    until(lambda: not ingest.flush().pending, 120, lambda: str(ingest.report()))
    return ingest.report()


def ingested_calmly(node: Node, space: str, turns: Sequence[Turn]) -> set[str]:
    """What is stored of turns by an ingestion that nothing happens to."""
    with client_of(node) as client, Ingestor(client, space, EMBEDDER, spill=None) as ingest:
        ingest.add(*turns)
        settled(ingest)
    return stored(node, space)
