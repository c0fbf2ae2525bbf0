"""What the interceptor knows about a call, for the servicer that answers it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass

import grpc

from memsvc.service.access import Principal
from memsvc.service.api import Control

# A client without a deadline has one some 292 years away.
_FAR_SECONDS = 1e9


@dataclass(slots=True)
class Call:
    """One call. ``principal`` is None only for Health without a valid token."""

    name: str
    principal: Principal | None
    request_id: str


current_call: ContextVar[Call | None] = ContextVar("current_call", default=None)


def metadata_of(pairs: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    """Metadata as a mapping; binary values are left out, the last of equal keys counts."""
    return {key: value for key, value in pairs or () if isinstance(value, str)}


def control_of(context: grpc.ServicerContext, most_ms: int) -> Control:
    """Deadline and cancellation of a call: the client's deadline, at most ``most_ms``."""
    remaining = context.time_remaining()
    seconds = most_ms / 1_000
    if remaining is not None and remaining < min(seconds, _FAR_SECONDS):
        seconds = remaining
    deadline = time.monotonic() + seconds
    return Control(deadline, _watch(context, deadline))


def _watch(context: grpc.ServicerContext, deadline: float) -> Callable[[], bool]:
    # A flag set by a callback instead of context.is_active(), which takes a lock that the
    # server's own thread holds while it works for this call. A deadline that passes also ends
    # the call; it then counts as a missed deadline and not as a caller who went away.
    ended: list[bool] = []

    def end() -> None:
        ended.append(True)

    if not context.add_callback(end):
        end()
    return lambda: bool(ended) and time.monotonic() < deadline
