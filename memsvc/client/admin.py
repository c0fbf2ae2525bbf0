"""Calls for the people who run a node. Each needs a token with the admin right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from memsvc.admin.v1 import admin_service_pb2 as pb
from memsvc.admin.v1 import admin_service_pb2_grpc as pb_grpc
from memsvc.client.connection import Connection


@dataclass(frozen=True, slots=True)
class ExportedMemory:
    """One memory of an export."""

    json: str
    """A JSON object that ``memsvc import`` reads."""
    sent: int
    """Memories sent so far, this one included."""
    total: int
    """Memories in all, as counted at the start."""


class AdminClient:
    """Administration of one node; reached as ``MemoryClient.admin``. Raises ClientError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stub = pb_grpc.AdminServiceStub(connection.channel)

    @property
    def _timeout(self) -> float:
        return self._connection.timeouts.admin

    def list_tenants(self, tenant: str = "") -> Iterator[pb.AgentFacts]:
        """Counts of every agent (of one tenant, if given), in name order."""
        page_token = ""
        while True:
            answer = self._connection.call(
                self._stub.ListTenants,
                pb.ListTenantsRequest(tenant=tenant, page_token=page_token),
                self._timeout,
            )
            yield from answer.agents
            page_token = answer.next_page_token
            if not page_token:
                return

    def export_tenant(
        self, tenant: str, agent: str = "", *, vectors: bool = False
    ) -> Iterator[ExportedMemory]:
        """Everything stored for a tenant, or for one of its agents."""
        request = pb.ExportTenantRequest(tenant=tenant, agent=agent, vectors=vectors)
        answers: Iterator[pb.ExportTenantResponse] = self._connection.stream(
            self._stub.ExportTenant, request, self._timeout
        )
        for one in answers:
            yield ExportedMemory(one.json, one.sent, one.total)

    def erase_tenant(
        self, tenant: str, agent: str = "", *, validate_only: bool = False, reason: str = ""
    ) -> pb.EraseTenantResponse:
        """Erases everything of a tenant, or of one of its agents, for good."""
        request = pb.EraseTenantRequest(
            tenant=tenant,
            agent=agent,
            confirm=f"{tenant}/{agent}" if agent else tenant,
            validate_only=validate_only,
            reason=reason,
        )
        return self._connection.call(self._stub.EraseTenant, request, self._timeout)

    def set_degraded(self, level: int | None, reason: str = "") -> pb.SetDegradedResponse:
        """Forces level 0 to 4; None gives control back to the node."""
        request = pb.SetDegradedRequest(level=level, reason=reason)
        return self._connection.call(self._stub.SetDegraded, request, self._timeout)

    def inspect(
        self,
        tenant: str = "",
        agent: str = "",
        *,
        verify: bool = False,
        log_tail: int = 0,
        memory_id: str = "",
    ) -> dict[str, Any]:
        """Facts about log, segments and partitions, or the life of one memory."""
        request = pb.InspectRequest(
            tenant=tenant, agent=agent, verify=verify, log_tail=log_tail, memory_id=memory_id
        )
        answer = self._connection.call(self._stub.Inspect, request, self._timeout)
        facts: dict[str, Any] = json.loads(answer.json)
        return facts

    def maintain(
        self,
        *,
        seal_min_rows: int = 0,
        merge_all: bool = False,
        purge: bool = False,
        wait_seconds: float = 0.0,
    ) -> pb.MaintainResponse:
        """Starts maintenance now; waits at most ``wait_seconds`` for its end."""
        request = pb.MaintainRequest(
            seal_min_rows=seal_min_rows, merge_all=merge_all, purge=purge, wait=wait_seconds > 0
        )
        return self._connection.call(self._stub.Maintain, request, wait_seconds or self._timeout)

    def start_rebuild(
        self,
        tenant: str = "",
        agent: str = "",
        *,
        everything: bool = False,
        validate_only: bool = False,
    ) -> pb.Rebuild:
        """Begins to build segments with outdated graphs anew (``everything``: all segments), of
        the node, a tenant or an agent; ``validate_only`` tells what would be done."""
        request = pb.StartRebuildRequest(
            tenant=tenant, agent=agent, everything=everything, validate_only=validate_only
        )
        return self._connection.call(self._stub.StartRebuild, request, self._timeout).rebuild

    def rebuild(self) -> pb.Rebuild:
        """The rebuild that runs, or the last one."""
        request = pb.GetRebuildRequest()
        return self._connection.call(self._stub.GetRebuild, request, self._timeout).rebuild

    def cancel_rebuild(self) -> pb.Rebuild:
        """Ends the rebuild that runs; what was replaced stays so."""
        request = pb.CancelRebuildRequest()
        return self._connection.call(self._stub.CancelRebuild, request, self._timeout).rebuild

    def create_generation(
        self,
        embedding: str,
        dimension: int,
        *,
        current: str = "",
        dtype: str = "",
        m: int = 0,
        ef_construction: int = 0,
        validate_only: bool = False,
    ) -> pb.Generation:
        """Adds an embedding model, whose vectors are kept beside those there are. ``current``
        names the present default one, if it has no name. ``dtype``, ``m`` and ``ef_construction``
        are for its graphs, where they are not to be those of the node."""
        request = pb.CreateGenerationRequest(
            embedding=embedding,
            dimension=dimension,
            current=current,
            dtype=dtype,
            m=m,
            ef_construction=ef_construction,
            validate_only=validate_only,
        )
        return self._connection.call(self._stub.CreateGeneration, request, self._timeout).generation

    def generations(self, timeout: float = 600.0) -> list[pb.Generation]:
        """The embedding models, and how far each is filled. Counts every memory, so waits at
        most ``timeout`` seconds."""
        request = pb.ListGenerationsRequest()
        answer = self._connection.call(self._stub.ListGenerations, request, timeout)
        return list(answer.generations)

    def set_default_generation(
        self,
        embedding: str,
        *,
        min_coverage: float | None = None,
        force: bool = False,
        validate_only: bool = False,
        timeout: float = 600.0,
    ) -> pb.Generation:
        """Makes an embedding model the default, when enough memories have a vector of it
        (``min_coverage``, 0 to 1, else 0.99) and its graphs find what is there."""
        request = pb.SetDefaultGenerationRequest(
            embedding=embedding,
            min_coverage=min_coverage,
            force=force,
            validate_only=validate_only,
        )
        return self._connection.call(self._stub.SetDefaultGeneration, request, timeout).generation

    def drop_generation(
        self, embedding: str, *, validate_only: bool = False, timeout: float = 600.0
    ) -> pb.Generation:
        """Drops an embedding model with all its vectors, for good."""
        request = pb.DropGenerationRequest(
            embedding=embedding, confirm=embedding, validate_only=validate_only
        )
        return self._connection.call(self._stub.DropGeneration, request, timeout).generation

    def lacking(
        self,
        embedding: str = "",
        tenant: str = "",
        agent: str = "",
        *,
        page_size: int = 0,
        page_token: str = "",
    ) -> pb.ListLackingResponse:
        """A page of the memories that have no vector of an embedding model, with their texts.
        A page may be empty although others follow (``next_page_token``)."""
        request = pb.ListLackingRequest(
            embedding=embedding,
            tenant=tenant,
            agent=agent,
            page_size=page_size,
            page_token=page_token,
        )
        return self._connection.call(self._stub.ListLacking, request, self._timeout)

    def reload(self) -> pb.ReloadResponse:
        """Makes the node read its configuration and tokens again."""
        return self._connection.call(self._stub.Reload, pb.ReloadRequest(), self._timeout)

    def take_snapshot(self, timeout: float = 3_600.0) -> pb.TakeSnapshotResponse:
        """Takes a snapshot into the folder of the node; waits at most ``timeout`` seconds."""
        return self._connection.call(self._stub.TakeSnapshot, pb.TakeSnapshotRequest(), timeout)

    def promote(
        self, *, force: bool = False, accept_loss: bool = False, timeout: float = 60.0
    ) -> pb.PromoteResponse:
        """Makes the node, a replica, the primary of its group; waits at most ``timeout`` s."""
        request = pb.PromoteRequest(force=force, accept_loss=accept_loss)
        return self._connection.call(self._stub.Promote, request, timeout)
