"""The errors of the interface: what went wrong, in which field, and what to do.

Each carries everything a caller is told; the edges only translate it to gRPC or HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Code(Enum):
    """The status codes memsvc answers with; names as in gRPC."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ABORTED = "ABORTED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    UNAVAILABLE = "UNAVAILABLE"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    CANCELLED = "CANCELLED"
    UNIMPLEMENTED = "UNIMPLEMENTED"


@dataclass(frozen=True, slots=True)
class Violation:
    """One field of a request that is wrong, and what is expected there."""

    field: str
    description: str


class MemsvcError(Exception):
    """Something a caller is told. Raise one of the subclasses."""

    code: Code = Code.UNAVAILABLE
    default_reason = "UNAVAILABLE"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        hint: str = "",
        violations: tuple[Violation, ...] = (),
        retry_after_ms: int | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.hint = hint
        self.violations = violations
        self.retry_after_ms = retry_after_ms
        self.metadata = metadata or {}


class InvalidArgument(MemsvcError):
    """The request can never succeed as it is."""

    code = Code.INVALID_ARGUMENT
    default_reason = "INVALID_ARGUMENT"


class NotFound(MemsvcError):
    """A memory named by id does not exist here (or is not this namespace's)."""

    code = Code.NOT_FOUND
    default_reason = "MEMORY_NOT_FOUND"


class VersionMismatch(MemsvcError):
    """if_version is not the memory's version: read it again, then decide."""

    code = Code.ABORTED
    default_reason = "VERSION_MISMATCH"


class PositionLost(MemsvcError):
    """A position of a history that was abandoned: what was read there may be gone."""

    code = Code.ABORTED
    default_reason = "POSITION_LOST"


class FailedPrecondition(MemsvcError):
    """The node or store is not in the state the call needs."""

    code = Code.FAILED_PRECONDITION
    default_reason = "FAILED_PRECONDITION"


class ResourceExhausted(MemsvcError):
    """A limit was met: rate, quota, queue, size of the store, disk."""

    code = Code.RESOURCE_EXHAUSTED
    default_reason = "RESOURCE_EXHAUSTED"


class PermissionDenied(MemsvcError):
    """The token is known but may not do this here."""

    code = Code.PERMISSION_DENIED
    default_reason = "PERMISSION_DENIED"


class Unauthenticated(MemsvcError):
    """No token, or one that is unknown or past its time."""

    code = Code.UNAUTHENTICATED
    default_reason = "TOKEN_INVALID"


class Unavailable(MemsvcError):
    """Not now: starting, stopping, or lagging. Trying again helps."""

    code = Code.UNAVAILABLE


class StoreUnreadable(Unavailable):
    """The database gives errors instead of what is in it."""

    default_reason = "STORE_UNREADABLE"


class DeadlineExceeded(MemsvcError):
    """The caller's deadline passed; for writes, before anything was applied."""

    code = Code.DEADLINE_EXCEEDED
    default_reason = "DEADLINE_EXCEEDED"


class Cancelled(MemsvcError):
    """The caller went away; work for it was stopped."""

    code = Code.CANCELLED
    default_reason = "CANCELLED"


def invalid(field: str, description: str, hint: str = "") -> InvalidArgument:
    """An InvalidArgument about a single field."""
    return InvalidArgument(
        f"{field}: {description}", hint=hint, violations=(Violation(field, description),)
    )
