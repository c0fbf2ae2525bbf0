"""The calls about embedding models: message in, port call, message out."""

from __future__ import annotations

from typing import cast

import grpc

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.admin.v1 import admin_service_pb2_grpc
from memsvc.domain import limits
from memsvc.domain.errors import FailedPrecondition, invalid
from memsvc.domain.filters import text_fits
from memsvc.domain.generations import MIN_COVERAGE, GenerationFacts, NewGeneration
from memsvc.domain.ids import format_id
from memsvc.domain.types import Caller
from memsvc.rpc.checks import read_flat
from memsvc.rpc.servicers import BaseServicer, answering
from memsvc.service.access import Principal
from memsvc.service.api import AdminApi
from memsvc.v1 import types_pb2


class AdminCalls(BaseServicer, admin_service_pb2_grpc.AdminServiceServicer):
    """What all calls of administration begin with."""

    def _admin(
        self, context: grpc.ServicerContext, tenant: str = "", agent: str = ""
    ) -> tuple[AdminApi, Principal]:
        principal = self._principal(context)
        admin = self._gate.admin(principal, tenant, agent)
        if admin is None:
            raise FailedPrecondition("this node has no administration", reason="NO_ADMIN")
        return admin, principal

    def _caller(self, principal: Principal) -> Caller:
        """One who administers the whole node."""
        return Caller(actor=principal.name)


class GenerationCalls(AdminCalls):
    """The part of memsvc.admin.v1.AdminService that is about embedding models."""

    @answering
    def CreateGeneration(
        self,
        request: admin_pb.CreateGenerationRequest | bytes,
        context: grpc.ServicerContext,
    ) -> admin_pb.CreateGenerationResponse:
        """See the proto."""
        message = read_flat(admin_pb.CreateGenerationRequest, request)
        admin, principal = self._admin(context)
        if not text_fits(message.dtype, limits.MAX_EMBEDDING_BYTES):
            raise invalid("dtype", f"one of {', '.join(limits.GRAPH_DTYPES)}")
        wish = NewGeneration(
            message.embedding,
            message.dimension,
            message.current,
            message.dtype,
            message.m,
            message.ef_construction,
        )
        made = admin.generations.create(self._caller(principal), wish, message.validate_only)
        return admin_pb.CreateGenerationResponse(generation=generation_message(made))

    @answering
    def ListGenerations(
        self,
        request: admin_pb.ListGenerationsRequest | bytes,
        context: grpc.ServicerContext,
    ) -> admin_pb.ListGenerationsResponse:
        """See the proto."""
        read_flat(admin_pb.ListGenerationsRequest, request)
        admin, _ = self._admin(context)
        return admin_pb.ListGenerationsResponse(
            generations=map(generation_message, admin.generations.facts())
        )

    @answering
    def SetDefaultGeneration(
        self,
        request: admin_pb.SetDefaultGenerationRequest | bytes,
        context: grpc.ServicerContext,
    ) -> admin_pb.SetDefaultGenerationResponse:
        """See the proto."""
        message = read_flat(admin_pb.SetDefaultGenerationRequest, request)
        admin, principal = self._admin(context)
        made = admin.generations.make_default(
            self._caller(principal),
            message.embedding,
            message.min_coverage if message.HasField("min_coverage") else MIN_COVERAGE,
            message.force,
            message.validate_only,
        )
        return admin_pb.SetDefaultGenerationResponse(generation=generation_message(made))

    @answering
    def DropGeneration(
        self,
        request: admin_pb.DropGenerationRequest | bytes,
        context: grpc.ServicerContext,
    ) -> admin_pb.DropGenerationResponse:
        """See the proto."""
        message = read_flat(admin_pb.DropGenerationRequest, request)
        admin, principal = self._admin(context)
        dropped = admin.generations.drop(
            self._caller(principal), message.embedding, message.confirm, message.validate_only
        )
        return admin_pb.DropGenerationResponse(generation=generation_message(dropped))

    @answering
    def ListLacking(
        self, request: admin_pb.ListLackingRequest | bytes, context: grpc.ServicerContext
    ) -> admin_pb.ListLackingResponse:
        """See the proto."""
        message = read_flat(admin_pb.ListLackingRequest, request)
        admin, _ = self._admin(context, message.tenant, message.agent)
        for field, most in (("embedding", limits.MAX_EMBEDDING_BYTES), ("page_token", 1_024)):
            if not text_fits(getattr(message, field), most):
                raise invalid(field, f"valid UTF-8 of at most {most} bytes")
        found, token = admin.generations.lacking(
            message.tenant,
            message.agent,
            message.embedding,
            message.page_size,
            message.page_token,
        )
        response = admin_pb.ListLackingResponse(next_page_token=token)
        for memory in found:
            response.memories.add(
                namespace=types_pb2.Namespace(
                    tenant=memory.tenant, agent=memory.agent, session=memory.session
                ),
                id=format_id(memory.id),
                version=memory.version,
                status=cast("types_pb2.Status.ValueType", int(memory.status)),
                summary=memory.summary,
                content=memory.content,
            )
        return response


def generation_message(facts: GenerationFacts) -> admin_pb.Generation:
    """A generation on the wire."""
    generation, coverage = facts.generation, facts.coverage
    state = "SERVING" if not generation.dropped else "ERASING" if facts.erasing else "DROPPED"
    return admin_pb.Generation(
        number=generation.number,
        embedding=generation.embedding,
        dimension=generation.dimension,
        is_default=generation.is_default,
        state=admin_pb.Generation.State.Value(f"STATE_{state}"),
        memories=coverage.memories,
        vectors=coverage.vectors,
        coverage=coverage.share,
        eta_ms=facts.eta_ms,
        needed_bytes=facts.needed_bytes,
        dtype=generation.dtype,
        m=generation.m,
        ef_construction=generation.ef_construction,
    )
