"""Vectors of a model for memories that have none of it, from their texts."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.client.embedders import (
    Embedder,
    EmbedderUnavailable,
    TextRefused,
    embed_each,
    embedding_of,
)
from memsvc.client.errors import ClientError
from memsvc.client.memory import MemoryClient
from memsvc.domain.types import LateVector, Namespace

R = TypeVar("R")

PAGE: Final = 200
"""Memories that are asked for at once."""
FIRST_DELAY_S: Final = 0.5
MAX_DELAY_S: Final = 30.0
MAX_ASKED_S: Final = 60.0
"""A service that asks to wait longer is asked again after so long."""

# What became of a single memory that the service refuses a vector for.
_SINGLE: Final = {
    "ABORTED": "changed",
    "NOT_FOUND": "gone",
    "PERMISSION_DENIED": "not_allowed",
    "INVALID_ARGUMENT": "refused",
}


@dataclass(slots=True)
class Reembedder:
    """Fills the generation of an embedder. Where it is broken off, at whatever moment, the next
    run goes on: what has a vector is not asked for again."""

    client: MemoryClient
    embedder: Embedder
    retries: int = 8
    """Of each call, and of each batch of texts, before it gives up."""
    tell: Callable[[str], None] = lambda text: None
    """Gets a line for people: a memory that is passed over, a pause."""
    sleep: Callable[[float], None] = time.sleep
    counts: Counter[str] = field(default_factory=Counter)
    """filled; refused (by the model or the service); changed meanwhile, for which another pass is
    made; gone meanwhile; not_allowed (not ACTIVE, and the token has no review right)."""

    def run(self, tenant: str = "", agent: str = "", page_size: int = PAGE) -> Iterator[int]:
        """Goes through all memories that lack a vector, of one tenant or agent or of all; yields
        how many were looked at, a page at a time. Needs the admin right, for all memories that
        to the whole node.

        Raises EmbeddingMismatch when the store has no generation of that name, ClientError and
        EmbedderError when one of the two does not answer after the retries.
        """
        name = embedding_of(self.embedder, self.client.health().store)
        while True:
            changed = self.counts["changed"]
            for name_ in ("refused", "not_allowed"):  # this pass meets them again
                self.counts.pop(name_, None)
            yield from self._pass(name, tenant, agent, page_size)
            if self.counts["changed"] == changed:
                return

    def _pass(self, name: str, tenant: str, agent: str, page_size: int) -> Iterator[int]:
        token = ""
        while True:
            page = self._patiently(
                lambda token=token: self.client.admin.lacking(  # type: ignore[misc]
                    name, tenant, agent, page_size=page_size, page_token=token
                )
            )
            by_space: dict[tuple[str, str], list[admin_pb.LackingMemory]] = {}
            for one in page.memories:
                key = (one.namespace.tenant, one.namespace.agent)
                by_space.setdefault(key, []).append(one)
            for space, memories in by_space.items():
                self._fill(Namespace(*space), memories, name)
            yield len(page.memories)
            token = page.next_page_token
            if not token:
                return

    def _fill(
        self, space: Namespace, memories: Sequence[admin_pb.LackingMemory], name: str
    ) -> None:
        texts = [one.content or one.summary for one in memories]
        rows = self._patiently(lambda: embed_each(self.embedder, texts))
        late = []
        for one, row in zip(memories, rows, strict=True):
            if isinstance(row, TextRefused):
                self.counts["refused"] += 1
                self.tell(f"no vector for {one.id}: {row}")
            else:
                late.append(LateVector(one.id, row, if_version=one.version))
        self._write(space, late, name)

    def _write(self, space: Namespace, late: Sequence[LateVector], name: str) -> None:
        """All of them; halved until those that the service refuses stand alone."""
        if not late:
            return
        try:
            self._patiently(lambda: self.client.write(space, late, embedding=name))
        except ClientError as error:
            if error.code not in _SINGLE or error.reason == "DIMENSION_MISMATCH":
                raise
            if len(late) == 1:
                self.counts[_SINGLE[error.code]] += 1
                self.tell(f"no vector for {late[0].id}: {error.message}")
                return
            half = len(late) // 2
            self._write(space, late[:half], name)
            self._write(space, late[half:], name)
        else:
            self.counts["filled"] += len(late)

    def _patiently(self, call: Callable[[], R]) -> R:
        delay = FIRST_DELAY_S
        for attempt in range(self.retries + 1):
            try:
                return call()
            except (ClientError, EmbedderUnavailable) as error:
                if isinstance(error, ClientError) and not error.retriable:
                    raise
                if attempt == self.retries:
                    raise
                asked = error.retry_after_ms if isinstance(error, ClientError) else None
                asked_s = min((asked or 0) / 1_000, MAX_ASKED_S)
                wait = max(delay * random.uniform(0.8, 1.2), asked_s)
                self.tell(f"{error}; trying again in {wait:.1f} s")
                self.sleep(wait)
                delay = min(MAX_DELAY_S, delay * 2)
        raise AssertionError("unreachable: the last attempt returns or raises")
