"""Vectors that are not in a segment file: those of the tail, and late ones of sealed rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memsvc.segments.quantise import Quantised, int8_dots, quantise, quantise_one
from memsvc.segments.rescore import ANY, rescored, through_copy
from memsvc.segments.topk import best, cosines
from memsvc.segments.vectors import DENSE

Index = NDArray[np.int64]
_FIRST_CHUNK: Final = 16
_CHUNK: Final = 1_024
"""Fixed chunks scan a little slower than one matrix but never stall to be copied."""
_SHARED_LEAST: Final = 4
"""A stretch of less than this part of its chunk is copied when the rest is sealed (255 rows of
1536-d take 0.15 ms): a few rows would keep the whole of it, 7.9 MB, until the next time."""


class Rough(NamedTuple):
    """Cosines of 8-bit copies, float32 (n,), with the scales of the rows (n,) and of the
    query."""

    sims: NDArray[np.float32]
    scales: NDArray[np.float32]
    query_scale: float


@dataclass(frozen=True, slots=True)
class Extra:
    """A snapshot of the vectors: unit float32 rows in ``chunks``, of which ``count`` are
    visible; ``levels`` and ``scales`` their 8-bit copies; ``local`` int64 (count,) the row of
    each within its part."""

    chunks: tuple[NDArray[np.float32], ...]
    levels: tuple[NDArray[np.int8], ...]
    scales: tuple[NDArray[np.float32], ...]
    local: Index
    count: int

    def top(
        self,
        query: NDArray[np.float32],
        mask: NDArray[np.bool_],
        k: int,
        floor: float = ANY,
        rough: Rough | None = None,
        quantised: Quantised | None = None,
    ) -> tuple[Index, NDArray[np.float32]]:
        """The k rows most similar to a unit query among those in ``mask`` (of the part's
        rows), best first: rows of the part and their true cosines. Rows below ``floor`` may
        be left out. ``rough`` is what ``self.rough`` gave, if it was asked before, and
        ``quantised`` what ``quantise_one`` makes of the query, where that is known."""
        keep = np.flatnonzero(mask[self.local])
        if k > 0 and through_copy(len(keep), k):
            # Bound by memory: the 8-bit copy first, what it takes for the best in float32.
            everything = len(keep) == self.count
            if rough is None:
                rough = self.rough(quantised or quantise_one(query))
            found = self._through_copy(query, None if everything else keep, k, floor, rough)
            if found is not None:
                return found
        if len(keep) < DENSE * self.count:
            sims = cosines(self.take(keep), query)
        else:
            sims = self.score_all(query)[keep]
        return best(sims, self.local[keep], k)

    def rough(self, quantised: Quantised) -> Rough:
        """Cosines of the 8-bit copies of all vectors with that of a unit query. The interpreter
        is released for most of the time."""
        query8, query_scale = quantised
        found, left = np.empty(self.count, np.float32), self.count
        scales: list[NDArray[np.float32]] = []
        for levels, of_chunk in zip(self.levels, self.scales, strict=True):
            n = min(left, len(levels))
            if n <= 0:
                break
            int8_dots(levels[:n], query8, found[self.count - left : self.count - left + n])
            scales.append(of_chunk[:n])
            left -= n
        of_rows = scales[0] if len(scales) == 1 else np.concatenate(scales)
        found *= of_rows
        found *= np.float32(query_scale)
        return Rough(found, of_rows, query_scale)

    def _through_copy(
        self,
        query: NDArray[np.float32],
        keep: Index | None,
        k: int,
        floor: float,
        rough: Rough,
    ) -> tuple[Index, NDArray[np.float32]] | None:
        """The k best of some vectors (None = all); None when all should be scored exactly."""
        sims, scales = rough.sims, rough.scales
        if keep is not None:
            sims, scales = sims[keep], scales[keep]

        def exact(places: Index) -> tuple[Index, NDArray[np.float32]]:
            return self.local[places], cosines(self.take(places), query)

        # Ties are ordered by row: `exact` names the vectors by the rows they belong to.
        return rescored(sims, keep, scales, rough.query_scale, k, exact, floor)

    def score_all(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Cosines of all vectors with a unit query, float32 (count,)."""
        found = []
        left = self.count
        for chunk in self.chunks:
            if left <= 0:
                break
            found.append(cosines(chunk[: min(left, len(chunk))], query))
            left -= len(chunk)
        return np.concatenate(found) if found else np.empty(0, np.float32)

    def score(self, local: Index, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Cosine of each of some rows of the part; NaN for those without a vector here."""
        out = np.full(len(local), np.nan, np.float32)
        if not self.count:
            return out
        # Later vectors win, but a row never has two (its vector would be a new row).
        order = np.argsort(self.local, kind="stable")
        at = np.searchsorted(self.local, local, sorter=order)
        at = np.minimum(at, self.count - 1)
        places = order[at]
        has = self.local[places] == local
        if has.any():
            out[has] = cosines(self.take(places[has]), query)
        return out

    def take(self, places: Index) -> NDArray[np.float32]:
        """Vectors by their number, gathered."""
        if len(places) > 1 and (np.diff(places) < 0).any():
            order = np.argsort(places, kind="stable")
            shuffled = np.empty((len(places), self.chunks[0].shape[1]), np.float32)
            shuffled[order] = self.take(places[order])
            return shuffled
        rows = np.empty((len(places), self.chunks[0].shape[1]), np.float32)
        start = low = 0
        for chunk in self.chunks:
            high = int(np.searchsorted(places, start + len(chunk)))
            if high > low:
                # "clip" because the default mode gathers into a second buffer first.
                np.take(chunk, places[low:high] - start, 0, rows[low:high], "clip")
            start, low = start + len(chunk), high
        return rows


NONE: Final = Extra((), (), (), np.empty(0, np.int64), 0)


class ExtraBuilder:
    """Collects vectors; what a snapshot has seen is never moved or overwritten."""

    def __init__(self, dimension: int) -> None:
        self._dimension = dimension
        self._chunks: list[NDArray[np.float32]] = []
        self._levels: list[NDArray[np.int8]] = []
        self._scales: list[NDArray[np.float32]] = []
        self._used = 0
        self._capacity = 0
        self._beside = 0
        """Rows that are not of this part, in chunks of which it has a stretch."""
        self._local = np.empty(0, np.int64)

    @property
    def nbytes(self) -> int:
        """Memory taken by vectors, in bytes, with what shared chunks hold beside them."""
        return (self._used + self._beside) * self._dimension * 5

    def add(self, vectors: Iterable[tuple[int, bytes]]) -> None:
        """Appends (local row, raw float32 bytes) of rows that have none here; each is scaled to
        length 1 in float64."""
        pairs = list(dict(vectors).items())
        if pairs and len(self._local):
            # A refresh that failed half-way is repeated, and brings the same ones again.
            fresh = ~np.isin([local for local, _ in pairs], self._local)
            pairs = [pair for pair, new in zip(pairs, fresh.tolist(), strict=True) if new]
        if not pairs:
            return
        raw = np.frombuffer(b"".join(data for _, data in pairs), np.float32)
        wide = raw.reshape(len(pairs), self._dimension).astype(np.float64)
        unit = (wide / np.sqrt(np.vecdot(wide, wide))[:, None]).astype(np.float32)
        self._append(
            np.fromiter((local for local, _ in pairs), np.int64, len(pairs)), unit, *quantise(unit)
        )

    def behind(self, skip: int) -> ExtraBuilder:
        """The vectors of the part's rows from ``skip`` on, under their places there. They are
        shared, not copied, wherever a long stretch of a chunk stays: queries wait for this."""
        fresh = ExtraBuilder(self._dimension)
        local, start = self._local - skip, 0
        for chunk, levels, scales in zip(self._chunks, self._levels, self._scales, strict=True):
            kept = np.flatnonzero(local[start : start + len(chunk)] >= 0)
            start += len(chunk)
            if not len(kept):
                continue
            low, high = int(kept[0]), int(kept[-1]) + 1
            whole = len(chunk if chunk.base is None else chunk.base)
            shared = high - low == len(kept) and len(kept) * _SHARED_LEAST >= whole
            here = slice(low, high) if shared else kept
            fresh._beside += whole - len(kept) if shared else 0
            fresh._chunks.append(chunk[here])
            fresh._levels.append(levels[here])
            fresh._scales.append(scales[here])
        fresh._local = local[local >= 0]
        # What is behind the shared rows belongs to the builder they come from.
        fresh._used = fresh._capacity = len(fresh._local)
        return fresh

    def _append(
        self,
        local: Index,
        unit: NDArray[np.float32],
        levels: NDArray[np.int8],
        scales: NDArray[np.float32],
    ) -> None:
        done = 0
        while done < len(unit):
            if self._used == self._capacity:
                rows = min(_CHUNK, max(_FIRST_CHUNK, self._capacity, len(unit) - done))
                self._chunks.append(np.empty((rows, self._dimension), np.float32))
                self._levels.append(np.empty((rows, self._dimension), np.int8))
                self._scales.append(np.empty(rows, np.float32))
                self._capacity += rows
            last = len(self._chunks[-1])
            start = last - (self._capacity - self._used)
            n = min(len(unit) - done, last - start)
            for held, new in (
                (self._chunks[-1], unit),
                (self._levels[-1], levels),
                (self._scales[-1], scales),
            ):
                held[start : start + n] = new[done : done + n]
            self._used += n
            done += n
        self._local = np.concatenate((self._local, local))

    def snapshot(self) -> Extra:
        """What is there now."""
        if not self._used:
            return NONE
        return Extra(
            tuple(self._chunks), tuple(self._levels), tuple(self._scales), self._local, self._used
        )
