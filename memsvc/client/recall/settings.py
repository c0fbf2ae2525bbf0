"""What can be set of a recall."""

from __future__ import annotations

from dataclasses import dataclass, field

from memsvc.client.recall.context import HANDLE_CHARACTERS
from memsvc.domain.scoring import TOKEN_OVERHEAD
from memsvc.domain.types import RankOptions


@dataclass(frozen=True, slots=True)
class RecallSettings:
    """Bounds and weights of a recall. Times in seconds."""

    candidates: int = 40
    """Memories to ask the service for, 1 to its query.max_top_k (200)."""
    min_score: float | None = None
    """Least cosine similarity of a candidate that was found by meaning; None = what the embedder
    states."""
    rank: RankOptions = field(default_factory=RankOptions)
    """Weights of similarity, importance and freshness, half-life, how many to keep, how many of a
    topic, and the token budget."""
    neighbours: float = 0.08
    """Share of the relevance of a candidate that its neighbour in the conversation gains, 0 to 1.
    Chosen on half of the conversations of the benchmark, between 0.05 and 0.125, which do as
    well (docs/benchmarks.md)."""
    item_overhead: int = TOKEN_OVERHEAD
    """Tokens counted for each item beside its summary. An item whose line takes more than that
    counts as what its line takes."""
    history_turns: int = 3
    """User turns that are joined with an input too short to carry intent. 0 = none."""
    recent_turns: int = 20
    """Turns of a session that are kept for immediate references. 0 = none."""
    recent_seconds: float = 1_800.0
    """How long they are kept."""
    recent_items: int = 4
    """Most of them that are put into one context."""
    handle_characters: int = HANDLE_CHARACTERS
    """Of handles, at least, 4 to 32. Where conversations outlive the process, and handles in them
    come back, 8 keep an old one from meaning another memory."""
    originals: int = 256
    """Full texts that are kept. 0 = none."""
    originals_seconds: float = 60.0
    """How long they are kept."""
    count_used: bool = True
    """Whether memories that were put into a context are touched as USED, which restarts their
    decay. It is done in the background, after the answer."""

    def __post_init__(self) -> None:
        """ValueError names what is out of bounds."""
        for name in ("history_turns", "recent_turns", "recent_items", "originals"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: expected 0 or more, not {getattr(self, name)}")
        if not 1 <= self.candidates <= 200:
            raise ValueError(f"candidates: expected 1 to 200, not {self.candidates}")
        if not 4 <= self.handle_characters <= 32:
            raise ValueError(f"handle_characters: expected 4 to 32, not {self.handle_characters}")
        if not 0 <= self.neighbours <= 1:
            raise ValueError(f"neighbours: expected 0 to 1, not {self.neighbours}")
        if self.rank.keep < 1 or self.rank.max_per_topic < 0 or self.rank.token_budget < 0:
            raise ValueError("rank: expected keep of 1 or more, and no negative bounds")
