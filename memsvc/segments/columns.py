"""Columns: for each row its number, id, state, and the fields that never change.

`ColumnSet` answers conditions for all rows at once. It is the same over a segment's file
(`column_file`) and over rows in memory (`ColumnBuilder.snapshot`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.filters import (
    ATTRIBUTE_PREFIX,
    MUTABLE_FIELDS,
    Condition,
    Equals,
    FilterValue,
    In,
)
from memsvc.domain.labels import LABELS
from memsvc.domain.records import STATE_DTYPE, State
from memsvc.segments.dictionary import Codes, Dictionary, Growing, GrowingDictionary
from memsvc.v1 import memory_service_pb2, types_pb2

Mask = NDArray[np.bool_]

FIELDS: Final = ("session", *LABELS, "seq")
"""Immutable fields that always have a column; attributes come by name beside them."""

_CACHED_MASKS: Final = 8
_CODE: Final = np.dtype(np.int32)
_NO_CODE: Final = np.int32(-1)


@dataclass(frozen=True, slots=True)
class Column:
    """``codes`` int32 (count,): each row's value as its code in ``dictionary``, -1 for none."""

    codes: Codes
    dictionary: Dictionary

    def mask(self, condition: Condition) -> Mask:
        """Which rows pass a condition's test: bool (count,)."""
        passing = self.dictionary.passing(condition.test)
        hits = np.flatnonzero(passing)
        if len(hits) == 0:
            return np.zeros(len(self.codes), np.bool_)
        if len(hits) == len(passing):
            return np.ones(len(self.codes), np.bool_)
        if len(hits) == 1:
            only = int(hits[0])
            return np.asarray(self.codes == (only if only < len(passing) - 1 else -1))
        # Code -1 finds the last entry, the answer for "missing".
        return passing[self.codes]


class ColumnSet:
    """Rows of a segment or a tail; local row i is the i-th. Safe for any number of threads.

    ``rows`` int64 (count,), ascending row numbers; ``state`` STATE_DTYPE (count,), as of when
    the rows were read; ``ids`` V16 (count,); ``attributes`` the names that have a column;
    ``complete`` tells that no row has another.
    """

    def __init__(
        self,
        rows: NDArray[np.int64],
        ids: NDArray[np.void],
        state: NDArray[np.void],
        columns: Mapping[str, Column],
        *,
        complete: bool = False,
        cached: bool = True,
    ) -> None:
        self.rows = rows
        self.ids = ids
        self.state = state
        self.count = len(rows)
        self._columns = dict(columns)
        self._complete = complete
        self._cache: OrderedDict[object, Mask] = OrderedDict()
        self._cached = _CACHED_MASKS if cached else 0
        self._lock = threading.Lock()

    @property
    def attributes(self) -> frozenset[str]:
        """Names of the attributes with a column."""
        return frozenset(
            field.removeprefix(ATTRIBUTE_PREFIX)
            for field in self._columns
            if field.startswith(ATTRIBUTE_PREFIX)
        )

    def column(self, field: str) -> Column | None:
        """The column of an immutable field, None when it has none."""
        return self._columns.get(field)

    def mask(self, condition: Condition) -> Mask | None:
        """Which rows pass, bool (count,), read-only; None when the field has no column here
        (an attribute past the most that get one, or one of the fields that change)."""
        column = self._columns.get(condition.field)
        if column is None and self._complete and condition.field.startswith(ATTRIBUTE_PREFIX):
            column = Column(np.broadcast_to(_NO_CODE, self.count), GrowingDictionary())
        if column is None or condition.field in MUTABLE_FIELDS:
            return None
        if not self._cached:
            return column.mask(condition)
        key = _cache_key(condition)
        with self._lock:
            mask = self._cache.get(key)
            if mask is not None:
                self._cache.move_to_end(key)
                return mask
        mask = column.mask(condition)
        mask.flags.writeable = False
        with self._lock:
            self._cache[key] = mask
            if len(self._cache) > self._cached:
                self._cache.popitem(last=False)
        return mask


