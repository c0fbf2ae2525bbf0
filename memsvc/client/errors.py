"""What a call was answered with when it was not answered with success."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from memsvc.domain.errors import Violation

_DETAILS_KEY: Final = "grpc-status-details-bin"
_DOMAIN: Final = "memsvc"

_FIELDS: Final = ("reason", "hint", "violations", "retry_after_ms", "metadata")
UNREACHABLE: Final = "UNREACHABLE"
"""Reason of an error that no server gave: nobody answered at the address."""


class ClientError(Exception):
    """A call failed. ``str()`` of it is the message with the reason behind it, "... [REASON]";
    see the fields for the rest."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        reason: str = "",
        hint: str = "",
        violations: tuple[Violation, ...] = (),
        retry_after_ms: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        """Name of the gRPC status, as in "INVALID_ARGUMENT"."""
        self.message = message
        self.reason = reason
        """Machine-readable cause in upper snake case, as in "VERSION_MISMATCH"."""
        self.hint = hint
        """What to do about it, for people. May be empty."""
        self.violations = violations
        """Fields of the request that are wrong, and what is expected there."""
        self.retry_after_ms = retry_after_ms
        """Milliseconds after which the same request may succeed; None = not told."""
        self.metadata = dict(metadata or {})

    def __str__(self) -> str:
        return f"{self.message} [{self.reason or self.code}]"

    def __reduce__(self) -> tuple[object, ...]:
        # As it is made: what a worker raises must reach the process that waits for it.
        values = {name: getattr(self, name) for name in _FIELDS}
        return functools.partial(ClientError, self.code, self.message, **values), ()

    @property
    def unreachable(self) -> bool:
        """True when no memsvc answered at all."""
        return self.reason == UNREACHABLE

    @property
    def retriable(self) -> bool:
        """True when the same request, sent again later, may succeed. Requests of
        MemoryClient carry a request_id, so repeating a write or a forget is safe."""
        return self.code in {"UNAVAILABLE", "DEADLINE_EXCEEDED"} or self.retry_after_ms is not None


def unreachable(address: str, detail: str) -> ClientError:
    """The error of an address where nobody answers."""
    return ClientError(
        "UNAVAILABLE",
        f"no memsvc answers at {address}: {detail}",
        reason=UNREACHABLE,
        hint="check the address (--address, MEMSVC_ADDRESS), whether the service runs "
        "(memsvc serve), whether it is that of gRPC and not of HTTP, whether both sides agree "
        "about TLS, and whether the authority of its certificate is known here (--ca-file)",
    )


def closed() -> ClientError:
    """The error of a call on a client that was closed."""
    return ClientError("CANCELLED", "the client was closed", reason="CLIENT_CLOSED")


def from_rpc(error: grpc.RpcError, address: str) -> ClientError:
    """A failed call in the words of its google.rpc details."""
    # What stubs raise is an RpcError that is a Call as well, which the types cannot say.
    call: Any = error
    code = call.code().name
    message = str(call.details() or code)
    status = _status(call.trailing_metadata() or ())
    if status is None:
        # Without details the answer was made by gRPC itself or by something in between.
        if code == "UNAVAILABLE":
            return unreachable(address, message)
        hint = ""
        if code == "UNIMPLEMENTED":
            hint = (
                f"what answers at {address} is not memsvc, or an older version of it; is there "
                "a proxy in between (http_proxy, no_proxy)?"
            )
        elif code == "DEADLINE_EXCEEDED":
            hint = "the service did not answer in time; a longer --timeout may help"
        return ClientError(code, message, reason=code, hint=hint)
    return _from_details(code, status)


def _status(trailers: Iterable[tuple[str, str | bytes]]) -> status_pb2.Status | None:
    for key, value in trailers:
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                return None
    return None


def _from_details(code: str, status: status_pb2.Status) -> ClientError:
    reason, hint, metadata = "", "", {}
    violations: list[Violation] = []
    retry_after_ms: int | None = None
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        bad = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            if info.domain == _DOMAIN:
                metadata = dict(info.metadata)
                reason, hint = info.reason, metadata.pop("hint", "")
        elif detail.Unpack(bad):
            violations += [Violation(v.field, v.description) for v in bad.field_violations]
        elif detail.Unpack(retry):
            retry_after_ms = retry.retry_delay.ToMilliseconds()
    return ClientError(
        code,
        status.message,
        reason=reason or code,
        hint=hint,
        violations=tuple(violations),
        retry_after_ms=retry_after_ms,
        metadata=metadata,
    )
