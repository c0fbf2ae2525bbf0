"""When to try again, and when to send less."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final

from memsvc.client.embedders import EmbedderError, EmbedderUnavailable
from memsvc.client.errors import ClientError
from memsvc.client.ingest.importance import IMPORTANT
from memsvc.domain.backoff import backoff_s

LONGEST_PAUSE_S: Final = 60.0
LONGEST_RETRY_S: Final = 10.0
"""Who is asked to wait longer does not wait within a call, but leaves it for later."""

_ABOUT_ITEMS: Final = frozenset({"INVALID_ARGUMENT", "OUT_OF_RANGE"})
_FOR_PEOPLE: Final = frozenset(
    {"UNAUTHENTICATED", "PERMISSION_DENIED", "FAILED_PRECONDITION", "UNIMPLEMENTED"}
)
_TOO_LARGE: Final = "larger than max"
_MISMATCH: Final = "DIMENSION_MISMATCH"
_NO_ROOM: Final = frozenset({"STORE_FULL", "QUOTA_ITEMS", "QUOTA_BYTES", "DISK_FULL"})


def about_items(error: Exception) -> bool:
    """Whether one item of a write is at fault: the others can be written without it. gRPC itself
    says RESOURCE_EXHAUSTED, without a reason of ours, to a message that is too large; but also
    to one call too many, which is no fault of an item."""
    if not isinstance(error, ClientError) or error.reason == _MISMATCH:
        return False
    too_large = error.code == error.reason == "RESOURCE_EXHAUSTED" and _TOO_LARGE in error.message
    return error.code in _ABOUT_ITEMS or too_large


def for_people(error: Exception) -> bool:
    """Whether trying again is vain until somebody changes something."""
    if isinstance(error, ClientError):
        return error.code in _FOR_PEOPLE or error.reason == _MISMATCH
    return isinstance(error, EmbedderError) and not isinstance(error, EmbedderUnavailable)


def overloaded(error: Exception) -> bool:
    """Whether the service would do with less. Not so when it has no room: what is left of a
    full store is not for the important."""
    return (
        isinstance(error, ClientError)
        and error.code == "RESOURCE_EXHAUSTED"
        and error.reason not in _NO_ROOM
    )


def asked_pause_s(error: Exception) -> float:
    """Seconds that the service asks to wait; 0 when it does not say."""
    told = error.retry_after_ms if isinstance(error, ClientError) else None
    return (told or 0) / 1_000


def jittered_backoff_s(first_s: float, attempt: int, random: Callable[[], float]) -> float:
    """Seconds before attempt 1, 2, ...: twice as long each time up to a minute, times 0.5 to 1.5
    at random, so that many clients do not come back at once. ``random`` gives 0 to 1."""
    return backoff_s(attempt, first_s, LONGEST_PAUSE_S) * (0.5 + random())


class Sampler:
    """Lets a share of the less important chunks through: half of it after each overload, half as
    much again after each success. Which, is decided by the key, so that the same chunk meets the
    same fate."""

    LEAST: Final = 1 / 32

    def __init__(self) -> None:
        self.share = 1.0
        """0 to 1."""

    def overloaded(self) -> None:
        """The service had too much to do."""
        self.share = max(self.LEAST, self.share / 2)

    def succeeded(self) -> None:
        """The service took a batch."""
        self.share = min(1.0, self.share * 1.5)

    def keeps(self, key: str, importance: float) -> bool:
        """Whether a chunk is to be sent. Important ones (0.8 and more) always are."""
        if self.share >= 1 or importance >= IMPORTANT:
            return True
        number = int.from_bytes(hashlib.sha256(key.encode()).digest()[-4:])
        return number < self.share * 2**32
