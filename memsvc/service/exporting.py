"""Memories as JSON objects, for people and for ``memsvc import``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from memsvc.domain.ids import format_id
from memsvc.domain.labels import LABELS
from memsvc.domain.types import Status
from memsvc.service.node import Node
from memsvc.store import heads
from memsvc.store.keys import Partition
from memsvc.store.snapshot import Snapshot

EXPORT_BATCH: Final = 1_000


def export(node: Node, partitions: list[Partition], vectors: bool) -> Iterator[dict[str, object]]:
    """Each memory of some partitions as a JSON object that ``memsvc import`` reads."""
    # Batches with a snapshot each: a long export must not keep old pages alive.
    for partition in partitions:
        row = 1
        while True:
            with node.store.read() as snapshot:
                generation = node.generations.default.number
                now = partition_now = snapshot.partition_number(partition.number)
                end = partition_now.next_row if now and partition_now else row
                wanted = [generation] if vectors else []
                high = min(row + EXPORT_BATCH, end)
                batch = [
                    exported(snapshot, partition, record.row, (vectors and generation) or 0)
                    for record in snapshot.records(partition.number, row, high, wanted)
                ]
            yield from (item for item in batch if item is not None)
            row = high
            if row >= end:
                break


def exported(
    snapshot: Snapshot, partition: Partition, row: int, generation: int
) -> dict[str, object] | None:
    """One row of a partition, with its vector of a generation (0 = without); None when there is
    nothing in it any more."""
    state, text = snapshot.state(partition.number, row), snapshot.text(partition.number, row)
    if state is None or text is None:
        return None
    hit = heads.parse_head(text.head)
    metadata = heads.metadata_of(hit)
    shown: dict[str, object] = {
        name: value
        for name in ("seq", *LABELS)
        if (value := getattr(metadata, name)) not in (None, "")
    }
    shown |= {"ts": state.ts, "importance": state.importance}
    if metadata.attributes:
        shown["attributes"] = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in metadata.attributes.items()
        }
    item: dict[str, object] = {
        "namespace": {"tenant": partition.tenant, "agent": partition.agent, "session": hit.session},
        "id": format_id(state.id),
        "status": Status(state.status).name,
        "version": state.version,
        "created_at": state.created_at,
        "expires_at": state.expires_at,
        "recall_count": state.recall_count,
        "dedup_key": text.dedup_key,
        "content": text.content,
        "summary": hit.summary,
        "metadata": shown,
    }
    if generation:
        raw = snapshot.vector(generation, partition.number, row)
        if raw is not None:
            item["vector"] = np.frombuffer(raw, np.float32).astype(float).tolist()
    return item
