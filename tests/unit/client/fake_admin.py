"""Administration calls of the small memory service (fake.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import grpc

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.admin.v1 import admin_service_pb2_grpc as admin_grpc
from memsvc.client.messages import to_plain, vector_array
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2


class FakeAdminCalls(admin_grpc.AdminServiceServicer):
    """Answers from the memories and keys of the service that it is a part of."""

    memories: dict[tuple[str, str], dict[str, pb.Hit]]
    keys: dict[tuple[str, str, str], str]
    rebuilds: list[admin_pb.Rebuild]

    def _enter(self, call: str, request: Any, context: grpc.ServicerContext) -> None:
        raise NotImplementedError

    def ListTenants(
        self, request: admin_pb.ListTenantsRequest, context: grpc.ServicerContext
    ) -> admin_pb.ListTenantsResponse:
        self._enter("ListTenants", request, context)
        rows = sorted(key for key in self.memories if request.tenant in ("", key[0]))
        start = int(request.page_token or 0)
        size = request.page_size or 2
        response = admin_pb.ListTenantsResponse()
        for tenant, agent in rows[start : start + size]:
            count = len(self.memories[tenant, agent])
            response.agents.add(tenant=tenant, agent=agent, memories=count, active=count)
        if start + size < len(rows):
            response.next_page_token = str(start + size)
        return response

    def ExportTenant(
        self, request: admin_pb.ExportTenantRequest, context: grpc.ServicerContext
    ) -> Iterator[admin_pb.ExportTenantResponse]:
        self._enter("ExportTenant", request, context)
        keys = {self.keys[key]: key[2] for key in self.keys}
        rows = [
            ((tenant, agent), hit)
            for (tenant, agent), part in sorted(self.memories.items())
            if tenant == request.tenant and request.agent in ("", agent)
            for hit in part.values()
        ]
        for number, ((tenant, agent), hit) in enumerate(rows, 1):
            line = {
                "namespace": {"tenant": tenant, "agent": agent, "session": hit.session},
                "id": hit.id,
                "status": to_plain(hit)["status"],
                "version": hit.version,
                "dedup_key": keys.get(hit.id, ""),
                "content": hit.content,
                "metadata": to_plain(hit.metadata),
            }
            if request.vectors and hit.HasField("vector"):
                line["vector"] = [float(n) for n in vector_array(hit.vector)]
            yield admin_pb.ExportTenantResponse(
                json=json.dumps(line, ensure_ascii=False), sent=number, total=len(rows)
            )

    def EraseTenant(
        self, request: admin_pb.EraseTenantRequest, context: grpc.ServicerContext
    ) -> admin_pb.EraseTenantResponse:
        self._enter("EraseTenant", request, context)
        gone = [
            key
            for key in self.memories
            if key[0] == request.tenant and request.agent in ("", key[1])
        ]
        erased = sum(len(self.memories[key]) for key in gone)
        if not request.validate_only:
            for key in gone:
                del self.memories[key]
        return admin_pb.EraseTenantResponse(erased=erased, position="p3")

    def SetDegraded(
        self, request: admin_pb.SetDegradedRequest, context: grpc.ServicerContext
    ) -> admin_pb.SetDegradedResponse:
        self._enter("SetDegraded", request, context)
        forced = request.HasField("level")
        degraded = types_pb2.Degraded(level=request.level, reason="FORCED" if forced else "")
        return admin_pb.SetDegradedResponse(degraded=degraded, forced=forced)

    def Inspect(
        self, request: admin_pb.InspectRequest, context: grpc.ServicerContext
    ) -> admin_pb.InspectResponse:
        self._enter("Inspect", request, context)
        return admin_pb.InspectResponse(json='{"log": {"head": 3}, "segments": []}')

    def Maintain(
        self, request: admin_pb.MaintainRequest, context: grpc.ServicerContext
    ) -> admin_pb.MaintainResponse:
        self._enter("Maintain", request, context)
        return admin_pb.MaintainResponse(started=1, idle=request.wait)

    def TakeSnapshot(
        self, request: admin_pb.TakeSnapshotRequest, context: grpc.ServicerContext
    ) -> admin_pb.TakeSnapshotResponse:
        self._enter("TakeSnapshot", request, context)
        return admin_pb.TakeSnapshotResponse(path="/not/here", position=7, epoch=1, bytes=9)

    def StartRebuild(
        self, request: admin_pb.StartRebuildRequest, context: grpc.ServicerContext
    ) -> admin_pb.StartRebuildResponse:
        self._enter("StartRebuild", request, context)
        if request.validate_only:
            return admin_pb.StartRebuildResponse(
                rebuild=admin_pb.Rebuild(segments=4, needed_bytes=3 << 20)
            )
        self.rebuilds[:] = [self.rebuild("RUNNING", 4), self.rebuild("RUNNING", 2)]
        self.rebuilds.append(self.rebuild("DONE", 0))
        return admin_pb.StartRebuildResponse(rebuild=self.rebuilds[0])

    def GetRebuild(
        self, request: admin_pb.GetRebuildRequest, context: grpc.ServicerContext
    ) -> admin_pb.GetRebuildResponse:
        self._enter("GetRebuild", request, context)
        if not self.rebuilds:
            return admin_pb.GetRebuildResponse(rebuild=admin_pb.Rebuild())
        found = self.rebuilds[0] if len(self.rebuilds) == 1 else self.rebuilds.pop(0)
        return admin_pb.GetRebuildResponse(rebuild=found)

    def CancelRebuild(
        self, request: admin_pb.CancelRebuildRequest, context: grpc.ServicerContext
    ) -> admin_pb.CancelRebuildResponse:
        self._enter("CancelRebuild", request, context)
        return admin_pb.CancelRebuildResponse(rebuild=self.rebuild("CANCELLED", 2))

    @staticmethod
    def rebuild(state: str, left: int) -> admin_pb.Rebuild:
        return admin_pb.Rebuild(
            id="1f", state=admin_pb.Rebuild.State.Value(f"STATE_{state}"), segments=4,
            segments_left=left, rows=1000, progress=1 - left / 4, dtype="f16", m=16,
            ef_construction=200,
        )  # fmt: skip

    def Reload(
        self, request: admin_pb.ReloadRequest, context: grpc.ServicerContext
    ) -> admin_pb.ReloadResponse:
        self._enter("Reload", request, context)
        return admin_pb.ReloadResponse(changed=["log.level"], needs_restart=["server.workers"])
