"""Unexpected exceptions of the services between nodes, which no gate guards: logged here, and an
incident id for the caller instead of what gRPC would tell, the text of the exception."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import grpc

from memsvc.rpc import errors

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Incidents(grpc.ServerInterceptor):
    """Guards every call of a server."""

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler of a call, guarded."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        coders = handler.request_deserializer, handler.response_serializer
        guard = _Guard(handler_call_details.method.rpartition("/")[2])
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(guard.one(handler.unary_unary), *coders)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(guard.many(handler.unary_stream), *coders)
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(guard.many(handler.stream_stream), *coders)
        return handler


class _Guard:
    def __init__(self, method: str) -> None:
        self._method = method

    def one(self, inner: Callable[[Any, grpc.ServicerContext], Any]) -> Any:
        @functools.wraps(inner)
        def guarded(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                return inner(request, context)
            except Exception:
                self._end(context)

        return guarded

    def many(self, inner: Callable[[Any, grpc.ServicerContext], Iterator[Any]]) -> Any:
        @functools.wraps(inner)
        def guarded(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            try:
                yield from inner(request, context)
            except Exception:
                self._end(context)

        return guarded

    def _end(self, context: grpc.ServicerContext) -> None:
        ended = context.code() is not None  # type: ignore[attr-defined]  # not in the stubs
        if ended or not context.is_active():
            raise  # noqa: PLE0704  (``abort`` raised what is handled here, or nobody listens)
        errors.abort(context, errors.internal_status(self._method), "")
