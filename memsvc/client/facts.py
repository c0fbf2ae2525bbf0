"""Single facts that somebody wants remembered, as against conversations (``ingest``)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from memsvc.client.calls import MemoryCalls
from memsvc.client.embedders import Embedder, EmbedderUnavailable, TextRefused, embed_each
from memsvc.client.errors import ClientError
from memsvc.client.ingest.figures import same_figures
from memsvc.client.ingest.importance import importance as importance_of
from memsvc.client.ingest.settings import DUPLICATE_SIMILARITY
from memsvc.client.ingest.summaries import summary
from memsvc.domain.types import (
    Include,
    Metadata,
    Mode,
    Namespace,
    NewMemory,
    Status,
    Touch,
    Vector,
)
from memsvc.v1 import memory_service_pb2 as pb

RECREATIONS: Final = 50
"""How often a text that was forgotten may be remembered anew."""
CANDIDATES: Final = 5
"""Nearest memories looked at: the nearest may tell another number."""
_GONE: Final = frozenset({Status.FORGOTTEN, Status.EXPIRED})


@dataclass(frozen=True, slots=True)
class Remembered:
    """What became of a fact."""

    id: str
    """Of the memory that holds it now."""
    created: bool
    """False when it, or something that says the same, was known: its time and importance were
    raised."""
    status: Status = Status.ACTIVE
    """Anything but ACTIVE: a person put this text away, and it stays so."""
    has_vector: bool = True
    """Whether a new one is found by meaning; otherwise by words only."""


class Facts:
    """Remembers facts of one agent. Safe to use from several threads.

    ``embedding`` is the name that calls with the embedder's vectors carry (``embedding_of``).
    ``now_ms`` gives UTC ms.
    """

    def __init__(
        self,
        client: MemoryCalls,
        namespace: Namespace,
        embedder: Embedder | None,
        embedding: str = "",
        *,
        source: str = "",
        duplicate_similarity: float = DUPLICATE_SIMILARITY,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._client = client
        self._space = namespace
        self._embedder = embedder
        self._embedding = embedding
        self._source = source
        self._same = duplicate_similarity
        self._now_ms = now_ms

    def remember(
        self, text: str, *, session: str = "", topic: str = "", importance: float | None = None
    ) -> Remembered:
        """Stores a text unless it is known, durably when this returns. ``importance`` 0 to 1;
        None = by rules. ClientError when the service refuses it or does not answer."""
        text = text.strip()
        weight = importance_of(text) if importance is None else importance
        vector = self._vector(text)
        known = self._known(text, vector)
        if known and self._touched(known, weight):
            return Remembered(known, created=False)
        metadata = Metadata(ts=self._now_ms(), importance=weight, source=self._source, topic=topic)
        memory = NewMemory(text, summary([("", text)]), vector=vector, metadata=metadata)
        space = Namespace(self._space.tenant, self._space.agent, session or self._space.session)
        key = "fact:" + hashlib.sha256(" ".join(text.split()).encode()).hexdigest()[:32]
        for number in range(RECREATIONS):
            # A key that a forgotten memory has is taken for ever; who asks for the same to be
            # remembered once more means it.
            item = memory._replace(dedup_key=f"{key}:{number}" if number else key)
            answer = self._client.write(space, [item], embedding=self._embedding)
            (result,) = answer.results
            if result.outcome == pb.OUTCOME_CREATED:
                return Remembered(result.id, created=True, has_vector=vector is not None)
            status = Status(result.status)
            if status in _GONE:
                continue
            if status is Status.ACTIVE:
                self._touched(result.id, weight)
            return Remembered(result.id, created=False, status=status)
        raise ClientError(
            "FAILED_PRECONDITION",
            f"this text was forgotten {RECREATIONS} times",
            reason="FORGOTTEN_TOO_OFTEN",
            hint="remember it in other words",
        )

    def _vector(self, text: str) -> Vector | None:
        if self._embedder is None:
            return None
        try:
            (row,) = embed_each(self._embedder, [text])
        except EmbedderUnavailable:
            return None  # words find it
        return None if isinstance(row, TextRefused) else row

    def _known(self, text: str, vector: Vector | None) -> str:
        """Id of a memory that says the same, or ""."""
        if vector is None:
            return ""
        answer = self._client.query(
            Namespace(self._space.tenant, self._space.agent),
            vector=vector,
            mode=Mode.VECTOR,
            top_k=CANDIDATES,
            min_score=self._same,
            include=Include(content=True),
            embedding=self._embedding,
        )
        return next((hit.id for hit in answer.items if same_figures(text, hit.content)), "")

    def _touched(self, id_: str, importance: float) -> bool:
        """False when it was forgotten meanwhile."""
        touch = Touch(id_, ts=self._now_ms(), importance=importance)
        try:
            self._client.write(Namespace(self._space.tenant, self._space.agent), [touch])
        except ClientError as error:
            if error.code != "NOT_FOUND":
                raise
            return False
        return True
