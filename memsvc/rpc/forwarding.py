"""Passing calls on to the process that writes, as they came.

A reader answers Query. Every other call goes on, over a socket that only this machine's user
can reach, to the serving process, which treats it like one that reached it directly: token,
limits, metrics, access line. Nothing is parsed here: bytes, metadata, the time left, status,
details and the end of the call pass through in both directions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NoReturn, TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from memsvc.domain.errors import Unavailable
from memsvc.rpc import errors
from memsvc.rpc.errors import DETAILS_KEY, REQUEST_ID_KEY
from memsvc.service.limits import CallPool

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Pairs: TypeAlias = "tuple[tuple[str, str | bytes], ...]"

METADATA_MORE: Final = 4_096
"""Bytes of metadata that the serving process takes beyond what a reader takes of a client."""
HEALTH_S: Final = 2.0
"""Longest time in which the serving process says how it is; one that takes longer hangs."""
_FAR_S: Final = 1e6
_NOT_PASSED: Final = ("user-agent", "te", "content-type", "grpc-", ":")
"""What belongs to the connection and not to the call."""


class Forwarder:
    """A connection to the serving process. ``target`` is its address as gRPC writes it;
    ``workers`` calls go on at once, each of which holds a thread, and ``max_calls`` may go on
    or wait."""

    def __init__(self, target: str, *, max_message_bytes: int, workers: int, max_calls: int):
        self.pool = CallPool(workers, max_calls, "memsvc-forward")
        self._channel = grpc.insecure_channel(
            target,
            [
                ("grpc.max_receive_message_length", max_message_bytes),
                ("grpc.max_send_message_length", max_message_bytes),
                ("grpc.max_metadata_size", 2 * METADATA_MORE + 16_384),
                ("grpc.enable_http_proxy", 0),
                # One connection of its own, and soon again after it was lost.
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.max_reconnect_backoff_ms", 500),
                # The client repeats what may be repeated, and knows what that is.
                ("grpc.enable_retries", 0),
            ],
        )
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)  # has no types

    def serving(self, names: Iterable[str]) -> dict[str, bool]:
        """What the serving process says of each name. Raises grpc.RpcError."""
        return {name: self._serves(name) for name in names}

    def _serves(self, name: str) -> bool:
        request = health_pb2.HealthCheckRequest(service=name)
        answer = self._health.Check(request, timeout=HEALTH_S)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def close(self) -> None:
        """Ends the connection, and breaks off what still goes on."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        self._channel.close()

    def handler(
        self,
        details: grpc.HandlerCallDetails,
        streaming: bool,
        request_id: str,
        saw: Callable[[str], None],
        most_s: float | None = None,
    ) -> tuple[Handler, Any]:
        """A handler that passes the call on, and its behaviour. ``streaming``: the answer is a
        stream. ``saw`` is told which connection called. The serving process has ``most_s`` seconds
        to answer, if the client gives it that long; None = as long as the client gives it."""
        metadata = _passed(details.invocation_metadata, request_id)
        if streaming:
            many: Any = self._channel.unary_stream(details.method)

            def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
                saw(context.peer())
                call = many(request, timeout=_time_left(context), metadata=metadata)
                _cancel_with(context, call)
                try:
                    yield from call
                except grpc.RpcError as error:
                    _end(context, error, request_id)
                _finish(context, call)

            return grpc.unary_stream_rpc_method_handler(stream, None, None), stream
        one: Any = self._channel.unary_unary(details.method)

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            saw(context.peer())
            left = _time_left(context)
            bounded = most_s is not None and (left is None or most_s < left)
            call = one.future(request, timeout=most_s if bounded else left, metadata=metadata)
            _cancel_with(context, call)
            try:
                response: bytes = call.result()
            except (grpc.RpcError, grpc.FutureCancelledError) as error:
                _end(context, error, request_id, hung=bounded)
            _finish(context, call)
            return response

        return grpc.unary_unary_rpc_method_handler(answer, None, None), answer


def _passed(pairs: Iterable[tuple[str, str | bytes]] | None, request_id: str) -> Pairs:
    """The caller's metadata, and the id under which both processes know the call."""
    kept = [
        (key, value)
        for key, value in pairs or ()
        if not key.startswith(_NOT_PASSED) and key != REQUEST_ID_KEY
    ]
    return (*kept, (REQUEST_ID_KEY, request_id))


def _time_left(context: grpc.ServicerContext) -> float | None:
    left = context.time_remaining()
    # A client without a deadline has one some 292 years away.
    return left if left is not None and left < _FAR_S else None


def _cancel_with(context: grpc.ServicerContext, call: Any) -> None:
    """When the caller goes away, the call that was passed on ends too."""

    def cancel() -> None:
        call.cancel()

    if not context.add_callback(cancel):
        cancel()


def _finish(context: grpc.ServicerContext, call: Any) -> None:
    context.set_trailing_metadata(tuple(call.trailing_metadata() or ()))


def _end(
    context: grpc.ServicerContext, error: Any, request_id: str, *, hung: bool = False
) -> NoReturn:
    """Ends the call as the serving process ended it. ``hung``: when its time is up it was not the
    client's, who is told that nobody answers."""
    trailing: Pairs = ()
    with contextlib.suppress(AttributeError):
        trailing = tuple(error.trailing_metadata() or ())
    code = error.code() if isinstance(error, grpc.RpcError) else grpc.StatusCode.CANCELLED
    lost_it = code is grpc.StatusCode.UNAVAILABLE or (
        hung and code is grpc.StatusCode.DEADLINE_EXCEEDED
    )
    if lost_it and not any(key == DETAILS_KEY for key, _ in trailing):
        # Not an answer: there is nobody who could give one.
        lost = Unavailable(
            "the process that writes does not answer; the call may or may not have been carried "
            "out",
            reason="WRITER_UNAVAILABLE",
            hint="send it again with the same request_id and dedup_keys: it is applied once",
            retry_after_ms=1_000,
        )
        errors.abort(context, errors.to_status(lost), request_id)
    context.set_trailing_metadata(trailing)
    message = error.details() if isinstance(error, grpc.RpcError) else "cancelled"
    context.abort(code, message or "")
    raise AssertionError("unreachable: abort raises")
