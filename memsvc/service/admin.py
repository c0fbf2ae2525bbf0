"""Administration: whole tenants, maintenance, a look inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from memsvc.domain.errors import FailedPrecondition, invalid
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
from memsvc.service.exporting import export
from memsvc.service.forgetting import ForgetDecision
from memsvc.service.inspecting import look_inside
from memsvc.service.node import Node
from memsvc.service.positions import format_position
from memsvc.service.rebuild import RebuildFacts
from memsvc.store import keys
from memsvc.store.keys import Partition
from memsvc.store.snapshot import Snapshot

ERASE_BATCH: Final = 2_000
"""Memories erased in one transaction, so that writes of others go on in between."""
MAX_PAGE: Final = 10_000
DEFAULT_PAGE: Final = 1_000
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
        memories = sum(p.memories for p in partitions)
        return memories, export(self._node, partitions, vectors)

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
        return look_inside(self._node, tenant, agent, verify, log_tail, memory_id)

    def promote(self, force: bool, accept_loss: bool) -> Promoted:
        """Makes a replica the primary of its group; see api.AdminApi. Raises what
        replicas.promotion does, FailedPrecondition on a node without a group."""
        if self._promote is None:
            raise FailedPrecondition("this node is of no group", reason="NO_GROUP")
        return self._promote(force, accept_loss)


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
