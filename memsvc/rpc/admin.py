"""The administration service: message in, port call, message out."""

from __future__ import annotations

import json
from collections.abc import Iterator

import grpc

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.domain import limits
from memsvc.domain.errors import invalid
from memsvc.domain.filters import text_fits
from memsvc.domain.types import Namespace
from memsvc.rpc import answers
from memsvc.rpc.checks import read_flat
from memsvc.rpc.generations import GenerationCalls
from memsvc.rpc.servicers import answering
from memsvc.service.api import RebuildAnswer
from memsvc.service.limits import check_namespace


class AdminServicer(GenerationCalls):
    """memsvc.admin.v1.AdminService. Calls about one tenant need the admin right there, the
    others need it for the whole node."""

    @answering
    def ListTenants(
        self, request: admin_pb.ListTenantsRequest | bytes, context: grpc.ServicerContext
    ) -> admin_pb.ListTenantsResponse:
        """See the proto."""
        message = read_flat(admin_pb.ListTenantsRequest, request)
        admin, _ = self._admin(context, message.tenant)
        if message.page_size > 10_000:
            raise invalid("page_size", "at most 10,000")
        facts, token = admin.list_tenants(
            message.tenant, message.page_size or 1_000, message.page_token
        )
        response = admin_pb.ListTenantsResponse(next_page_token=token)
        for fact in facts:
            response.agents.add(
                tenant=fact.tenant,
                agent=fact.agent,
                memories=fact.memories,
                active=fact.active,
                bytes=fact.bytes,
            )
        return response

    def ExportTenant(
        self, request: admin_pb.ExportTenantRequest | bytes, context: grpc.ServicerContext
    ) -> Iterator[admin_pb.ExportTenantResponse]:
        """See the proto."""
        # Not a generator itself: refusals come before the first response is asked for.
        return self._export(request, context)

    @answering
    def _begin_export(
        self, request: admin_pb.ExportTenantRequest | bytes, context: grpc.ServicerContext
    ) -> tuple[int, Iterator[dict[str, object]]]:
        message = read_flat(admin_pb.ExportTenantRequest, request)
        admin, _ = self._admin(context, message.tenant, message.agent)
        _check_target(message.tenant, message.agent)
        return admin.export_tenant(message.tenant, message.agent, message.vectors)

    def _export(
        self, request: admin_pb.ExportTenantRequest | bytes, context: grpc.ServicerContext
    ) -> Iterator[admin_pb.ExportTenantResponse]:
        total, memories = self._begin_export(request, context)
        sent = 0
        while True:
            memory = self._next_export(memories, context)
            if memory is None:
                return
            sent += 1
            yield admin_pb.ExportTenantResponse(
                json=json.dumps(memory, ensure_ascii=False), sent=sent, total=total
            )

    @answering
    def _next_export(
        self, memories: Iterator[dict[str, object]], context: grpc.ServicerContext
    ) -> dict[str, object] | None:
        return next(memories, None)

    @answering
    def EraseTenant(
        self, request: admin_pb.EraseTenantRequest | bytes, context: grpc.ServicerContext
    ) -> admin_pb.EraseTenantResponse:
        """See the proto."""
        message = read_flat(admin_pb.EraseTenantRequest, request)
        admin, principal = self._admin(context, message.tenant, message.agent)
        _check_target(message.tenant, message.agent)
        wanted = f"{message.tenant}/{message.agent}" if message.agent else message.tenant
        if message.confirm != wanted:
            raise invalid("confirm", f"must repeat what is erased: {wanted}")
        _check_reason(message.reason)
        namespace = Namespace(message.tenant, message.agent)
        erased, position = admin.erase_tenant(
            self._gate.access.caller(principal, namespace),
            message.tenant,
            message.agent,
            message.validate_only,
            message.reason,
        )
        return admin_pb.EraseTenantResponse(erased=erased, position=position)

    @answering
    def SetDegraded(
        self, request: admin_pb.SetDegradedRequest | bytes, context: grpc.ServicerContext
    ) -> admin_pb.SetDegradedResponse:
        """See the proto."""
        message = read_flat(admin_pb.SetDegradedRequest, request)
        admin, _ = self._admin(context)
        level = message.level if message.HasField("level") else None
        if level is not None and not 0 <= level <= 4:
            raise invalid("level", "0 to 4, or unset for automatic")
        _check_reason(message.reason)
        degraded, forced = admin.set_degraded(level, message.reason)
        return admin_pb.SetDegradedResponse(degraded=answers.degraded(degraded), forced=forced)

    @answering
    def Inspect(
        self, request: admin_pb.InspectRequest | bytes, context: grpc.ServicerContext
    ) -> admin_pb.InspectResponse:
        """See the proto."""
        message = read_flat(admin_pb.InspectRequest, request)
        principal = self._principal(context)
        # The log and the check of the files are not cut by tenant.
        needs_whole = message.log_tail or message.verify or not message.agent
        scope = ("", "") if needs_whole else (message.tenant, message.agent)
        admin, _ = self._admin(context, *scope)
        if message.log_tail > 1_000:
            raise invalid("log_tail", "at most 1,000")
        if message.agent and not message.tenant:
            raise invalid("tenant", "required with agent")
        facts = admin.inspect(
            message.tenant,
            message.agent,
            message.verify,
            message.log_tail,
            message.memory_id,
        )
        if not principal.allows("admin"):
            facts = _within(facts, message.tenant, message.agent)
        return admin_pb.InspectResponse(json=json.dumps(facts, ensure_ascii=False))

    @answering
    def Maintain(
        self, request: admin_pb.MaintainRequest | bytes, context: grpc.ServicerContext
    ) -> admin_pb.MaintainResponse:
        """See the proto."""
        message = read_flat(admin_pb.MaintainRequest, request)
        admin, _ = self._admin(context)
        # Without a deadline a waiting call would hold its thread for as long as it likes.
        wait = min(context.time_remaining() or 0.0, 3_600.0) if message.wait else 0.0
        started, idle = admin.maintain(
            message.seal_min_rows, message.merge_all, message.purge, wait
        )
        return admin_pb.MaintainResponse(started=started, idle=idle)

    @answering
    def StartRebuild(
        self, request: admin_pb.StartRebuildRequest | bytes, context: grpc.ServicerContext
    ) -> admin_pb.StartRebuildResponse:
        """See the proto. It takes disk and processor of the whole node, so it needs the right
        for that, also for one tenant."""
        message = read_flat(admin_pb.StartRebuildRequest, request)
        admin, _ = self._admin(context)
        if message.tenant or message.agent:
            _check_target(message.tenant, message.agent)
        answer = admin.start_rebuild(
            message.tenant, message.agent, message.everything, message.validate_only
        )
        return admin_pb.StartRebuildResponse(rebuild=rebuild_message(answer))

    @answering
    def GetRebuild(
        self, request: admin_pb.GetRebuildRequest | bytes, context: grpc.ServicerContext
    ) -> admin_pb.GetRebuildResponse:
        """See the proto."""
        read_flat(admin_pb.GetRebuildRequest, request)
        admin, _ = self._admin(context)
        return admin_pb.GetRebuildResponse(rebuild=rebuild_message(admin.rebuild()))

    @answering
    def CancelRebuild(
        self, request: admin_pb.CancelRebuildRequest | bytes, context: grpc.ServicerContext
    ) -> admin_pb.CancelRebuildResponse:
        """See the proto."""
        read_flat(admin_pb.CancelRebuildRequest, request)
        admin, _ = self._admin(context)
        return admin_pb.CancelRebuildResponse(rebuild=rebuild_message(admin.cancel_rebuild()))

    @answering
    def Reload(
        self, request: admin_pb.ReloadRequest | bytes, context: grpc.ServicerContext
    ) -> admin_pb.ReloadResponse:
        """See the proto."""
        read_flat(admin_pb.ReloadRequest, request)
        admin, _ = self._admin(context)
        changed, needs_restart = admin.reload()
        return admin_pb.ReloadResponse(changed=changed, needs_restart=needs_restart)

    @answering
    def TakeSnapshot(
        self, request: admin_pb.TakeSnapshotRequest | bytes, context: grpc.ServicerContext
    ) -> admin_pb.TakeSnapshotResponse:
        """See the proto."""
        read_flat(admin_pb.TakeSnapshotRequest, request)
        admin, _ = self._admin(context)
        made = admin.take_snapshot()
        return admin_pb.TakeSnapshotResponse(
            path=made.path,
            position=made.position,
            epoch=made.epoch,
            time=made.time,
            bytes=made.bytes,
        )

    @answering
    def Promote(
        self, request: admin_pb.PromoteRequest | bytes, context: grpc.ServicerContext
    ) -> admin_pb.PromoteResponse:
        """See the proto."""
        message = read_flat(admin_pb.PromoteRequest, request)
        admin, _ = self._admin(context)
        made = admin.promote(message.force, message.accept_loss)
        return admin_pb.PromoteResponse(
            epoch=made.epoch,
            position=made.position,
            former=made.former,
            silent=made.silent,
            may_lack=made.may_lack,
        )


