"""Ingestion that is killed again and again, at whatever moment, with the node it writes to."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from memsvc.client.ingest import Ingestor, IngestSettings
from tests.client.conversations import conversation
from tests.client.ingesting import (
    EMBEDDER,
    MODEL,
    client_of,
    ingested_calmly,
    memories,
    missing,
    settled,
    stored,
)
from tests.client.killing import ingesting, taken_until_killed
from tests.scenarios.conftest import MakeNode

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("flushes", [False, True])
def test_forty_kills_of_both_sides_lose_and_double_nothing(
    make_node: MakeNode, space: str, tmp_path: Path, flushes: bool
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201
    draw = random.Random(seed)
    node = make_node(**MODEL).start()
    turns = 300
    for _ in range(40):
        process = ingesting(node, space, tmp_path / "spill", turns, flushes)
        if draw.random() < 0.3:
            time.sleep(draw.uniform(0.2, 1.5))
            node.kill()
            node.start()
        taken_until_killed(process, draw.randint(1, turns))
    process = ingesting(node, space, tmp_path / "spill", turns, flushes)
    assert process.communicate()[0].endswith("done\n") and process.returncode == 0
    assert stored(node, space) == ingested_calmly(node, f"{space}-calm", conversation("s1", turns))


def test_a_minute_without_the_service_is_made_up_for(
    make_node: MakeNode, space: str, tmp_path: Path
) -> None:
    node = make_node(**MODEL).start()
    turns = conversation("s1", 600)
    settings = IngestSettings(pause_s=1.0)
    with (
        client_of(node) as client,
        Ingestor(client, space, EMBEDDER, spill=tmp_path / "spill", settings=settings) as ingest,
    ):
        ingest.add(*turns[:200])
        node.kill()
        for turn in turns[200:400]:
            ingest.add(turn)
            time.sleep(0.3)
        node.start()
        ingest.add(*turns[400:])
        settled(ingest)
    assert not missing(turns, memories(node, space))
    assert stored(node, space) == ingested_calmly(node, f"{space}-calm", turns)
