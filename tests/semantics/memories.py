"""A memory as the model keeps it, and what filters mean on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memsvc.domain import filters as f
from memsvc.domain.types import Status, Vector
from memsvc.text.tokenize import terms


class Refused(Exception):
    """The service must refuse the request with this status code."""


@dataclass(frozen=True)
class Memory:
    """One memory. ``row`` is the order that breaks ties; ``summary`` as it was given."""

    id: str
    row: int
    version: int
    status: Status
    ts: int
    importance: float
    expires_at: int
    recalled_at: int
    created_at: int
    updated_at: int
    content: str
    summary: str
    session: str
    fields: dict[str, Any]
    vector: Vector | None
    recall_count: int = 0
    erased: bool = False

    @property
    def shown(self) -> str:
        """The summary as it is answered."""
        return self.summary if self.summary.strip() else self.content[:240]

    @property
    def words(self) -> list[str]:
        """The terms it is found by."""
        return terms(self.summary if self.summary.strip() else self.content)

    def value(self, name: str, now: int) -> Any:
        """What a filter sees in a field; None = missing."""
        if name == "status":
            return self.status_at(now).name.lower()
        if name in ("ts", "importance", "session"):
            return getattr(self, name) or (None if name == "session" else getattr(self, name))
        return self.fields.get(name)

    def status_at(self, now: int) -> Status:
        """Status with the lifetime counted in."""
        if self.status is Status.ACTIVE and 0 < self.expires_at <= now:
            return Status.EXPIRED
        return self.status


def f32(number: float) -> float:
    """As float32 keeps it."""
    return float(np.float32(number))


def passes(node: f.Filter | None, memory: Memory, now: int) -> bool:
    """Whether a memory matches a filter (status values are names)."""
    if node is None:
        return True
    if isinstance(node, f.And):
        return all(passes(n, memory, now) for n in node.filters)
    if isinstance(node, f.Or):
        return any(passes(n, memory, now) for n in node.filters)
    if isinstance(node, f.Not):
        return not passes(node.filter, memory, now)
    value, test = memory.value(node.field, now), node.test
    if isinstance(test, f.Exists):
        return test.wanted is (value is not None)
    if value is None:
        return False
    if isinstance(test, f.Equals):
        return _is(value, test.value)
    if isinstance(test, f.In):
        return any(_is(value, wanted) for wanted in test.values)
    bounds: list[tuple[Any, Callable[[Any, Any], bool]]] = [
        (test.gt, lambda a, b: a > b),
        (test.gte, lambda a, b: a >= b),
        (test.lt, lambda a, b: a < b),
        (test.lte, lambda a, b: a <= b),
    ]
    return all(
        _kind(value) == _kind(b) != 2 and holds(value, b) for b, holds in bounds if b is not None
    )


def _is(value: Any, wanted: Any) -> bool:
    if isinstance(value, tuple) and not isinstance(wanted, tuple):
        return any(_kind(wanted) == 1 and member == wanted for member in value)
    return _kind(value) == _kind(wanted) and bool(value == wanted)


def _kind(value: Any) -> int:
    """0 number, 1 text, 2 what has no order, told apart further by its type."""
    if isinstance(value, bool):
        return 2
    if isinstance(value, tuple):
        return 3
    return 1 if isinstance(value, str) else 0


@dataclass
class Partition:
    """Memories of one tenant and agent by id; ``next_row`` counts versions of payloads."""

    memories: dict[str, Memory] = field(default_factory=dict)
    dedup: dict[str, str] = field(default_factory=dict)
    next_row: int = 1
    expired: list[tuple[int, int, str]] = field(default_factory=list)
    """When (ms) a row became EXPIRED, the row, and its memory."""

    def copy(self) -> Partition:
        return Partition(dict(self.memories), dict(self.dedup), self.next_row, list(self.expired))