def rebuild_message(answer: RebuildAnswer) -> admin_pb.Rebuild:
    """A rebuild on the wire."""
    facts, progress, plan = answer.facts, answer.facts.progress, answer.facts.plan
    message = admin_pb.Rebuild(
        segments=progress.segments,
        segments_left=progress.segments_left,
        rows=progress.rows,
        rows_left=progress.rows_left,
        progress=progress.share,
        needed_bytes=facts.needed_bytes,
        graphs_outdated=facts.survey.to_rebuild,
        failures=[
            admin_pb.RebuildFailure(
                tenant=f.tenant, agent=f.agent, segment=f.segment, reason=f.reason
            )
            for f in answer.failures
        ],
    )
    if plan is not None:
        message.MergeFrom(
            admin_pb.Rebuild(
                id=plan.id,
                tenant=plan.tenant,
                agent=plan.agent,
                everything=plan.everything,
                dtype=plan.graph.dtype,
                m=plan.graph.m,
                ef_construction=plan.graph.ef_construction,
                started_at=plan.started,
                ended_at=plan.ended,
            )
        )
        if plan.id:
            message.state = admin_pb.Rebuild.State.Value(f"STATE_{plan.state.value}")
    return message


def _within(facts: dict[str, object], tenant: str, agent: str) -> dict[str, object]:
    """What one who may not see the whole node is told: of the partition, and of a memory
    when it is there. One of others looks like one that never was."""
    shown = {"partition": facts.get("partition")}
    life = facts.get("memory")
    if isinstance(life, list):
        shown["memory"] = [e for e in life if (e["tenant"], e["agent"]) == (tenant, agent)]
    return shown


def _check_target(tenant: str, agent: str) -> None:
    # An empty agent means all agents; any name does for the check.
    check_namespace(Namespace(tenant, agent or "any"))


def _check_reason(reason: str) -> None:
    if not text_fits(reason, limits.MAX_REASON_BYTES):
        raise invalid("reason", f"at most {limits.MAX_REASON_BYTES} bytes")
