"""The services: message in, domain call, message out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from memsvc.domain.errors import MemsvcError
from memsvc.rpc import answers, errors, translate
from memsvc.rpc.calls import control_of, current_call, metadata_of
from memsvc.rpc.checks import read, read_flat
from memsvc.service.access import Gate, Principal
from memsvc.service.limits import Timeouts
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import memory_service_pb2_grpc

S = TypeVar("S", bound="BaseServicer")
R = TypeVar("R")


def answering(method: Callable[[S, Any, Any], R]) -> Callable[[S, Any, Any], R]:
    """Turns what a method raises into a status with details. Nothing internal leaks."""

    @functools.wraps(method)
    def guarded(self: S, request: Any, context: grpc.ServicerContext) -> R:
        try:
            return method(self, request, context)
        except MemsvcError as error:
            self._gate.failed(error)
            status = errors.to_status(error)
        except Exception:
            self._gate.failed(None)
            status = errors.internal_status(method.__name__)
        call = current_call.get()
        errors.abort(context, status, call.request_id if call else "")

    return guarded


class BaseServicer:
    """Who calls, for the servicers of all services."""

    def __init__(self, gate: Gate, timeouts: Callable[[], Timeouts] = Timeouts) -> None:
        self._gate = gate
        self._timeouts = timeouts

    def _principal(self, context: grpc.ServicerContext) -> Principal:
        call = current_call.get()
        if call is not None and call.principal is not None:
            return call.principal
        return self._gate.access.authenticate(self._token(context))

    def _token(self, context: grpc.ServicerContext) -> str | None:
        metadata = metadata_of(context.invocation_metadata())
        return metadata.get(self._gate.access.header.lower())


class MemoryServicer(BaseServicer, memory_service_pb2_grpc.MemoryServiceServicer):
    """memsvc.v1.MemoryService over a Gate. ``timeouts`` is asked at each call, so that a
    reload of the settings takes effect."""

    @answering
    def Write(
        self, request: pb.WriteRequest | bytes, context: grpc.ServicerContext
    ) -> pb.WriteResponse:
        """See the proto."""
        principal = self._principal(context)
        control = control_of(context, self._timeouts().write_ms)
        message = read(pb.WriteRequest, request)
        answer = self._gate.write(principal, translate.write_request(message), control)
        return answers.write_response(answer)

    @answering
    def Query(  # type: ignore[override]  # the answer is serialised already
        self, request: pb.QueryRequest | bytes, context: grpc.ServicerContext
    ) -> bytes:
        """See the proto."""
        principal = self._principal(context)
        control = control_of(context, self._timeouts().read_ms)
        message = read(pb.QueryRequest, request)
        answer = self._gate.query(principal, translate.query_request(message), control)
        return answers.query_response(answer)

    @answering
    def Forget(
        self, request: pb.ForgetRequest | bytes, context: grpc.ServicerContext
    ) -> pb.ForgetResponse:
        """See the proto."""
        principal = self._principal(context)
        control = control_of(context, self._timeouts().write_ms)
        message = read(pb.ForgetRequest, request)
        answer = self._gate.forget(principal, translate.forget_request(message), control)
        return answers.forget_response(answer)

    @answering
    def Health(
        self, request: pb.HealthRequest | bytes, context: grpc.ServicerContext
    ) -> pb.HealthResponse:
        """See the proto."""
        read_flat(pb.HealthRequest, request)
        call = current_call.get()
        principal = call.principal if call else self._gate.access.identify(self._token(context))
        return answers.health_response(self._gate.health(), principal is not None)
