"""Reading rows: states, texts, vectors, whole records, and what changed since a position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from memsvc.domain.log import Generation
from memsvc.domain.records import (
    FLAG_CURRENT,
    FLAG_ERASED,
    STATE_DTYPE,
    RowRecord,
    State,
    unpack_state,
)
from memsvc.domain.types import Status
from memsvc.store import keys
from memsvc.store.keys import Text
from memsvc.store.reading import Reading

T = TypeVar("T")


class Change(NamedTuple):
    """A row whose state changed (generation 0), or that got a late vector."""

    row: int
    generation: int


class RowReads(Reading):
    """The part of a Snapshot that reads rows of a partition."""

    def locate(self, id_bytes: bytes) -> tuple[int, int] | None:
        """Partition and current row of a memory."""
        data = self._txn.get(id_bytes, db=self._t["ids"])
        return None if data is None else keys.LOCATION.unpack(data)

    def state(self, partition: int, row: int) -> State | None:
        """State of a row."""
        data = self._txn.get(keys.row_key(partition, row), db=self._t["states"])
        return None if data is None else unpack_state(data)

    def packed_states(self, partition: int, rows: Iterable[int]) -> list[bytes | None]:
        """States of some rows as stored, in order; None where there is none."""
        get, table, pack = self._txn.get, self._t["states"], keys.ROW.pack
        return [get(pack(partition, row), db=table) for row in rows]

    def raw_states(self, partition: int, rows: Iterable[int]) -> np.ndarray:
        """States of some rows as STATE_DTYPE, in order; a missing one reads as all zero."""
        get, table, pack = self._txn.get, self._t["states"], keys.ROW.pack
        missing = bytes(STATE_DTYPE.itemsize)
        packed = b"".join(get(pack(partition, row), missing, db=table) for row in rows)
        return np.frombuffer(packed, STATE_DTYPE)

    def state_range(self, partition: int, lo: int, hi: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of [lo, hi) that exist: numbers (int64, n) and states (STATE_DTYPE, n)."""
        rows: list[int] = []
        values: list[bytes] = []
        for key, value in self._range("states", keys.row_key(partition, lo), partition, hi):
            rows.append(key)
            values.append(value)
        return np.array(rows, np.int64), np.frombuffer(b"".join(values), STATE_DTYPE)

    def text(self, partition: int, row: int) -> Text | None:
        """Text of a row; None when it was erased."""
        data = self._txn.get(keys.row_key(partition, row), db=self._t["texts"])
        return None if data is None else keys.unpack_text(data)

    def raw_texts(self, partition: int, rows: Iterable[int]) -> list[bytes | None]:
        """Stored texts of some rows, in order, for keys.text_head and keys.unpack_text."""
        pack = keys.ROW.pack
        wanted = [pack(partition, row) for row in rows]
        with self._txn.cursor(self._t["texts"]) as cursor:
            # One call for all: a third of the time of as many gets.
            found = cursor.getmulti(wanted)
        if len(found) == len(wanted):
            return [value for _, value in found]
        known = dict(found)
        return [known.get(key) for key in wanted]

    def text_range(self, partition: int, lo: int, hi: int) -> Iterator[tuple[int, Text]]:
        """Rows of [lo, hi) that have a text, with it."""
        for row, value in self._range("texts", keys.row_key(partition, lo), partition, hi):
            yield row, keys.unpack_text(value)

    def vector(self, generation: int, partition: int, row: int) -> bytes | None:
        """Raw float32 bytes of a row's vector, as written."""
        return self._txn.get(keys.VECTOR.pack(generation, partition, row), db=self._t["vectors"])

    def vectors_of(self, partition: int, row: int) -> dict[int, bytes]:
        """Raw vectors of a row by generation, of those that serve."""
        return self._vectors_of(self.generations(), partition, row)

    def stored_vectors_of(self, partition: int, row: int) -> dict[int, bytes]:
        """These and what is not yet erased of dropped generations."""
        return self._vectors_of(self.all_generations(), partition, row)

    def _vectors_of(
        self, generations: Iterable[Generation], partition: int, row: int
    ) -> dict[int, bytes]:
        found = {}
        for generation in generations:
            data = self.vector(generation.number, partition, row)
            if data is not None:
                found[generation.number] = data
        return found

    def vector_range(
        self, generation: int, partition: int, lo: int, hi: int
    ) -> Iterator[tuple[int, bytes]]:
        """Rows of [lo, hi) that have a vector in a generation, with its raw bytes."""
        start = keys.VECTOR.pack(generation, partition, lo)
        prefix = start[:6]
        with self._txn.cursor(self._t["vectors"]) as cursor:
            if not cursor.set_range(start):
                return
            for key, value in cursor:
                if key[:6] != prefix:
                    return
                row = int.from_bytes(key[6:], "big")
                if row >= hi:
                    return
                yield row, value

    def rows_with_vector(self, generation: int, partition: int, lo: int, hi: int) -> np.ndarray:
        """Rows of [lo, hi) that have a vector in a generation: numbers, int64 (n,)."""
        start, end = (keys.VECTOR.pack(generation, partition, row) for row in (lo, hi))
        rows = []
        with self._txn.cursor(self._t["vectors"]) as cursor:
            if cursor.set_range(start):
                # Keys alone: values of this size have pages of their own.
                for key in cursor.iternext(values=False):
                    if key >= end:
                        break
                    rows.append(int.from_bytes(key[6:], "big"))
        return np.array(rows, np.int64)

    def first_vectors(self, generation: int, most: int) -> tuple[int, list[int]] | None:
        """The first partition with vectors in a generation, and the first rows in it that have
        one, at most so many; None when there are none."""
        prefix = generation.to_bytes(2, "big")
        rows: list[int] = []
        partition = 0
        with self._txn.cursor(self._t["vectors"]) as cursor:
            if cursor.set_range(prefix):
                for key in cursor.iternext(values=False):
                    found, number, row = keys.VECTOR.unpack(key)
                    if found != generation or len(rows) == most or (rows and number != partition):
                        break
                    partition = number
                    rows.append(row)
        return (partition, rows) if rows else None

    def records(
        self,
        partition: int,
        lo: int,
        hi: int,
        generations: Iterable[int],
        wanted: Callable[[int, State], bool] = lambda _row, _state: True,
    ) -> Iterator[RowRecord]:
        """Current rows of [lo, hi) that still have their payload, in order; those that are
        ``wanted``."""
        readers = {g: _Peekable(self.vector_range(g, partition, lo, hi)) for g in generations}
        texts = _Peekable(self.text_range(partition, lo, hi))
        for row, value in self._range("states", keys.row_key(partition, lo), partition, hi):
            state = unpack_state(value)
            if not state.current or not wanted(row, state):
                continue
            text = texts.take(row)
            vectors = {}
            for g, reader in readers.items():
                data = reader.take(row)
                if data is not None:
                    vectors[g] = np.frombuffer(data, np.float32)
            if text is not None:
                yield RowRecord(row, state, text.head, text.content, vectors)

    def changes(self, partition: int, after: int) -> Iterator[Change]:
        """Rows whose state changed, or that got a late vector, after a position."""
        prefix = partition.to_bytes(4, "big")
        with self._txn.cursor(self._t["changes"]) as cursor:
            if not cursor.set_range(keys.CHANGE.pack(partition, after + 1)):
                return
            for key, value in cursor:
                if key[:4] != prefix:
                    return
                for packed in np.frombuffer(value, "<u8").tolist():
                    yield Change(packed & ((1 << 48) - 1), packed >> 48)

    def dedups(self, partition: int, hashes: Iterable[bytes]) -> dict[bytes, bytes]:
        """Ids of the memories that have dedup keys, by the hashes that are found."""
        prefix = partition.to_bytes(4, "big")
        with self._txn.cursor(self._t["dedup"]) as cursor:
            found = cursor.getmulti([prefix + hashed for hashed in hashes])
        return {key[4:]: value for key, value in found}

    def count_changes(self, partition: int, after: int, most: int) -> int:
        """Changes of rows after a position, counted up to ``most``."""
        found = 0
        for _ in self.changes(partition, after):
            found += 1
            if found >= most:
                break
        return found

    def current_rows(self, partition: int, lo: int, hi: int) -> np.ndarray:
        """Rows of [lo, hi) that are current and still have their payload: numbers, int64 (n,)."""
        rows, states = self.state_range(partition, lo, hi)
        found: np.ndarray = rows[states["flags"] & (FLAG_CURRENT | FLAG_ERASED) == FLAG_CURRENT]
        return found

    def living_rows(self, partition: int, lo: int, hi: int, now_ms: int) -> np.ndarray:
        """Of these rows those of memories that have not expired: numbers, int64 (n,)."""
        rows, states = self.state_range(partition, lo, hi)
        kept = states["flags"] & (FLAG_CURRENT | FLAG_ERASED) == FLAG_CURRENT
        over = (states["expires_at"] > 0) & (states["expires_at"] <= now_ms)
        over &= states["status"] == Status.ACTIVE
        found: np.ndarray = rows[kept & ~over & (states["status"] != Status.EXPIRED)]
        return found

    def count_current(self, partition: int, lo: int, hi: int) -> int:
        """Rows of [lo, hi) that are current and still have their payload."""
        return len(self.current_rows(partition, lo, hi))


class _Peekable(Generic[T]):
    """Walks (row, value) pairs that are sorted by row, beside another walk."""

    def __init__(self, pairs: Iterator[tuple[int, T]]) -> None:
        self._pairs = pairs
        self._next: tuple[int, T] | None = next(pairs, None)

    def take(self, row: int) -> T | None:
        """The value of a row; rows before it are passed over."""
        while self._next is not None and self._next[0] < row:
            self._next = next(self._pairs, None)
        if self._next is not None and self._next[0] == row:
            return self._next[1]
        return None
