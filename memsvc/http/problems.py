"""Domain errors as RFC 9457 problem documents."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Final

from memsvc.domain.errors import Code, MemsvcError
from memsvc.http.render import dumps
from memsvc.service.edge import clean

MEDIA_TYPE: Final = "application/problem+json"

STATUSES: Final[dict[Code, int]] = {
    Code.INVALID_ARGUMENT: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.ABORTED: 409,
    # Not 412: that is about If-Match and its relatives, which are not used here. The member
    # "code" tells the two kinds of 409 apart.
    Code.FAILED_PRECONDITION: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.CANCELLED: 499,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}
"""HTTP status by code."""

REASON_STATUSES: Final = {
    "BODY_TOO_LARGE": 413,
    "BODY_TIMEOUT": 408,
    "CONTENT_TYPE": 415,
    "METHOD_NOT_ALLOWED": 405,
    "HOST_REFUSED": 403,
}
"""Reasons of HTTP alone whose status is not that of their code."""

TITLES: Final[dict[Code, str]] = {
    Code.INVALID_ARGUMENT: "The request is not valid",
    Code.UNAUTHENTICATED: "A valid token is needed",
    Code.PERMISSION_DENIED: "The token does not allow this",
    Code.NOT_FOUND: "Not found",
    Code.ABORTED: "Something changed in between",
    Code.FAILED_PRECONDITION: "The node is not in the state the call needs",
    Code.RESOURCE_EXHAUSTED: "A limit was met",
    Code.CANCELLED: "The caller went away",
    Code.UNIMPLEMENTED: "Not implemented",
    Code.UNAVAILABLE: "Not available now",
    Code.DEADLINE_EXCEEDED: "Out of time",
}

_DEFAULT_RETRY_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem document, ready to send."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def status_of(error: MemsvcError) -> int:
    """The HTTP status of an error."""
    return REASON_STATUSES.get(error.reason) or STATUSES[error.code]


def problem(
    error: MemsvcError, instance: str, request_id: str, token_header: str = "X-Memory-Token"
) -> Problem:
    """The document of an error. ``instance`` is the path of the call."""
    status = status_of(error)
    document: dict[str, Any] = {
        "type": f"urn:memsvc:error:{error.reason}",
        "title": TITLES[error.code],
        "status": status,
        "detail": clean(error.message, 2_000),
        "instance": instance,
        "code": error.code.value,
        "reason": error.reason,
        "request_id": request_id,
    }
    headers = {"Cache-Control": "no-store"}
    if error.hint:
        document["hint"] = clean(error.hint, 1_000)
    if error.violations:
        document["violations"] = [
            {"field": clean(v.field, 400), "description": clean(v.description, 400)}
            for v in error.violations
        ]
    if error.metadata:
        document["metadata"] = {k: clean(v, 200) for k, v in error.metadata.items()}
    retry = error.retry_after_ms
    if retry is None and status in (429, 503) and error.code is Code.UNAVAILABLE:
        retry = _DEFAULT_RETRY_MS
    if retry is not None:
        document["retry_after_ms"] = retry
        # Whole seconds is all this header can say; the member has the milliseconds.
        headers["Retry-After"] = str(max(1, math.ceil(retry / 1_000)))
    if status == 401:
        headers["WWW-Authenticate"] = f'MemoryToken realm="memsvc", header="{token_header}"'
    if status in (408, 413):
        # The rest of the body was not read, so the connection cannot be used again.
        headers["Connection"] = "close"
    return Problem(status, dumps(document), headers)


def internal(incident: str, instance: str, request_id: str) -> Problem:
    """The document of an unexpected exception, of which only the incident id is told."""
    document = {
        "type": "urn:memsvc:error:INTERNAL",
        "title": "Internal error",
        "status": 500,
        "detail": f"internal error; the server's log has it as incident {incident}",
        "instance": instance,
        "code": "INTERNAL",
        "reason": "INTERNAL",
        "request_id": request_id,
        "metadata": {"incident": incident},
    }
    return Problem(500, dumps(document), {"Cache-Control": "no-store"})
