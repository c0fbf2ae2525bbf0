"""Made-up conversations, as long as a test wants them."""

from __future__ import annotations

import random

from memsvc.client.ingest import Turn

_WHO = ("Ann", "Ben", "Chiara", "Dmitri", "Emeka", "Fumiko")
_DID = ("planted", "repaired", "painted", "sold", "found", "photographed", "borrowed", "lost")
_WHAT = ("a lemon tree", "the old tractor", "a blue canoe", "two violins", "a stone bridge",
         "the harbour map", "a wool carpet", "some copper pots", "the wooden sled")  # fmt: skip
_WHERE = ("in Lisbon", "near the lake", "behind the church", "at the market", "on the island",
          "by the railway", "in the cellar", "under the walnut tree")  # fmt: skip


def conversation(session: str, turns: int, seed: int = 0) -> list[Turn]:
    """The same turns for the same seed; no two say the same."""
    draw = random.Random(f"{session}/{seed}")
    return [
        Turn(
            f"In week {number} of {session} {draw.choice(_WHO)} {draw.choice(_DID)} "
            f"{draw.choice(_WHAT)} {draw.choice(_WHERE)}, which took {draw.randint(2, 90)} days.",
            role=("user", "assistant")[number % 2],
            session=session,
            seq=number,
            ts=1_700_000_000_000 + number * 30_000,
        )
        for number in range(turns)
    ]
