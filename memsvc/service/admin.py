"""Administration: whole tenants, maintenance, a look inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Final

import numpy as np

from memsvc.domain.errors import FailedPrecondition, invalid
from memsvc.domain.ids import format_id, parse_id
from memsvc.domain.labels import LABELS
from memsvc.domain.log import Entry
from memsvc.domain.manifest import FileMeta
from memsvc.domain.types import (
    Caller,
    Degraded,
    DegradedLevel,
    ForgetMode,
    ForgetRequest,
    Namespace,
    Status,
)
from memsvc.service.api import (
    AgentFacts,
    Control,
    GenerationApi,
    Promoted,
    RebuildAnswer,
    RebuildFailure,
    SnapshotFacts,
)
from memsvc.service.forgetting import ForgetDecision
from memsvc.service.node import Node
from memsvc.service.positions import format_position
from memsvc.service.rebuild import RebuildFacts
from memsvc.store import heads, keys
from memsvc.store.keys import Partition
from memsvc.store.snapshot import Snapshot

ERASE_BATCH: Final = 2_000
"""Memories erased in one transaction, so that writes of others go on in between."""
EXPORT_BATCH: Final = 1_000
MAX_PAGE: Final = 10_000
DEFAULT_PAGE: Final = 1_000
MAX_LOG_TAIL: Final = 1_000
MAX_FAILURES: Final = 100
"""Segments listed that a rebuild left as they were."""


class AdminService:
    """Implements api.AdminApi on a node. ``reload`` reads the configuration again; ``promote``
    is there where there is a group."""

    def __init__(
        self,
        node: Node,
        reload: Callable[[], tuple[list[str], list[str]]] | None = None,
        promote: Callable[[bool, bool], Promoted] | None = None,
    ) -> None:
        self._node = node
        self._reload = reload
        self._promote = promote

    # -- tenants -----------------------------------------------------------------------

    def list_tenants(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[list[AgentFacts], str]:
        """One page in order of tenant and agent, and the token of the next."""
        size = page_size or DEFAULT_PAGE
        if size > MAX_PAGE:
            raise invalid("page_size", f"1 to {MAX_PAGE}")
        prefix = f"{tenant}\0".encode() if tenant else b""
        try:
            start = bytes.fromhex(page_token)
        except ValueError:
            raise invalid("page_token", "not a token of ListTenants") from None
        found: list[AgentFacts] = []
        with self._node.store.read() as snapshot:
            for p in snapshot.partitions(start, prefix):
                if len(found) == size:
                    return found, keys.name_key(p.tenant, p.agent).hex()
                found.append(AgentFacts(p.tenant, p.agent, p.memories, p.active, p.size))
        return found, ""

    def export_tenant(
        self, tenant: str, agent: str, vectors: bool
    ) -> tuple[int, Iterator[dict[str, object]]]:
        """Number of memories, and each as a JSON object that ``memsvc import`` reads."""
        partitions = self._partitions(tenant, agent)
        return sum(p.memories for p in partitions), self._export(partitions, vectors)

    def _export(self, partitions: list[Partition], vectors: bool) -> Iterator[dict[str, object]]:
        # Batches with a snapshot each: a long export must not keep old pages alive.
        for partition in partitions:
            row = 1
            while True:
                with self._node.store.read() as snapshot:
                    generation = self._node.generations.default.number
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

    def erase_tenant(
        self, caller: Caller, tenant: str, agent: str, validate_only: bool, reason: str
    ) -> tuple[int, str]:
        """Forgets everything of a tenant (or one of its agents) and has it erased from all
        files soon. Returns how many memories, and the position."""
        erased = 0
        if not validate_only:
            self._node.leading.guard()
        # What is acknowledged goes too.
        self._node.writer.settle()
        for partition in self._partitions(tenant, agent):
            if validate_only:
                erased += partition.memories
                continue
            while True:
                with self._node.store.read() as snapshot:
                    ids = _stored_ids(snapshot, partition.number, ERASE_BATCH)
                if not ids:
                    break
                request = ForgetRequest(
                    Namespace(partition.tenant, partition.agent),
                    mode=ForgetMode.HARD,
                    reason=reason or "tenant erased",
                )
                decision = ForgetDecision(request, None, ids, caller)
                erased += self._node.writer.run(decision).changed
        if not validate_only:
            self._node.confirm(Control())
            self._node.maintenance.ask(seal_min_rows=0, merge_all=False, purge=True)
        with self._node.store.read() as snapshot:
            position = format_position(snapshot.store_id, snapshot.epoch, snapshot.position)
        return erased, position

    def _partitions(self, tenant: str, agent: str) -> list[Partition]:
        if not tenant:
            raise invalid("tenant", "is required")
        with self._node.store.read() as snapshot:
            if agent:
                found = snapshot.partition(tenant, agent)
                return [found] if found else []
            return list(snapshot.partitions(prefix=f"{tenant}\0".encode()))

    # -- the node ----------------------------------------------------------------------

    @property
    def generations(self) -> GenerationApi:
        """The embedding models."""
        return self._node.generation_admin

    def set_degraded(self, level: int | None, reason: str) -> tuple[Degraded, bool]:
        """Forces a level, or gives control back to the node."""
        if level is not None and not 0 <= level <= DegradedLevel.NO_MEMORY:
            raise invalid("level", "0 to 4, or unset for automatic")
        degradation = self._node.degradation
        self._node.force_level(None if level is None else DegradedLevel(level), reason)
        return degradation.current, degradation.forced

    def maintain(
        self, seal_min_rows: int, merge_all: bool, purge: bool, wait_seconds: float
    ) -> tuple[int, bool]:
        """Starts maintenance; returns partitions queued, and whether nothing is left."""
        if purge:
            self._node.sweep()
        asked = self._node.maintenance.ask(
            seal_min_rows=seal_min_rows, merge_all=merge_all, purge=purge
        )
        # An answer that says "not yet" must arrive before the caller gives up.
        margin = min(0.5, wait_seconds / 4)
        return asked, self._node.maintenance.wait_idle(wait_seconds - margin)

    def start_rebuild(
        self, tenant: str, agent: str, everything: bool, validate_only: bool
    ) -> RebuildAnswer:
        """Begins to build segments anew; ``validate_only`` what would be done."""
        if agent and not tenant:
            raise invalid("tenant", "required with agent")
        rebuilds = self._node.rebuilds
        return self._rebuild(rebuilds.start(tenant, agent, everything, only_tell=validate_only))

    def rebuild(self) -> RebuildAnswer:
        """The rebuild that runs, or the last one."""
        return self._rebuild(self._node.rebuilds.facts())

    def cancel_rebuild(self) -> RebuildAnswer:
        """Ends the rebuild that runs."""
        return self._rebuild(self._node.rebuilds.cancel())

    def _rebuild(self, facts: RebuildFacts) -> RebuildAnswer:
        failures = []
        with self._node.store.read() as snapshot:
            for step in facts.progress.failures[:MAX_FAILURES]:
                p = snapshot.partition_number(step.partition)
                tenant, agent = (p.tenant, p.agent) if p else ("", "")
                failures.append(RebuildFailure(tenant, agent, step.name, step.reason))
        return RebuildAnswer(facts, tuple(failures))

    def reload(self) -> tuple[list[str], list[str]]:
        """Settings that took effect, and those that need a restart."""
        if self._reload is None:
            raise FailedPrecondition("this node has no configuration file to read again")
        return self._reload()

    def take_snapshot(self) -> SnapshotFacts:
        """Takes one now; everything acknowledged is in it. Raises Unavailable."""
        self._node.writer.settle()
        found = self._node.snapshots.take_now()
        folder, made = found.place.local(found), found.manifest
        where = found.where if folder is None else str(folder.resolve())
        return SnapshotFacts(where, made.position, made.epoch, made.time, made.size)

    def inspect(
        self, tenant: str, agent: str, verify: bool, log_tail: int, memory_id: str
    ) -> dict[str, object]:
        """Facts about log, segments, partitions, or the life of one memory."""
        if log_tail > MAX_LOG_TAIL:
            raise invalid("log_tail", f"at most {MAX_LOG_TAIL}")
        node = self._node
        damaged_now = node.maintenance.scrub() if verify else None
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
                "degraded": {
                    "level": int(node.degradation.current.level),
                    "reason": node.degradation.current.reason,
                    "forced": node.degradation.forced,
                },
                "rebuild": _rebuild_facts(node.rebuilds.facts()),
                "replication": node.leading.facts(snapshot.position),
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
            if damaged_now is not None:
                facts["damaged_found"] = damaged_now
            if tenant:
                facts["partition"] = _partition_facts(snapshot, tenant, agent)
            if log_tail:
                last = snapshot.position
                entries = (snapshot.entry(p) for p in range(max(1, last - log_tail + 1), last + 1))
                facts["log"] = [_entry_facts(found[0]) for found in entries if found]
            if memory_id:
                facts["memory"] = _memory_facts(snapshot, memory_id)
        return facts

    def promote(self, force: bool, accept_loss: bool) -> Promoted:
        """Makes a replica the primary of its group; see api.AdminApi. Raises what
        replicas.promotion does, FailedPrecondition on a node without a group."""
        if self._promote is None:
            raise FailedPrecondition("this node is of no group", reason="NO_GROUP")
        return self._promote(force, accept_loss)


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


def _stored_ids(snapshot: Snapshot, partition: int, most: int) -> list[bytes]:
    """Ids of memories that are not forgotten."""
    found: list[bytes] = []
    record = snapshot.partition_number(partition)
    if record is None or not record.memories:
        return []
    for low in range(1, record.next_row, 20_000):
        _, states = snapshot.state_range(partition, low, min(low + 20_000, record.next_row))
        kept = states[(states["flags"] & 1 == 1) & (states["status"] != Status.FORGOTTEN)]
        found.extend(bytes(i) for i in kept["id"][: most - len(found)])
        if len(found) >= most:
            break
    return found


def exported(
    snapshot: Snapshot, partition: Partition, row: int, generation: int
) -> dict[str, object] | None:
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
