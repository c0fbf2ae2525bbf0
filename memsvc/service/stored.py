"""What Health and metrics tell of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memsvc.domain.generations import default_of
from memsvc.domain.log import Generation
from memsvc.domain.types import EmbeddingFacts, StoreFacts
from memsvc.service.positions import format_position
from memsvc.store.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Stored:
    """Epoch and position of its log, the same as clients know it, and facts."""

    epoch: int
    position: int
    text: str
    facts: StoreFacts


def stored(snapshot: Snapshot, serving: Sequence[Generation], dtype: str, max_bytes: int) -> Stored:
    """Of one snapshot; ``serving`` are the generations that calls may name."""
    generation = default_of(serving)
    cold_segments, cold_rows, cold_bytes = snapshot.cold
    return Stored(
        snapshot.epoch,
        snapshot.position,
        format_position(snapshot.store_id, snapshot.epoch, snapshot.position),
        StoreFacts(
            memories=snapshot.memories,
            partitions=snapshot.count("names"),
            segments=snapshot.count("manifest"),
            bytes=snapshot.accounted_bytes,
            max_bytes=max_bytes,
            dimension=generation.dimension,
            embedding=generation.embedding,
            dtype=dtype,
            segment_bytes=snapshot.segment_bytes,
            cold_segments=cold_segments,
            cold_rows=cold_rows,
            cold_bytes=cold_bytes,
            embeddings=tuple(
                EmbeddingFacts(g.embedding, g.dimension, g.is_default) for g in serving
            ),
        ),
    )