def _cache_key(condition: Condition) -> object:
    """Conditions that compare equal may still differ: ``True == 1``."""
    test = condition.test
    if isinstance(test, Equals):
        return condition, type(test.value)
    if isinstance(test, In):
        return condition, tuple(map(type, test.values))
    return condition


class Indexed(NamedTuple):
    """Attributes that get a column: ``first`` in any case, others when they first appear, up
    to ``most`` in all."""

    first: tuple[str, ...] = ()
    most: int = 64


EVERY_ATTRIBUTE: Final = Indexed()


class ColumnBuilder:
    """Collects rows in memory; one thread appends, any number use snapshots."""

    def __init__(self, indexed: Indexed) -> None:
        self._attributes = dict.fromkeys(indexed.first)
        self._most = indexed.most
        self._complete = True
        self._rows = Growing(np.dtype(np.int64))
        self._ids = Growing(np.dtype("V16"))
        self._state = Growing(STATE_DTYPE)
        fields = (*FIELDS, *(ATTRIBUTE_PREFIX + name for name in self._attributes))
        self._codes = {field: Growing(_CODE) for field in fields}
        self._dictionaries = {field: GrowingDictionary() for field in fields}

    def __len__(self) -> int:
        return len(self._rows)

    def append(self, row: int, state: State, head: bytes) -> int:
        """Adds a row, whose number is above those before; ``head`` is a serialised Hit.
        Returns its local number. Raises DecodeError when the head is not one."""
        hit = memory_service_pb2.Hit.FromString(head)
        metadata = hit.metadata
        self._add("session", hit.session or None)
        for field in LABELS:
            self._add(field, getattr(metadata, field) or None)
        self._add("seq", metadata.seq if metadata.HasField("seq") else None)
        given = metadata.attributes
        if given:
            self._welcome(given)
        for name in self._attributes:
            # Not by [name], which would add a missing key to the map.
            value = given.get(name)
            self._add(ATTRIBUTE_PREFIX + name, None if value is None else value_of(value))
        self._ids.append(state.id)
        self._state.append(tuple(state))
        self._rows.append(row)  # last: its length is what others go by
        return len(self._rows) - 1

    def _welcome(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._attributes:
                continue
            if len(self._attributes) >= self._most:
                self._complete = False
                return
            field = ATTRIBUTE_PREFIX + name
            # New mappings: whoever takes a snapshot walks over the old ones. No way of copying a
            # dict is one step, since it may collect garbage in between.
            self._dictionaries = {**self._dictionaries, field: GrowingDictionary()}
            column = Growing.filled(_CODE, len(self._rows), -1)
            self._codes = {**self._codes, field: column}
            self._attributes[name] = None

    def snapshot(self, count: int | None = None) -> ColumnSet:
        """The first ``count`` rows (all when None); later appends do not change it."""
        n = len(self._rows) if count is None else count
        held = self._codes
        dictionaries = self._dictionaries  # after the codes: it has all of theirs
        columns = {
            field: Column(codes.view(n), dictionaries[field]) for field, codes in held.items()
        }
        ids, state = self._ids.view(n), self._state.view(n)
        rows, complete = self._rows.view(n), self._complete
        return ColumnSet(rows, ids, state, columns, complete=complete, cached=False)

    def _add(self, field: str, value: FilterValue | None) -> None:
        code = -1 if value is None else self._dictionaries[field].code(value)
        self._codes[field].append(code)

    def values(self, field: str) -> list[FilterValue]:
        """The values of a field by code."""
        return self._dictionaries[field].values

    @property
    def complete(self) -> bool:
        """Whether every attribute of every row has a column."""
        return self._complete

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields with a column."""
        return tuple(self._codes)


def value_of(value: types_pb2.Value) -> FilterValue | None:
    """An attribute's value as filters compare it; None when it has none."""
    kind = value.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "list_value":
        return tuple(value.list_value.values)
    found: Any = getattr(value, kind)
    return found  # type: ignore[no-any-return]  # one of the oneof
