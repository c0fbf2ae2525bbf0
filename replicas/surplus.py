"""What a former primary alone has: found, written out for people, and given up.

A primary that is cut off may take writes that no other node has seen. When another was promoted
meanwhile, these are on a history that was abandoned. With ``replication.min_acks`` none of them was
acknowledged. Nothing is thrown away unseen: the entries go into one file, the memories that
they made or changed, as they are here, into another that ``memsvc import`` reads.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from memsvc.domain.ids import format_id
from memsvc.domain.log import Entry
from memsvc.domain.replication import Standing
from memsvc.segments.files import fsync_directory
from memsvc.service.exporting import exported
from memsvc.store.snapshot import Snapshot

log = logging.getLogger(__name__)

FOLDER: Final = "surplus"


@dataclass(frozen=True, slots=True)
class Surplus:
    """The entries from ``first`` to ``last``, written to files next to each other: of entries, and
    of ``memories`` memories."""

    first: int
    last: int
    entries: Path
    memories: Path
    memory_count: int


def common_position(snapshot: Snapshot, same: Callable[[Standing], bool]) -> int:
    """The last position up to which the log is the primary's. ``same`` asks it about a place in
    this log; what it says is right for everything before as well, so some twenty questions do."""
    low, high = 0, snapshot.position
    while low < high:
        middle = (low + high + 1) // 2
        found = snapshot.entry(middle)
        assert found is not None, middle
        entry, _, digest = found
        if same(Standing(snapshot.store_id, entry.epoch, middle, digest)):
            low = middle
        else:
            high = middle - 1
    return low


def write_surplus(snapshot: Snapshot, common: int, data_dir: Path) -> Surplus | None:
    """Writes out what is behind a position, readable by the owner only; on disk when it returns.
    None when there is nothing. Written again under the same names after a crash."""
    if common >= snapshot.position:
        return None
    folder = data_dir / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    name = f"epoch-{snapshot.epoch}-from-{common + 1}"
    entries, memories = folder / f"{name}.entries.jsonl", folder / f"{name}.memories.jsonl"
    seen: dict[bytes, None] = {}

    def told() -> Iterator[dict[str, object]]:
        for position in range(common + 1, snapshot.position + 1):
            found = snapshot.entry(position)
            assert found is not None, position
            seen.update(dict.fromkeys(effect.id for effect in found[0].effects))
            yield _entry(found[0])

    _write(entries, told())
    count = _write(memories, _memories(snapshot, list(seen)))
    for changed in (folder, data_dir):
        fsync_directory(changed)
    return Surplus(common + 1, snapshot.position, entries, memories, count)


def drop_surplus(data_dir: Path, before_ms: int) -> None:
    """Removes files that were written before a time (UTC ms): they hold texts, which later
    erasures do not reach."""
    for path in (data_dir / FOLDER).glob("*.jsonl"):
        if path.stat().st_mtime * 1_000 < before_ms:
            log.warning("removing %s: its time is over", path)
            path.unlink(missing_ok=True)


def _entry(entry: Entry) -> dict[str, object]:
    return {
        "position": entry.position,
        "epoch": entry.epoch,
        "time": entry.time,
        "tenant": entry.tenant,
        "agent": entry.agent,
        "actor": entry.actor,
        "action": entry.action.name,
        "reason": entry.reason,
        "effects": [
            {
                "id": format_id(effect.id),
                "action": effect.action.name,
                "version": effect.version,
                "status_before": effect.status_before.name,
                "status_after": effect.status_after.name,
            }
            for effect in entry.effects
        ],
    }


def _memories(snapshot: Snapshot, ids: list[bytes]) -> Iterator[dict[str, object]]:
    generation = next((g.number for g in snapshot.generations() if g.is_default), 0)
    for id_bytes in ids:
        place = snapshot.locate(id_bytes)
        partition = snapshot.partition_number(place[0]) if place else None
        if place is None or partition is None:
            continue
        item = exported(snapshot, partition, place[1], generation)
        if item is not None:
            yield item


def _write(path: Path, lines: Iterator[dict[str, object]]) -> int:
    count = 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        for line in lines:
            count += 1
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return count
