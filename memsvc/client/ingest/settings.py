"""How ingestion works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from memsvc.client.embedders import BATCH
from memsvc.client.ingest.chunking import DEFAULT_SIZE, PieceSize
from memsvc.client.ingest.summaries import SUMMARY_CHARACTERS
from memsvc.domain.limits import MAX_VECTORS

DUPLICATE_SIMILARITY: Final = 0.95


@dataclass(frozen=True, slots=True)
class Windowing:
    """Which turns of a conversation a chunk holds. A turn alone is often not to be understood
    ("Yes, last Tuesday"), so a chunk is a window of neighbouring turns, and windows overlap.

    Windows lie at fixed places of the count of turns: number b covers the turns with seq from
    b * stride up to b * stride + turns - 1. So it does not matter where ingestion begins or is
    broken off.
    """

    turns: int = 3
    """Turns in a window, 1 to 20."""
    stride: int = 2
    """Turns from the beginning of one window to that of the next, 1 to ``turns``."""
    most: int = 700
    """Characters of a window: room for three turns of a conversation. With 500 six windows of a
    hundred are parted, and three of a hundred pieces of evidence fewer are found. One that would
    be longer is parted between turns; a turn that is longer itself is cut into pieces and stands
    alone."""
    labels: bool = True
    """Whether the speaker (else the role) stands before each turn: "Ann: ..."."""

    def __post_init__(self) -> None:
        if not 1 <= self.turns <= 20:
            raise ValueError(f"turns: expected 1 to 20, not {self.turns}")
        if not 1 <= self.stride <= self.turns:
            raise ValueError(f"stride: expected 1 to turns ({self.turns}), not {self.stride}")
        if not 100 <= self.most <= 8_000:
            raise ValueError(f"most: expected 100 to 8,000 characters, not {self.most}")


@dataclass(frozen=True, slots=True)
class IngestSettings:
    """All of it; the defaults suit conversations."""

    windows: Windowing = Windowing()
    pieces: PieceSize = DEFAULT_SIZE
    """Of texts that are no conversation, and of long turns."""
    summary_characters: int = SUMMARY_CHARACTERS
    """Most characters of a summary, 40 to 2,000, without its day."""
    days: bool = True
    """Whether a summary begins with a line that tells the day ("7 May 2023", "2023年5月7日"):
    people ask what was said in May, and words are looked for in summaries. Vectors are of the
    text alone, so that what is said again on another day is still noticed."""
    time_zone: str = "UTC"
    """Where these days begin, by the name in the time zone database ("Europe/Paris")."""
    duplicate_similarity: float = DUPLICATE_SIMILARITY
    """Cosine similarity from which two chunks say the same: the one there is is touched. Distinct
    facts lie below 0.9. Above 1 = never."""
    embed_batch: int = BATCH
    """Texts given to the embedder at once."""
    write_batch: int = 48
    """Chunks that are looked up and written together, 1 to 64."""
    max_pending: int = 10_000
    """Chunks that may wait to be written."""
    when_full: Literal["drop", "wait"] = "drop"
    """What ``add`` does when so many wait: drops the least important of them, or waits until
    there is room, and then drops nothing though one call may give more (for imports; an agent
    should not wait)."""
    max_sessions: int = 1_000
    """Conversations whose last turns are held for windows that are not full yet. The one not
    added to for longest is written as it is."""
    retries: int = 3
    """Times a write is tried again before it is left for later."""
    backoff_s: float = 0.2
    """Pause before the first retry; doubles with each, with jitter. A longer one that the
    service asks for is kept."""
    pause_s: float = 5.0
    """After the last retry, time until the next attempt; doubles up to a minute."""
    sample_down: bool = True
    """Whether less important chunks are let go when the service has too much to do."""

    def __post_init__(self) -> None:
        bounds = {
            "summary_characters": (40, 2_000),
            "embed_batch": (1, 2_048),
            "write_batch": (1, MAX_VECTORS),
            "max_pending": (1, 10_000_000),
            "max_sessions": (1, 1_000_000),
            "retries": (0, 20),
            "backoff_s": (0.0, 60.0),
            "pause_s": (0.0, 3_600.0),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}: expected {low:,} to {high:,}, not {value}")
        if self.when_full not in ("drop", "wait"):
            raise ValueError(f"when_full: expected 'drop' or 'wait', not {self.when_full!r}")
        try:
            ZoneInfo(self.time_zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f"time_zone: expected a name as in the time zone database, for example "
                f"Europe/Paris, not {self.time_zone!r}"
            ) from None
        if not 0.5 <= self.duplicate_similarity <= 2:
            raise ValueError(
                f"duplicate_similarity: expected 0.5 to 2, not {self.duplicate_similarity}"
            )
