"""The parts of a partition at one position: sealed segments, and the tail of recent rows.

A part is what the executor searches: row numbers, changing columns, and, where they exist,
a graph, exact vectors, words and fixed columns. Local rows are 0 to n-1 within a part.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.manifest import HOT
from memsvc.domain.records import State
from memsvc.segments.columns import ColumnBuilder, ColumnSet, Indexed
from memsvc.segments.graph import Graph
from memsvc.segments.segment import Segment
from memsvc.segments.vectors import VectorRows
from memsvc.service.search.extra import NONE, Extra, ExtraBuilder
from memsvc.service.search.mutable import EMPTY, Mutable
from memsvc.store import heads, keys
from memsvc.store.snapshot import Snapshot
from memsvc.text.index import TailIndex
from memsvc.text.tokenize import terms

Index = NDArray[np.int64]

_ROW_BYTES = 160
"""Number, id and state of a row, with the spare room of what grows."""
_CODE_BYTES = 4
BLOCK_ROWS: Final = 1_024
"""Rows of the tail whose words are kept together, and let go of together."""
_NO_LENGTHS: Final = np.empty(0, np.int32)


class TailFacets:
    """Words and fixed columns of the tail, read from the records when first asked for.

    Append-only, so parts of older positions see their own rows only. One thread fills at a
    time. Words are kept in blocks of rows, which the tail that is left when the first rows are
    sealed shares: to make them anew would hold up queries.
    """

    def __init__(self, partition: int, indexed: Indexed, start: int) -> None:
        self._partition = partition
        self._start = start
        self._reading = threading.Lock()
        self._blocks: list[TailIndex] = []
        self._before = 0
        """Rows of the first block that are not in this tail."""
        self._coding = threading.Lock()
        self._columns = ColumnBuilder(indexed)
        self._indexed = indexed

    @property
    def start(self) -> int:
        """The row from which on the tail is."""
        return self._start

    @property
    def has_columns(self) -> bool:
        """Whether fixed columns were ever wanted."""
        return bool(len(self._columns))

    def behind(self, start: int, dropped: int) -> TailFacets:
        """Those for the tail from a later row on, without its first ``dropped`` rows: with the
        words that are there, and no columns."""
        fresh = TailFacets(self._partition, self._indexed, start)
        # Without the lock, which is held while thousands of records are read: every query of the
        # agent would wait for that. Words only grow, so a list of now is one that was whole.
        blocks = self._blocks.copy()
        if sum(map(len, blocks)) - self._before > dropped:
            # Both may add to the last block.
            fresh._reading = self._reading
            whole, fresh._before = divmod(self._before + dropped, BLOCK_ROWS)
            fresh._blocks = blocks[whole:]
        return fresh

    def take_columns(self, other: TailFacets) -> None:
        """Has the columns that were made beforehand."""
        self._coding, self._columns = other._coding, other._columns

    @property
    def nbytes(self) -> int:
        """Memory taken, in bytes, approximately."""
        row = _ROW_BYTES + _CODE_BYTES * len(self._columns.fields)
        return sum(block.nbytes for block in self._blocks) + len(self._columns) * row

    @property
    def _words(self) -> int:
        """Rows whose words are there."""
        return sum(map(len, self._blocks)) - self._before

    def lengths(self, rows: Index, snapshot: Snapshot) -> NDArray[np.int32]:
        """Number of words of each of these rows, int32 (n,), which are read where they are not
        yet known; the places in ``rows`` are local rows."""
        with self._reading:
            missing = rows[self._words :]
            for data in snapshot.raw_texts(self._partition, missing.tolist()):
                if not self._blocks or len(self._blocks[-1]) == BLOCK_ROWS:
                    self._blocks.append(TailIndex())
                if data is None:
                    self._blocks[-1].append(())
                    continue
                text = keys.unpack_text(data)
                summary = heads.parse_head(text.head).summary
                self._blocks[-1].append(terms(heads.keyword_text(summary, text.content)))
        found = [block.lengths(BLOCK_ROWS) for block in self._blocks] or [_NO_LENGTHS]
        return np.concatenate(found)[self._before : self._before + len(rows)]

    def postings(self, term: str, count: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """Of the first ``count`` rows those with a term; ``lengths`` must have been called."""
        found = []
        for number, block in enumerate(self._blocks):
            offset = number * BLOCK_ROWS - self._before
            if offset >= count:
                break
            docs, frequencies = block.postings(term, min(BLOCK_ROWS, count - offset))
            if not number and self._before:
                own = np.searchsorted(docs, self._before)
                docs, frequencies = docs[own:], frequencies[own:]
            if len(docs):
                found.append((docs + offset, frequencies))
        if len(found) == 1:
            return found[0]
        if not found:
            return _NO_LENGTHS, _NO_LENGTHS
        return np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found])

    def columns(self, rows: Index, snapshot: Snapshot) -> ColumnSet:
        """The fixed columns of these rows."""
        with self._coding:
            missing = rows[len(self._columns) :]
            wanted = missing.tolist()
            for row, data in zip(wanted, snapshot.raw_texts(self._partition, wanted), strict=True):
                head = b"" if data is None else keys.text_head(data)
                # The changing fields are not asked of these columns.
                self._columns.append(row, _NO_STATE, head)
            return self._columns.snapshot(len(rows))


@dataclass(frozen=True, slots=True)
class Part:
    """A segment (``segment`` set) or the tail (``facets`` set) at one position.

    ``rows`` int64 (n,) ascending row numbers; ``extra`` vectors outside segment files by
    generation.
    """

    name: str
    rows: Index
    mutable: Mutable
    extra: dict[int, Extra] = field(default_factory=dict)
    segment: Segment | None = None
    facets: TailFacets | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tier(self) -> str:
        """Whether it is kept in memory: HOT, or COLD."""
        return HOT if self.segment is None else self.segment.meta.tier

    def vectors(self, generation: int) -> VectorRows | None:
        """Exact vectors from segment files."""
        return None if self.segment is None else self.segment.rows(generation)

    def graph(self, generation: int) -> Graph | None:
        """The graph over them."""
        return None if self.segment is None else self.segment.graph(generation)

    def outside(self, generation: int) -> Extra:
        """Vectors that are in no segment file."""
        return self.extra.get(generation, NONE)

    def columns(self, snapshot: Snapshot) -> ColumnSet | None:
        """Fixed columns, None when their file is unusable."""
        if self.segment is not None:
            return self.segment.columns
        assert self.facets is not None
        return self.facets.columns(self.rows, snapshot)

    def lengths(self, snapshot: Snapshot) -> NDArray[np.int32] | None:
        """Number of terms of each row; None when the words are unusable."""
        if self.segment is not None:
            postings = self.segment.postings
            return None if postings is None else postings.lengths
        assert self.facets is not None
        return self.facets.lengths(self.rows, snapshot)

    def lookup(self, term: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Local rows with a term and its frequencies; call ``lengths`` before."""
        if self.segment is not None:
            assert self.segment.postings is not None
            return self.segment.postings.lookup(term)
        assert self.facets is not None
        return self.facets.postings(term, len(self.rows))

    def scores_of(
        self, generation: int, local: Index, query: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Cosines of some rows with a unit query, wherever their vectors are; NaN for rows
        without one."""
        vectors = self.vectors(generation)
        outside = self.outside(generation)
        if vectors is None:
            return outside.score(local, query)
        sims = vectors.score(local, query)
        if outside.count:
            late = outside.score(local, query)
            sims = np.where(np.isnan(sims), late, sims)
        return sims


_NO_STATE = State(bytes(16), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0, 0)


def changed_rows(part: Part, rows: Iterable[int], snapshot: Snapshot, partition: int) -> Part:
    """The part with the states of some row numbers read again; others are passed over."""
    wanted = np.unique(np.fromiter(rows, np.int64))
    at = np.searchsorted(part.rows, wanted)
    at = np.minimum(at, max(len(part.rows) - 1, 0))
    inside = part.rows[at] == wanted if len(part.rows) else np.zeros(len(wanted), np.bool_)
    local = at[inside]
    if not len(local):
        return part
    packed = snapshot.raw_states(partition, part.rows[local].tolist())
    return replace(part, mutable=part.mutable.updated(local, packed))


@dataclass(slots=True)
class TailBuilder:
    """Grows the tail of a partition as its position advances."""

    partition: int
    indexed: Indexed
    dimensions: dict[int, int]
    start: int
    facets: TailFacets = field(init=False)
    vectors: dict[int, ExtraBuilder] = field(init=False)
    next_row: int = field(init=False)
    part: Part = field(init=False)

    def __post_init__(self) -> None:
        self.facets = TailFacets(self.partition, self.indexed, self.start)
        self.vectors = {g: ExtraBuilder(d) for g, d in self.dimensions.items()}
        self.next_row = self.start
        self.part = Part("tail", np.empty(0, np.int64), EMPTY, {}, None, self.facets)

    def grow(self, snapshot: Snapshot, end: int) -> None:
        """Reads the rows [next_row, end) that exist."""
        if end <= self.next_row:
            return
        rows, states = snapshot.state_range(self.partition, self.next_row, end)
        base = len(self.part.rows)
        place = {row: base + i for i, row in enumerate(rows.tolist())}
        for generation, builder in self.vectors.items():
            builder.add(
                (place[row], data)
                for row, data in snapshot.vector_range(
                    generation, self.partition, self.next_row, end
                )
                if row in place
            )
        self.next_row = end
        self._publish(np.concatenate((self.part.rows, rows)), self.part.mutable.extended(states))

    def rebased(self, start: int, facets: TailFacets | None = None) -> TailBuilder:
        """The tail from a later row on, after the rows before it were sealed; its fixed columns
        are in ``facets``, where those were made before. Nothing is read again or copied, which
        would hold up queries."""
        fresh = TailBuilder(self.partition, self.indexed, self.dimensions, start)
        fresh.next_row = max(start, self.next_row)
        skip = int(np.searchsorted(self.part.rows, start))
        fresh.facets = self.facets.behind(start, skip)
        if facets is not None:
            fresh.facets.take_columns(facets)
        fresh.part = replace(fresh.part, facets=fresh.facets)
        fresh.vectors = {g: b.behind(skip) for g, b in self.vectors.items()}
        fresh._publish(self.part.rows[skip:], self.part.mutable.tail(skip))
        return fresh

    def late(self, snapshot: Snapshot, found: Iterable[tuple[int, int]]) -> None:
        """Adds late vectors, (row, generation), of rows that are already here."""
        known = {row: i for i, row in enumerate(self.part.rows.tolist())}
        for row, generation in found:
            builder = self.vectors.get(generation)
            if row in known and builder is not None:
                data = snapshot.vector(generation, self.partition, row)
                if data is not None:
                    builder.add([(known[row], data)])
        self._publish(self.part.rows, self.part.mutable)

    def _publish(self, rows: Index, mutable: Mutable) -> None:
        extra = {g: b.snapshot() for g, b in self.vectors.items()}
        self.part = replace(self.part, rows=rows, mutable=mutable, extra=extra)

    @property
    def nbytes(self) -> int:
        """Memory taken, in bytes, approximately."""
        return (
            sum(b.nbytes for b in self.vectors.values())
            + self.facets.nbytes
            + self.part.mutable.nbytes
            + self.part.rows.nbytes
            + 2_048
        )
