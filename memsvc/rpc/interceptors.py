"""What every gRPC call passes before its servicer: token, request id, drain, room, and what
is measured and logged of it.

A server interceptor runs in the server's one serving thread, before the message is read. So
what is refused here costs no worker and no parsing, and nothing here may block. The call
itself then runs wrapped, in a worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import Message

from memsvc.domain.errors import MemsvcError, Unavailable
from memsvc.rpc import errors
from memsvc.rpc.calls import Call, current_call, metadata_of
from memsvc.rpc.errors import REQUEST_ID_KEY
from memsvc.rpc.forwarding import HEALTH_S, Forwarder
from memsvc.service import logs
from memsvc.service.access import Gate, Principal
from memsvc.service.limits import CallPool
from memsvc.service.traces import NoTracing, Tracing

MEMORY: Final = "/memsvc.v1.MemoryService/"
ADMIN: Final = "/memsvc.admin.v1.AdminService/"
HEALTH_CALL: Final = MEMORY + "Health"
QUERY_CALL: Final = MEMORY + "Query"


Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


@dataclass(slots=True)
class Lanes:
    """Threads for what must not wait behind memory calls, and must not hold their threads.

    ``quick`` answers Health and refusals; ``health`` passes Health on, and waits where the other
    process hangs; ``admin`` runs exports and maintenance, which take long; ``reflection`` is apart
    because its streams hold a thread while they are open.
    """

    quick: ThreadPoolExecutor = field(default_factory=lambda: _lane(2, "quick"))
    health: ThreadPoolExecutor = field(default_factory=lambda: _lane(4, "health"))
    admin: ThreadPoolExecutor = field(default_factory=lambda: _lane(4, "admin"))
    reflection: ThreadPoolExecutor = field(default_factory=lambda: _lane(2, "reflection"))

    def close(self) -> None:
        """Takes no more work."""
        for lane in (self.quick, self.health, self.admin, self.reflection):
            lane.shutdown(wait=False, cancel_futures=True)


def _lane(workers: int, name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix=f"memsvc-{name}")


class CallInterceptor(grpc.ServerInterceptor):
    """Guards and measures the calls of memsvc's own services. With ``forward`` all of them but
    Query are passed on, and measured where they are answered."""

    def __init__(
        self,
        gate: Gate,
        pool: CallPool,
        lanes: Lanes,
        tracing: Tracing | None = None,
        forward: Forwarder | None = None,
    ) -> None:
        self._gate = gate
        self._pool = pool
        self._lanes = lanes
        self._tracing = tracing or NoTracing()
        self._forward = forward
        self._token_key = gate.access.header.lower()
        self.draining = False
        self.refused_at = 0.0
        """When a call was last refused because of draining (monotonic)."""

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler of a call, wrapped; or one that refuses it."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        if not method.startswith((MEMORY, ADMIN)):
            return self._infrastructure(handler)
        started = time.perf_counter()
        metadata = metadata_of(handler_call_details.invocation_metadata)
        call = Call(method.rpartition("/")[2], None, logs.request_id(metadata.get(REQUEST_ID_KEY)))
        if self._forward is not None and method != QUERY_CALL:
            return self._passed_on(self._forward, handler, handler_call_details, call, started)
        lane: ThreadPoolExecutor | None = None
        if method == HEALTH_CALL:
            call.principal = self._gate.access.identify(metadata.get(self._token_key))
            lane = self._lanes.quick
        else:
            try:
                call.principal = self._admit(metadata.get(self._token_key), self._pool)
            except MemsvcError as error:
                return self._refusal(error, call, started)
            if method.startswith(ADMIN):
                lane = self._lanes.admin
        return self._wrapped(handler, call, started, metadata, lane)

    def _passed_on(
        self,
        forward: Forwarder,
        handler: Handler,
        details: grpc.HandlerCallDetails,
        call: Call,
        started: float,
    ) -> Handler:
        """What would be refused for its token is refused here, before its message is read."""
        lane: ThreadPoolExecutor = forward.pool
        most_s: float | None = None
        if details.method == HEALTH_CALL:
            lane, most_s = self._lanes.health, HEALTH_S
        else:
            token = metadata_of(details.invocation_metadata).get(self._token_key)
            try:
                self._admit(token, forward.pool)
            except MemsvcError as error:
                return self._refusal(error, call, started)
            if details.method.startswith(ADMIN):
                lane = self._lanes.admin
        passing, behaviour = forward.handler(
            details,
            handler.response_streaming,
            call.request_id,
            self._gate.metrics.peers.saw,
            most_s,
        )
        _run_in(behaviour, lane)
        return passing

    def _admit(self, token: str | None, pool: CallPool) -> Principal:
        if self.draining:
            self.refused_at = time.monotonic()
            raise Unavailable(
                "the node is shutting down",
                reason="SHUTTING_DOWN",
                retry_after_ms=1_000,
                hint="Connect again; another node or the restarted one will answer.",
            )
        principal = self._gate.access.authenticate(token)
        if pool.full:
            raise pool.refusal()
        return principal

    def _infrastructure(self, handler: Handler) -> Handler:
        coders = (handler.request_deserializer, handler.response_serializer)
        if handler.stream_stream is not None:
            behaviour = _moved(handler.stream_stream, self._lanes.reflection)
            return grpc.stream_stream_rpc_method_handler(behaviour, *coders)
        if handler.unary_unary is not None:
            behaviour = _moved(handler.unary_unary, self._lanes.quick)
            return grpc.unary_unary_rpc_method_handler(behaviour, *coders)
        return handler  # Health.Watch waits without a thread

    def _refusal(self, error: MemsvcError, call: Call, started: float) -> Handler:
        def refuse(_requests: object, context: grpc.ServicerContext) -> Any:
            self._gate.failed(error)
            self._finish(call, error.code.value, started)
            errors.abort(context, errors.to_status(error), call.request_id)

        _run_in(refuse, self._lanes.quick)
        # As a request stream, so that it runs without waiting for a message: a caller who
        # opens calls and sends nothing would hold a thread for each.
        return grpc.stream_unary_rpc_method_handler(refuse)

    def _wrapped(
        self,
        handler: Handler,
        call: Call,
        started: float,
        metadata: dict[str, str],
        lane: ThreadPoolExecutor | None,
    ) -> Handler:
        behaviour: Any
        # The servicer parses the bytes itself: a failing deserializer would end the call as
        # INTERNAL, and would run in the serving thread.
        if handler.response_streaming:
            behaviour = self._streaming(handler.unary_stream, call, started)
            _run_in(behaviour, lane)
            return grpc.unary_stream_rpc_method_handler(
                behaviour, None, handler.response_serializer
            )
        behaviour = self._unary(handler.unary_unary, call, started, metadata)
        _run_in(behaviour, lane)
        return grpc.unary_unary_rpc_method_handler(behaviour, None, _serialised)

    def _unary(
        self, inner: Any, call: Call, started: float, metadata: dict[str, str]
    ) -> Callable[[bytes, grpc.ServicerContext], Any]:
        def run(request: bytes, context: grpc.ServicerContext) -> Any:
            with self._tracing.span(f"memsvc/{call.name}", metadata) as span:
                try:
                    self._begin(call, context)
                    response = inner(request, context)
                except BaseException:
                    code = _code(context)
                    span.set("rpc.response.status_code", code)
                    self._end(call, code, started)
                    raise
                span.set("rpc.response.status_code", "OK")
                self._end(call, "OK", started)
                return response

        return run

    def _streaming(
        self, inner: Any, call: Call, started: float
    ) -> Callable[[bytes, grpc.ServicerContext], Iterator[Any]]:
        def run(request: bytes, context: grpc.ServicerContext) -> Iterator[Any]:
            code = "CANCELLED"  # stays so when the client goes away and the generator is closed
            try:
                self._begin(call, context)
                yield from inner(request, context)
                code = "OK"
            except Exception:
                code = _code(context)
                raise
            finally:
                self._end(call, code, started)

        return run

    def _begin(self, call: Call, context: grpc.ServicerContext) -> None:
        current_call.set(call)
        self._gate.metrics.active_calls.inc()
        peer = context.peer()
        if not peer.startswith("unix:"):  # a reader, which tells of its connections itself
            self._gate.metrics.peers.saw(peer)
        context.set_trailing_metadata(((REQUEST_ID_KEY, call.request_id),))

    def _end(self, call: Call, code: str, started: float) -> None:
        self._gate.metrics.active_calls.dec()
        current_call.set(None)
        self._finish(call, code, started)

    def _finish(self, call: Call, code: str, started: float) -> None:
        seconds = time.perf_counter() - started
        self._gate.metrics.call(call.name, code, seconds)
        logs.access(
            request_id=call.request_id,
            call=call.name,
            code=code,
            seconds=seconds,
            token=call.principal.name if call.principal else "",
            protocol="grpc",
        )


def _serialised(response: Message | bytes) -> bytes:
    # Answers to queries are written as bytes at once.
    return response if isinstance(response, bytes) else response.SerializeToString()


def _moved(inner: Any, lane: ThreadPoolExecutor) -> Any:
    def behaviour(request: Any, context: grpc.ServicerContext) -> Any:
        return inner(request, context)

    _run_in(behaviour, lane)
    return behaviour


def _run_in(behaviour: Any, lane: ThreadPoolExecutor | None) -> None:
    # grpc reads this attribute of a behaviour; a version that would not runs it in the
    # common pool, which is slower under load and nothing worse.
    if lane is not None:
        behaviour.experimental_thread_pool = lane


def _code(context: grpc.ServicerContext) -> str:
    code = context.code()  # type: ignore[attr-defined]  # not in the stubs
    return code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
