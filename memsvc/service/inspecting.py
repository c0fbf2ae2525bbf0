"""What ``memsvc inspect`` tells: facts about log, segments, partitions, or one memory's life."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from memsvc.domain.errors import invalid
from memsvc.domain.ids import parse_id
from memsvc.domain.log import Entry
from memsvc.domain.manifest import FileMeta
from memsvc.service.damage import DamagedFile
from memsvc.service.node import Node
from memsvc.service.rebuild import RebuildFacts
from memsvc.store import keys
from memsvc.store.snapshot import Snapshot

MAX_LOG_TAIL: Final = 1_000
MAX_DAMAGED: Final = 100
"""Damaged files that are named; all are counted."""


def look_inside(
    node: Node, tenant: str, agent: str, verify: bool, log_tail: int, memory_id: str
) -> dict[str, object]:
    """The facts, as JSON can hold them; ``verify`` reads every segment file first. Raises
    InvalidRequest for too large a ``log_tail``."""
    if log_tail > MAX_LOG_TAIL:
        raise invalid("log_tail", f"at most {MAX_LOG_TAIL}")
    found = node.maintenance.scrub() if verify else None
    with node.store.read() as snapshot:
        facts: dict[str, object] = {
            "store_id": snapshot.store_id,
            "epoch": snapshot.epoch,
            "position": snapshot.position,
            "digest": snapshot.digest.hex(),
            "memories": snapshot.memories,
            "accounted_bytes": snapshot.accounted_bytes,
            "file_bytes": node.store.file_bytes(),
            "partitions": snapshot.count("names"),
            "segments": snapshot.count("manifest"),
            "segment_bytes": snapshot.segment_bytes,
            "tiers": _tier_facts(snapshot, node),
            "damaged_files": node.maintenance.damaged_files,
            "damaged": _damaged(snapshot, [*node.maintenance.damages.waiting, *(found or ())]),
            "degraded": {
                "level": int(node.degradation.current.level),
                "reason": node.degradation.current.reason,
                "forced": node.degradation.forced,
            },
            "rebuild": _rebuild_facts(node.rebuilds.facts()),
            "replication": {
                **node.leading.facts(snapshot.position),
                "troubles": node.leading.troubles,
            },
            "waiting_for_erasure": snapshot.count("erasures"),
            "dirty_since": snapshot.dirty_since,
            "views_bytes": node.views.nbytes,
            "generations": [
                {
                    "number": g.number,
                    "embedding": g.embedding,
                    "dimension": g.dimension,
                    "default": g.is_default,
                    "dropped": g.dropped,
                }
                for g in snapshot.all_generations()
            ],
            "tables": {name: snapshot.count(name) for name in keys.TABLES},
        }
        if not tenant:
            facts["disk"] = disk_use(node.store.data_dir)
        if found is not None:
            facts["damaged_found"] = len(found)
        if tenant:
            facts["partition"] = _partition_facts(snapshot, tenant, agent)
        if log_tail:
            last = snapshot.position
            entries = (snapshot.entry(p) for p in range(max(1, last - log_tail + 1), last + 1))
            facts["log"] = [_entry_facts(entry[0]) for entry in entries if entry]
        if memory_id:
            facts["memory"] = _memory_facts(snapshot, memory_id)
    return facts


def disk_use(folder: Path) -> dict[str, int]:
    """Bytes that each file or folder in it takes on the disk, the largest first. A file that has
    two names, as one that is in a snapshot too, counts under the first of them."""
    seen: set[tuple[int, int]] = set()

    def size(path: str, state: os.stat_result) -> int:
        if (state.st_dev, state.st_ino) in seen:
            return 0
        seen.add((state.st_dev, state.st_ino))
        used = state.st_blocks * 512
        if stat.S_ISDIR(state.st_mode):
            with suppress(OSError), os.scandir(path) as entries:
                used += sum(_each(entries))
        return used

    def _each(entries: Iterable[os.DirEntry[str]]) -> Iterable[int]:
        for entry in entries:
            with suppress(FileNotFoundError):  # segments come and go
                yield size(entry.path, entry.stat(follow_symlinks=False))

    # What runs has its files first, snapshots what only they hold.
    names = sorted(os.listdir(folder), key=lambda name: (name == "snapshots", name))
    found = {}
    for name in names:
        path = os.path.join(folder, name)
        with suppress(FileNotFoundError):
            found[name] = size(path, os.lstat(path))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _tier_facts(snapshot: Snapshot, node: Node) -> dict[str, object]:
    segments, rows, size = snapshot.cold
    return {
        "hot": {
            "segments": snapshot.count("manifest") - segments,
            "bytes": snapshot.segment_bytes - size,
        },
        "cold": {
            "segments": segments,
            "rows": rows,
            "bytes": size,
            "resident_bytes": node.cold_pages.resident,
            "budget_bytes": node.cold_pages.budget,
        },
    }


def _damaged(snapshot: Snapshot, files: Iterable[DamagedFile]) -> list[dict[str, str]]:
    """Each file once: those that are set aside, and those just found."""
    listed = list({file.path: file for file in files}.values())[:MAX_DAMAGED]
    facts = []
    for file in listed:
        p = snapshot.partition_number(file.partition)
        namespace = f"{p.tenant}/{p.agent}" if p else ""
        facts.append({"file": file.path, "namespace": namespace, "found": file.reason})
    return facts


def _partition_facts(snapshot: Snapshot, tenant: str, agent: str) -> dict[str, object] | None:
    p = snapshot.partition(tenant, agent)
    if p is None:
        return None
    return {
        "number": p.number,
        "memories": p.memories,
        "active": p.active,
        "bytes": p.size,
        "position": p.position,
        "rows": p.next_row - 1,
        "tail_rows": p.next_row - p.sealed_row,
        "segments": [
            {
                "name": s.name,
                "rows": [s.row_lo, s.row_hi],
                "tier": s.tier,
                "count": s.count,
                "position": s.position,
                "bytes": s.size,
                "files": {f.name: f.bytes for f in s.files},
                "graph": next((_graph_facts(f) for f in s.files if f.kind == "graph"), None),
            }
            for s in snapshot.segments(p.number)
        ],
    }


def _graph_facts(file: FileMeta) -> dict[str, object] | str:
    return asdict(file.graph) if file.graph else "unknown settings"


def _rebuild_facts(facts: RebuildFacts) -> dict[str, object]:
    return {
        "state": facts.plan.state.value if facts.plan else "NONE",
        "progress": round(facts.progress.share, 3),
        "segments_left": facts.progress.segments_left,
        "graphs": facts.survey.graphs,
        "graphs_outdated": facts.survey.to_rebuild,
    }


def _entry_facts(entry: Entry) -> dict[str, object]:
    return {
        "position": entry.position,
        "time": entry.time,
        "tenant": entry.tenant,
        "agent": entry.agent,
        "actor": entry.actor,
        "action": entry.action.name,
        "reason": entry.reason,
        "effects": len(entry.effects),
    }


def _memory_facts(snapshot: Snapshot, memory_id: str) -> list[dict[str, object]]:
    id_bytes = parse_id(memory_id)
    if id_bytes is None:
        return []
    life = []
    for entry in snapshot.audit(id_bytes):
        for e in entry.effects:
            if e.id == id_bytes:
                life.append(
                    _entry_facts(entry)
                    | {
                        "action": e.action.name,
                        "version": e.version,
                        "before": e.status_before.name,
                        "after": e.status_after.name,
                        "importance": e.importance,
                        "payload_hash": e.payload_hash.hex(),
                    }
                )
    return life
