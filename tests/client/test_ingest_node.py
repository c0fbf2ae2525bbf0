"""Ingestion into a real node: what is stored, grows, is touched and is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from memsvc.client import (
    EmbedderUnavailable,
    ForgetMode,
    HashingEmbedder,
)
from memsvc.client.embedders import EmbeddingMismatch
from memsvc.client.ingest import (
    LAST_SEQ,
    Ingestor,
    IngestReport,
    IngestSettings,
    PieceSize,
    Turn,
    Windowing,
)
from memsvc.client.ingest.sending import MOST_PARTINGS
from tests.client.conversations import conversation
from tests.client.ingesting import (
    EMBEDDER,
    client_of,
    memories,
    missing,
    settled,
)
from tests.scenarios.harness import Node


def test_the_same_data_twice_leaves_the_same_memories(
    node: Node, space: str, tmp_path: Path
) -> None:
    turns = [turn for name in ("s1", "s2", "s3") for turn in conversation(name, 41)]
    with client_of(node) as client:
        with Ingestor(client, space, EMBEDDER, spill=tmp_path / "spill") as ingest:
            ingest.add(*turns)
            first = settled(ingest)
        before = memories(node, space)
        assert not missing(turns, before) and len(before) == first.written and not first.pending
        for name in ("spill", "another"):
            with Ingestor(client, space, EMBEDDER, spill=tmp_path / name) as ingest:
                for turn in turns:
                    ingest.add(turn)
                again = settled(ingest)
            assert again.written == again.grown == 0 and not again.problem
    after = memories(node, space)
    assert [(hit.id, hit.content, hit.version) for hit in after] == [
        (hit.id, hit.content, hit.version) for hit in before
    ]


def test_an_embedder_of_another_model_is_refused_with_a_way_on(node: Node, space: str) -> None:
    with client_of(node) as client:
        ingest = Ingestor(client, space, HashingEmbedder(32), spill=None)
        ingest.add(*conversation("s1", 5))
        with pytest.raises(EmbeddingMismatch, match="memsvc generation create --embedding hash"):
            ingest.flush()
        with pytest.raises(EmbeddingMismatch):
            ingest.close()
    assert not memories(node, space)


def test_what_says_the_same_is_touched_and_not_written(node: Node, space: str) -> None:
    old, new = 1_700_000_000_000, 1_800_000_000_000
    alone = IngestSettings(windows=Windowing(turns=1, stride=1))
    said = Turn("The boiler was serviced in May.", session="s1", seq=0, ts=old, importance=0.4)
    again = replace(said, session="s2", ts=new, importance=0.7)
    other = Turn("The cat is called Mitzi.", session="s1", seq=1, ts=old)
    with (
        client_of(node) as client,
        Ingestor(client, space, EMBEDDER, spill=None, settings=alone) as ingest,
    ):
        ingest.add(said, other, replace(other, session="s3", ts=new))
        report = settled(ingest)
        assert (report.written, report.touched) == (2, 1)  # within one batch
        ingest.add(again)
        report = settled(ingest)
        assert (report.written, report.touched) == (2, 2)  # of an earlier one
    found = {hit.content: hit for hit in memories(node, space)}
    boiler, cat = found[said.text], found[other.text]
    assert (boiler.metadata.ts, boiler.session) == (new, "s1")
    assert boiler.importance_stored == pytest.approx(0.7)
    assert cat.metadata.ts == new


def test_what_was_forgotten_and_is_asked_for_again_is_stored_anew(node: Node, space: str) -> None:
    """A key that a forgotten memory has is taken for ever: what came under it again counted as
    existing, and was nowhere."""
    fact = Turn("The boiler was serviced in May.", session="s1", source="note", anew=True)
    with (
        client_of(node) as client,
        Ingestor(client, space, EMBEDDER, spill=None) as ingest,
    ):
        for number in range(MOST_PARTINGS + 1):
            ingest.add_text(fact)
            ingest.add_text(fact)
            assert settled(ingest).written == number + 1
            (found,) = memories(node, space)
            client.forget(space, ids=[found.id], mode=ForgetMode.HARD)
        ingest.add_text(fact)
        ingest.add_text(replace(fact, anew=False))
        assert settled(ingest).written == MOST_PARTINGS + 1
    assert not memories(node, space)


def test_conversations_of_one_name_that_begin_alike_are_both_stored(node: Node, space: str) -> None:
    """Both are counted from 0 and begin with "Hi": the second was taken for the first."""
    said = [["Hi", "I eat no nuts."], ["Hi", "I fly on Monday."], ["Hi", "I fly on Monday.", "Bye"],
            ["Hi"], ["Hi", "My cat is Mitzi."]]  # fmt: skip
    with client_of(node) as client:
        for texts in said * 2:
            with Ingestor(client, space, EMBEDDER, spill=None) as ingest:
                ingest.add(*(Turn(text, session="s1", seq=n) for n, text in enumerate(texts)))
                assert ingest.flush().pending == 0
    found = {hit.content for hit in memories(node, space)}
    assert found == {"\n".join(said[at]) for at in (0, 2, 4)}


def test_a_window_that_was_written_early_grows(node: Node, space: str) -> None:
    turns = [replace(one, role="user") for one in conversation("s1", 4)]
    turns[1] = replace(turns[1], role="assistant", importance=0.9)
    with client_of(node) as client, Ingestor(client, space, EMBEDDER, spill=None) as ingest:
        for number, turn in enumerate(turns):
            ingest.add(turn)
            report = settled(ingest)
            assert not missing(turns[: number + 1], memories(node, space))
        assert report.grown == 2 and len(memories(node, space)) == 2
        first = min(memories(node, space), key=lambda hit: hit.metadata.seq)
        assert first.metadata.attributes[LAST_SEQ].int_value == 2 and first.version == 3
        assert first.metadata.role == "" and first.importance_stored == pytest.approx(0.9)
        (vector,) = EMBEDDER.embed([first.content])
        hit = client.query(space, vector=vector, top_k=1).items[0]
        assert hit.id == first.id and hit.similarity > 0.999


class Sometimes(HashingEmbedder):
    """An embedder that is away while told so."""

    away = True

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.away:
            raise EmbedderUnavailable("the model is away")
        return super().embed(texts)


def test_without_vectors_words_find_it_and_given_again_it_gets_one(node: Node, space: str) -> None:
    turns = conversation("s1", 9)
    embedder = Sometimes(64)
    with client_of(node) as client, Ingestor(client, space, embedder, spill=None) as ingest:
        ingest.add(*turns)
        report = settled(ingest)
        assert report.written == report.without_vector == 4 and "away" in report.problem
        assert client.query(space, text=turns[0].text).items
        embedder.away = False
        for turn in turns:
            ingest.add(turn)
        assert settled(ingest).existing == 4
        (vector,) = embedder.embed([turns[0].text])
        assert len(client.query(space, vector=vector, top_k=10).items) == 4


def test_a_memory_that_grows_without_a_vector_and_loses_its_own_is_counted(
    node: Node, space: str
) -> None:
    first, second = conversation("s1", 2)
    embedder = Sometimes(64)
    embedder.away = False
    with client_of(node) as client, Ingestor(client, space, embedder, spill=None) as ingest:
        ingest.add(first)
        assert settled(ingest).without_vector == 0
        embedder.away = True
        ingest.add(second)
        report = settled(ingest)
    assert (report.written, report.grown, report.without_vector) == (1, 1, 1)


def test_a_text_is_cut_into_pieces_and_given_twice_is_stored_once(node: Node, space: str) -> None:
    text = "\n\n".join(turn.text for turn in conversation("d", 30))
    with client_of(node) as client, Ingestor(client, space, EMBEDDER, spill=None) as ingest:
        for _ in range(2):
            ingest.add_text(Turn(text, source="handbook.md", role="user"))
            report = settled(ingest)
    found = memories(node, space)
    assert len(found) == report.written and not missing(conversation("d", 30), found)
    assert {hit.metadata.source for hit in found} == {"handbook.md"}
    assert {hit.metadata.seq for hit in found} == set(range(len(found)))
    assert max(len(hit.content) for hit in found) <= 500


def test_notes_that_say_the_same_are_stored_once(node: Node, space: str) -> None:
    with client_of(node) as client, Ingestor(client, space, EMBEDDER, spill=None) as ingest:
        for text in ("Ann likes green tea.", "Ann likes GREEN tea", "Ben likes coffee."):
            ingest.add_text(Turn(text, source="notes"))
            report = settled(ingest)
    assert (report.written, report.touched) == (2, 1)


def test_one_chunk_that_the_service_refuses_does_not_keep_others_back(
    node: Node, space: str
) -> None:
    huge = IngestSettings(pieces=PieceSize(most=100_000))
    texts = [turn.text for turn in conversation("s1", 9)]
    texts[4] = "x" * 70_000  # bytes; a memory has at most 65,536
    with (
        client_of(node) as client,
        Ingestor(client, space, EMBEDDER, spill=None, settings=huge) as ingest,
    ):
        for number, text in enumerate(texts):
            ingest.add_text(Turn(text, source=f"note {number}"))
        report = settled(ingest)
    assert (report.refused, report.written, report.pending) == (1, 8, 0)
    assert "content" in report.refusals[0] and report.refusals[0].startswith("note 4:0:")


def test_callers_of_asyncio_have_the_same(node: Node, space: str, tmp_path: Path) -> None:
    turns = conversation("s1", 20)

    async def run() -> IngestReport:
        with client_of(node) as client:
            async with Ingestor(client, space, EMBEDDER, spill=tmp_path / "spill") as ingest:
                await ingest.aadd(*turns[:10])
                await asyncio.gather(*(ingest.aadd(turn) for turn in turns[10:]))
                await ingest.aadd_text(Turn("A note.", source="notes"))
                await ingest.aend_session("s1")
                return await ingest.aflush()

    report = asyncio.run(run())
    found = memories(node, space)
    assert not report.pending and not missing(turns, found)
    assert any(hit.content == "A note." for hit in found)
