"""Vectors to measure with: clustered ones of any number, and those of real conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.text.corpus import DATA_SETS, embed
from memsvc.v1 import memory_service_pb2 as pb

Floats = NDArray[np.float32]

CLUSTERS: Final = 200
WINDOWS: Final = (1, 2, 3, 4)
SUMMARY_CHARS: Final = 120
CONTENT_CHARS: Final = 800
_DIRECTIONS: Final = 128


class Clustered:
    """200 centres and noise in 128 directions of falling strength, plus a little in all, unit
    length: about as hard for a graph as sentence vectors, and said with each figure. The same
    recipe as in benchmarks.segments."""

    def __init__(self, dimension: int) -> None:
        shape = np.random.default_rng(7)
        self._scale = (1 / np.sqrt(1 + np.arange(_DIRECTIONS))).astype(np.float32)
        self._directions = shape.standard_normal((_DIRECTIONS, dimension), dtype=np.float32)
        self._centres = (
            shape.standard_normal((CLUSTERS, _DIRECTIONS), dtype=np.float32) * self._scale
        )
        self.dimension = dimension

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
        """Vectors float32 (count, dimension) and the cluster of each."""
        out = np.empty((count, self.dimension), np.float32)
        labels = rng.integers(0, CLUSTERS, count)
        for low in range(0, count, 5_000):
            n = min(5_000, count - low)
            noise = rng.standard_normal((n, _DIRECTIONS), dtype=np.float32)
            inner = self._centres[labels[low : low + n]] + 0.6 * noise * self._scale
            rest = rng.standard_normal((n, self.dimension), dtype=np.float32)
            rows = inner @ self._directions + 0.3 * rest
            out[low : low + n] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return out, labels


@dataclass(frozen=True)
class Dataset:
    """Unit vectors with queries like them. The last ``tail`` rows stay outside segments.

    ``labels``: the cluster of each row, empty for real texts; ``shares``: a number in [0, 1)
    for each row, for filters of any selectivity that know nothing of the vectors.
    """

    name: str
    vectors: Floats
    queries: Floats
    tail: int = 0
    labels: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    shares: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return int(self.vectors.shape[1])


def clustered(rows: int, dimension: int, queries: int, tail: int = 0) -> Dataset:
    """``rows`` sealed ones and ``tail`` after them."""
    source = Clustered(dimension)
    vectors, labels = source.draw(rows + tail, np.random.default_rng(1))
    asked, _ = source.draw(queries, np.random.default_rng(2))
    shares = np.random.default_rng(3).random(rows + tail)
    name = f"clustered-{rows}-{tail}x{dimension}"
    return Dataset(name, vectors, asked, tail, labels, shares)


def conversations(root: Path) -> Dataset:
    """Windows of one to four turns of both data sets, asked by their questions.

    Windows overlap, so many neighbours differ by a sentence only. Raises FileNotFoundError.
    """
    texts = [text for name in DATA_SETS for text in _windows(root / name / "turns.jsonl")]
    questions = [
        str(line["question"])
        for name in DATA_SETS
        for line in _lines(root / name / "questions.jsonl")
    ]
    vectors = embed(texts)
    return Dataset(f"conversations-{len(texts)}x{vectors.shape[1]}", vectors, embed(questions))


def _windows(path: Path) -> Iterator[str]:
    runs: dict[object, list[str]] = {}
    for turn in _lines(path):
        if "speaker" in turn:
            key: object = (turn["conversation"], turn["session"])
            said = [f"{turn['speaker']}: {turn['text']}"]
        else:
            key = (turn["user"], str(turn["id"]).partition("#")[0])
            said = [str(turn["user_said"]), str(turn["agent_said"])]
        runs.setdefault(key, []).extend(said)
    for said in runs.values():
        for size in WINDOWS:
            for start in range(len(said) - size + 1):
                yield "\n".join(said[start : start + size])


def _lines(path: Path) -> Iterator[dict[str, object]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


class Texts:
    """Made-up text of 5,000 words with the frequencies of language."""

    def __init__(self, seed: int = 5) -> None:
        rng = np.random.default_rng(seed)
        letters = np.array(list("etaoinshrdlucmfw"))
        words = ["".join(rng.choice(letters, n)) for n in rng.integers(3, 10, 5_000)]
        weights = 1 / (10 + np.arange(5_000))
        chosen = rng.choice(5_000, 100_000, p=weights / weights.sum())
        self._text = " ".join(words[i] for i in chosen)

    def cut(self, chars: int, number: int) -> str:
        """Some text of exactly this length; another one for another number."""
        start = number * 7_919 % (len(self._text) - chars)
        return self._text[start : start + chars]


def write_item(
    texts: Texts,
    row: int,
    vector: Floats,
    *,
    cluster: int | None = None,
    share: float | None = None,
    marker: str = "",
    dedup_key: str = "",
) -> pb.WriteItem:
    """A memory of a 120-character summary (beginning with ``marker``) and an 800-character
    content. ``seq`` is the row, by which hits are recognised."""
    memory = pb.Memory(
        dedup_key=dedup_key,
        summary=(marker + texts.cut(SUMMARY_CHARS, row))[:SUMMARY_CHARS],
        content=texts.cut(CONTENT_CHARS, row + 1),
    )
    memory.vector.data = np.ascontiguousarray(vector, "<f4").tobytes()
    memory.metadata.seq = row
    memory.metadata.role = "user" if row % 2 else "assistant"
    memory.metadata.source = "bench"
    if cluster is not None:
        memory.metadata.attributes["cluster"].int_value = cluster
    if share is not None:
        memory.metadata.attributes["share"].double_value = share
    return pb.WriteItem(memory=memory)
