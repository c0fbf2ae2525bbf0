"""Which rows of a part a query may return: visibility, filters and review right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.filters import MUTABLE_FIELDS, Condition, Filter, conditions, matches, mentions
from memsvc.domain.records import State, current_status
from memsvc.domain.types import Status
from memsvc.segments.masks import evaluate, mask_mutable
from memsvc.service.search.parts import Part
from memsvc.store import heads
from memsvc.store.snapshot import Snapshot

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Reader:
    """What a query asks of every row. ``as_of`` UTC ms or None; times in ms."""

    filters: Filter | None
    now: int
    may_review: bool
    as_of: int | None = None
    all_statuses: bool = False
    """For Forget HARD: whatever is stored, visible or not."""

    @property
    def sees_hidden(self) -> bool:
        """Whether rows that are not active may be returned: only to a reviewer who filters
        by status."""
        return self.all_statuses or (self.may_review and mentions(self.filters, "status"))

    def sees(self, state: State) -> bool:
        """Whether the record is visible at all, filters aside."""
        active = current_status(state, self.now) is Status.ACTIVE
        return (active or self.sees_hidden) and (self.as_of is None or state.ts <= self.as_of)

    def sees_all(self, states: NDArray[Any]) -> Mask:
        """``sees`` of many states (STATE_DTYPE), bool of their shape."""
        ends = states["expires_at"]
        mask: Mask = states["status"] == Status.ACTIVE
        mask &= (ends == 0) | (ends > self.now)
        if self.sees_hidden:
            mask[:] = True
        if self.as_of is not None:
            mask &= states["ts"] <= self.as_of
        return mask

    def passes(self, head: bytes, state: State) -> bool:
        """The whole decision on one record."""
        if not self.sees(state) or self.filters is None:
            return self.sees(state)
        status = current_status(state, self.now)
        return matches(self.filters, heads.field_getter(head, state._replace(status=status)))


@dataclass(frozen=True, slots=True)
class Scope:
    """Rows of a part that may be returned: ``mask`` bool (n,), ``count`` of them. Not
    ``exact``: a superset, each row to be judged on its record."""

    mask: Mask
    count: int
    exact: bool


def scope_of(part: Part, reader: Reader, snapshot: Snapshot) -> Scope:
    """The rows of a part that a reader may see."""
    mutable = part.mutable
    mask, count = mutable.visible(reader.now)
    exact = True
    if reader.filters is not None:
        status = mutable.status_at(reader.now)
        columns = None
        if any_fixed(reader.filters):
            columns = part.columns(snapshot)

        def get(condition: Condition) -> Mask | None:
            if condition.field in MUTABLE_FIELDS:
                return mask_mutable(condition, status, mutable.ts, mutable.importance)
            return None if columns is None else columns.mask(condition)

        passing, exact = evaluate(reader.filters, get, len(part))
        visible = mutable.status != 0 if reader.sees_hidden else mask
        mask = passing & visible
        count = int(np.count_nonzero(mask))
    elif reader.sees_hidden:
        mask = mutable.status != 0
        count = int(np.count_nonzero(mask))
    if reader.as_of is not None:
        mask = mask & (mutable.ts <= reader.as_of)
        count = int(np.count_nonzero(mask))
    return Scope(mask, count, exact)


def any_fixed(node: Filter) -> bool:
    """Whether a filter looks at a field that has no changing column."""
    return any(c.field not in MUTABLE_FIELDS for c in conditions(node))
