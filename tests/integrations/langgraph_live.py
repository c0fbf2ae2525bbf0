"""What tests of the LangGraph store share: an embedder that anybody can follow, and times."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from langgraph.store.base import (
    IndexConfig,
)

from memsvc.client import MemoryClient, Timeouts
from memsvc.integrations.langgraph import MemsvcStore
from tests.scenarios.harness import Node

DIMENSION = 64
PATIENT = Timeouts(connect=5, read=15, write=15)
MakeStore = Callable[..., MemsvcStore]


def letters(texts: Sequence[str]) -> list[list[float]]:
    """Texts with the same letters are near each other."""
    rows = np.zeros((len(texts), DIMENSION))
    for row, text in zip(rows, texts, strict=True):
        for letter in text.lower():
            row[ord(letter) % DIMENSION] += 1
        row[0] += 0.01
    return [[float(number) for number in row] for row in rows]


async def letters_later(texts: Sequence[str]) -> list[list[float]]:
    await asyncio.sleep(0)
    return letters(texts)


LETTERS: IndexConfig = {"dims": DIMENSION, "embed": letters}


def expires_at(store: MemsvcStore, node: Node, space: str) -> list[int]:
    """When the items of a store end, as the service knows it: UTC ms, 0 = never."""
    with MemoryClient(f"127.0.0.1:{node.port}", timeouts=PATIENT) as client:
        return [hit.expires_at for hit in client.browse(space)]
