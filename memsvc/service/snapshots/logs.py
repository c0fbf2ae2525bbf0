"""Logs as they are found in snapshots and data directories: which continue which, what is
where, and what was erased in them later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from memsvc.domain.log import Action
from memsvc.domain.types import Status
from memsvc.store.snapshot import Snapshot

NOTHING: Final = bytes(16)
"""The digest before the first entry."""


def digest_at(log: Snapshot, position: int) -> bytes:
    """The running digest after a position, b"" when the log does not reach it."""
    if position == 0:
        return NOTHING
    found = log.entry(position) if position <= log.position else None
    return b"" if found is None else found[2]


def fork(one: Snapshot, other: Snapshot) -> int:
    """The last position at which two logs are the same; 0 when they never were."""
    low, high = 0, min(one.position, other.position)
    while low < high:
        # Digests chain: where two agree, all before agree too.
        middle = (low + high + 1) // 2
        if digest_at(one, middle) == digest_at(other, middle):
            low = middle
        else:
            high = middle - 1
    return low


def position_at(log: Snapshot, time_ms: int) -> int:
    """The last position whose entry is not later than a time (UTC ms); 0 when there is none."""
    low, high = 0, log.position
    while low < high:
        middle = (low + high + 1) // 2
        if time_of(log, middle) <= time_ms:
            low = middle
        else:
            high = middle - 1
    return low


def time_of(log: Snapshot, position: int) -> int:
    """Time of an entry, UTC ms; 0 before the first."""
    found = log.entry(position)
    return 0 if found is None else found[0].time


@dataclass(slots=True)
class Erased:
    """What logs say was erased: when (UTC ms), by memory id, and by memory and row for payloads
    that were dropped on schedule. ``truncated`` are those of versions that were only replaced;
    ``replaced_at`` has the positions at which rows were replaced."""

    memories: dict[bytes, int] = field(default_factory=dict)
    expired: dict[tuple[bytes, int], int] = field(default_factory=dict)
    truncated: dict[tuple[bytes, int], int] = field(default_factory=dict)
    replaced_at: dict[tuple[bytes, int], int] = field(default_factory=dict)

    def read(self, log: Snapshot, after: int, progress: Callable[[int], None]) -> None:
        """Adds what a log says behind a position; ``progress`` is told the entries read."""
        for position in range(after + 1, log.position + 1):
            found = log.entry(position)
            assert found is not None
            entry = found[0]
            for effect in entry.effects:
                key = (effect.id, effect.row)
                if effect.action is Action.FORGET:
                    self.memories.setdefault(effect.id, entry.time)
                elif effect.action is Action.PURGE:
                    where = (
                        self.expired if effect.status_before is Status.EXPIRED else self.truncated
                    )
                    where.setdefault(key, entry.time)
                elif effect.replaces_row:
                    self.replaced_at[effect.id, effect.replaces_row] = position
            progress(1)


def first_erasure(log: Snapshot, positions: Iterable[int]) -> int:
    """Time of the first entry at these positions that erased a payload, 0 when none did."""
    for position in positions:
        found = log.entry(position)
        if found is None:
            return 0
        if any(e.action in (Action.FORGET, Action.PURGE) for e in found[0].effects):
            return found[0].time
    return 0
