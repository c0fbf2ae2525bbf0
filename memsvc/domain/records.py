"""Rows of a partition as stored: the mutable state, and what a segment is made from.

A *row* is one version of a memory's payload; its number is given in log order within the
partition and never leaves the node. Text and vectors of a row never change; what changes
(status, time, importance, expiry, recalls) is its ``State``. An update of the payload makes
a new row and the old one stops being current.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from memsvc.domain.types import STATUSES, Status

FLAG_CURRENT: Final = 1
"""The row holds the current version of its memory."""
FLAG_ERASED: Final = 2
"""Its payload is gone."""

STATE_STRUCT: Final = struct.Struct("<16sIBBHqqqqqfII")
STATE_DTYPE: Final = np.dtype(
    [
        ("id", "V16"),
        ("version", "<u4"),
        ("status", "u1"),
        ("flags", "u1"),
        ("pad", "<u2"),
        ("created_at", "<i8"),
        ("updated_at", "<i8"),
        ("ts", "<i8"),
        ("expires_at", "<i8"),
        ("recalled_at", "<i8"),
        ("importance", "<f4"),
        ("recall_count", "<u4"),
        ("size", "<u4"),
    ]
)
"""The same bytes for numpy; ``STATE_DTYPE.itemsize == STATE_STRUCT.size == 76``."""


class State(NamedTuple):
    """Mutable state of a row. Times in UTC ms; expires_at 0 = never; size in accounted
    bytes; order of the fields as in STATE_STRUCT."""

    id: bytes
    version: int
    status: int
    flags: int
    pad: int
    created_at: int
    updated_at: int
    ts: int
    expires_at: int
    recalled_at: int
    importance: float
    recall_count: int
    size: int

    def pack(self) -> bytes:
        """The 76 bytes stored."""
        return STATE_STRUCT.pack(*self)

    @property
    def current(self) -> bool:
        """Whether this row is its memory's current version."""
        return bool(self.flags & FLAG_CURRENT)


def unpack_state(data: bytes | memoryview) -> State:
    """The state from its 76 bytes."""
    return State(*STATE_STRUCT.unpack(data))


def status_at(status: int, expires_at: int, now_ms: int) -> Status:
    """Status with expiry counted in: one state machine for every path."""
    if status == Status.ACTIVE and 0 < expires_at <= now_ms:
        return Status.EXPIRED
    return STATUSES[status]


def current_status(state: State, now_ms: int) -> Status:
    """``status_at`` of a record."""
    return status_at(state.status, state.expires_at, now_ms)


@dataclass(slots=True)
class RowRecord:
    """Everything about a row, as the builder reads it. ``head`` is a serialised proto Hit
    (summary, session, metadata without ts and importance); vectors are float32 arrays of
    shape (dimension,) by generation number, as written (not normalised)."""

    row: int
    state: State
    head: bytes
    content: str
    vectors: dict[int, np.ndarray[tuple[int], np.dtype[np.float32]]]
