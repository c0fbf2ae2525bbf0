"""The columns of a part that change: status, time, importance, expiry.

Never changed in place: a newer position gets new arrays, so that a running query keeps
what its snapshot says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.records import FLAG_CURRENT, FLAG_ERASED, STATE_DTYPE
from memsvc.domain.types import Status

Mask = NDArray[np.bool_]
NEVER: Final = int(np.iinfo(np.int64).max)
"""``first_expiry`` of rows that do not expire."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Mutable:
    """Columns of n rows: ``status`` uint8 (0 = not current, or erased), ``ts`` int64 ms,
    ``importance`` float32, ``expires_at`` int64 ms (0 = never); ``live`` bool: current and
    ACTIVE; ``first_expiry`` the earliest expiry of a live row."""

    status: NDArray[np.uint8]
    ts: NDArray[np.int64]
    importance: NDArray[np.float32]
    expires_at: NDArray[np.int64]
    live: Mask
    live_count: int
    first_expiry: int

    @property
    def nbytes(self) -> int:
        """Memory taken, in bytes."""
        return len(self.status) * 22

    def updated(self, local: NDArray[np.int64], states: NDArray[Any]) -> Mutable:
        """With the states (STATE_DTYPE) of some local rows replaced."""
        arrays: list[NDArray[Any]] = [
            self.status.copy(),
            self.ts.copy(),
            self.importance.copy(),
            self.expires_at.copy(),
        ]
        for array, column in zip(arrays, _columns(states), strict=True):
            array[local] = column
        return _build(*arrays)

    def extended(self, states: NDArray[Any]) -> Mutable:
        """With further rows behind."""
        mine: tuple[NDArray[Any], ...] = (self.status, self.ts, self.importance, self.expires_at)
        return _build(*(np.concatenate(pair) for pair in zip(mine, _columns(states), strict=True)))

    def tail(self, start: int) -> Mutable:
        """Only the rows from ``start`` on."""
        return _build(
            self.status[start:], self.ts[start:], self.importance[start:], self.expires_at[start:]
        )

    def visible(self, now_ms: int) -> tuple[Mask, int]:
        """Rows that are active and not past their expiry, and how many."""
        if now_ms < self.first_expiry:
            return self.live, self.live_count
        mask = self.live & ((self.expires_at == 0) | (self.expires_at > now_ms))
        return mask, int(np.count_nonzero(mask))

    def status_at(self, now_ms: int) -> NDArray[np.uint8]:
        """Status with expiry counted in."""
        if now_ms < self.first_expiry:
            return self.status
        past = self.live & (self.expires_at != 0) & (self.expires_at <= now_ms)
        return np.where(past, np.uint8(Status.EXPIRED), self.status)


def _columns(states: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    current = (states["flags"] & (FLAG_CURRENT | FLAG_ERASED)) == FLAG_CURRENT
    status = np.where(current, states["status"], 0).astype(np.uint8)
    return (
        status,
        states["ts"].astype(np.int64),
        states["importance"].astype(np.float32),
        states["expires_at"].astype(np.int64),
    )


def _build(
    status: NDArray[Any], ts: NDArray[Any], importance: NDArray[Any], expires_at: NDArray[Any]
) -> Mutable:
    live = status == Status.ACTIVE
    expiring = expires_at[live & (expires_at != 0)]
    first = int(expiring.min()) if len(expiring) else NEVER
    return Mutable(status, ts, importance, expires_at, live, int(np.count_nonzero(live)), first)


def from_states(states: NDArray[Any]) -> Mutable:
    """The columns of some states (STATE_DTYPE, shape (n,))."""
    return _build(*_columns(states))


EMPTY: Final = from_states(np.zeros(0, STATE_DTYPE))
