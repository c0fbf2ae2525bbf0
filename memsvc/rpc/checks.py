"""What a message may not hold because no domain request could express it."""

from __future__ import annotations

from collections.abc import Sized
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from memsvc.domain.errors import InvalidArgument, Violation
from memsvc.service.edge import MAX_VIOLATIONS, refusal

M = TypeVar("M", bound=Message)


class Found:
    """Violations of one request, collected so that a caller learns of all at once."""

    __slots__ = ("violations",)

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def add(self, field: str, description: str) -> None:
        """Notes one; past MAX_VIOLATIONS they are dropped."""
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(Violation(field, description))

    def raise_if_any(self) -> None:
        """Raises InvalidArgument when there is at least one."""
        if self.violations:
            raise refusal(self.violations)

    def few(self, field: str, listed: Sized, most: int, what: str) -> bool:
        """Whether a list or map is short enough to be looked at; notes it when not.

        A message of 16 MB holds eight million empty parts, and looking at each takes a minute.
        """
        if len(listed) <= most:
            return True
        self.add(field, f"at most {most} {what}, got {len(listed)}")
        return False


def known(message: Message, path: str, found: Found, inner: str = "") -> None:
    """Notes fields of a message that this server does not know. Its path is ``path`` and
    ``inner``, which are put together only for that.

    Ignoring them would silently drop what a newer client asked for. 0.3 microseconds a
    message; every message that is read passes here.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown):
        numbers = sorted({unknown[i].field_number for i in range(len(unknown))})
        listed = ", ".join(map(str, numbers[:5]))
        found.add(
            path + inner, f"unknown field number {listed}; is the client newer than the server?"
        )


def read(kind: type[M], request: M | bytes) -> M:
    """The message from its bytes; one that is parsed already is given back.

    Raises InvalidArgument, where gRPC by itself would answer INTERNAL, for bytes that are no
    such message (or hold text that is not UTF-8).
    """
    if isinstance(request, kind):
        return request
    assert isinstance(request, bytes)
    try:
        return kind.FromString(request)
    except DecodeError:
        raise InvalidArgument(
            f"the request is not a valid {kind.DESCRIPTOR.full_name}",
            reason="MALFORMED_REQUEST",
            hint="Text fields must be UTF-8; check that client and server use the same protos.",
        ) from None


def read_flat(kind: type[M], request: M | bytes) -> M:
    """Like ``read``, for messages without messages inside: also refuses unknown fields."""
    message = read(kind, request)
    found = Found()
    known(message, "", found)
    found.raise_if_any()
    return message
