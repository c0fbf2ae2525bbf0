"""From rows to the files of a segment. Runs in the builder process.

Rows are streamed: vectors go straight to disk, so memory holds the columns, the words and,
while it is built, the graph. All files are made in ``NAME.tmp``, which is renamed at the end;
what a crash leaves is a ``.tmp`` folder that may be deleted.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.manifest import HOT, FileMeta, GraphSettings, SegmentMeta
from memsvc.domain.records import RowRecord
from memsvc.segments.arrayfile import ArrayFile, ArrayFileWriter
from memsvc.segments.column_file import write_columns
from memsvc.segments.columns import EVERY_ATTRIBUTE, ColumnBuilder, Indexed
from memsvc.segments.files import TEMPORARY_SUFFIX, fsync_directory, map_file
from memsvc.segments.graph import DTYPES, Graph, GraphBuilder
from memsvc.segments.postings import InvertedLike, write_postings
from memsvc.segments.quantise import quantise
from memsvc.segments.segment import (
    ROWS_KIND,
    ROWS_VERSION,
    SCAN_KIND,
    SCAN_VERSION,
    Segment,
)
from memsvc.segments.throttle import Throttle

Terms = Callable[[RowRecord], Sequence[str]]
"""The terms of a row, with repetitions."""
Invert = Callable[[Iterable[Sequence[str]]], InvertedLike]
"""Turns documents into postings, reading them once and in order."""

_ROWS_AT_ONCE: Final = 256
_QUANTISED_AT_ONCE: Final = 1024
_BATCH_SECONDS: Final = 0.1
"""Work between two pauses."""
_SHARE_OF_READING: Final = 0.3
_SHARE_OF_GRAPHS: Final = 0.65

GRAPH_MIN_ROWS: Final = 4_000
"""Vectors from which on a graph is quicker to search than the rows are to scan."""
_BYTES_OF_NUMBER: Final = {"f32": 4, "bf16": 2, "f16": 2, "i8": 1}
"""In a graph."""
COLUMN_BYTES: Final = 8
"""What an attribute takes for a row, about: its code, and a share of the different values."""


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """What to build.

    ``name`` of the segment; the rows of ``partition`` in [row_lo, row_hi) as of log
    ``position``; ``generations``: (number, dimension) of those whose vectors are wanted;
    ``dtype`` of the graphs (f32, bf16, f16, i8), links ``m``, ``ef_construction``; ``own``:
    (generation, dtype, m, ef_construction) of those that have others; a graph from
    ``graph_min_rows`` vectors on, an 8-bit copy for scans from ``scan_min_rows`` on;
    ``indexed`` attributes get a column; ``throttle``: share of the
    time to be busy, 0 to 1; ``analyzer``: name of the rules behind the terms; ``tier``, the time
    ``cold_before`` which what was last used is cold (UTC ms, 0 = nothing is), and ``others``, the
    segments of the other tier: see segments/tiers.py for the rows that these leave out.
    """

    name: str
    partition: int
    row_lo: int
    row_hi: int
    position: int
    generations: tuple[tuple[int, int], ...] = ()
    dtype: str = "i8"
    m: int = 16
    ef_construction: int = 200
    own: tuple[tuple[int, str, int, int], ...] = ()
    graph_min_rows: int = GRAPH_MIN_ROWS
    scan_min_rows: int = 1_000
    indexed: Indexed = EVERY_ATTRIBUTE
    throttle: float = 1.0
    analyzer: str = ""
    tier: str = HOT
    cold_before: int = 0
    others: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}, expected one of {', '.join(DTYPES)}")
        if not 0 < self.throttle <= 1:
            raise ValueError(f"throttle is {self.throttle}, expected above 0 and at most 1")

    def graph(self, generation: int) -> GraphSettings:
        """What the graphs of a generation are built with."""
        for number, dtype, m, ef_construction in self.own:
            if number == generation:
                return GraphSettings(dtype, m, ef_construction)
        return GraphSettings(self.dtype, self.m, self.ef_construction)

    def to_json(self) -> str:
        """For the builder's command line."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> BuildSpec:
        """The reverse. Raises ValueError or TypeError for something else."""
        raw: dict[str, Any] = json.loads(text)
        raw["generations"] = tuple((int(g), int(d)) for g, d in raw["generations"])
        raw["own"] = tuple((int(g), str(t), int(m), int(e)) for g, t, m, e in raw["own"])
        first, most = raw["indexed"]
        raw["indexed"] = Indexed(tuple(first), int(most))
        raw["others"] = tuple(raw["others"])
        return BuildSpec(**raw)


def estimate_bytes(spec: BuildSpec, count: int) -> int:
    """About how many bytes a segment of ``count`` rows will take on disk, rather too many;
    without its words, which take some 6 bytes for each different term of a row."""
    graphs = [(spec.graph(number), dimension) for number, dimension in spec.generations]
    vectors = sum(d * (_BYTES_OF_NUMBER[g.dtype] + 4 + 1) + 12 * g.m + 64 for g, d in graphs)
    return count * (vectors + 160 + COLUMN_BYTES * spec.indexed.most) + (1 << 16)


def build_segment(
    spec: BuildSpec,
    rows: Iterator[RowRecord],
    root: Path,
    terms: Terms,
    invert: Invert,
    progress: Callable[[float], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
    grown_from: SegmentMeta | None = None,
) -> SegmentMeta:
    """Builds the segment in ``root / spec.name`` from rows in ascending order.

    ``grown_from`` is a segment of ``root`` whose graphs may be taken over, where they are sound
    and over exactly the first of the rows; all else is always made from the rows.

    Vectors without a direction are left out (they would spoil the graph), as if the row had
    none. ``progress`` gets the share done, 0 to 1. Raises BuildCancelled when ``cancelled()``
    becomes true, FileExistsError when the segment is there already, ValueError for a vector
    of the wrong dimension or rows out of order.
    """
    final, folder = root / spec.name, root / (spec.name + TEMPORARY_SUFFIX)
    if final.exists():
        raise FileExistsError(final)
    shutil.rmtree(folder, ignore_errors=True)  # of a build that crashed
    folder.mkdir(parents=True)
    builder = _Builder(spec, folder, Throttle(spec.throttle, cancelled), progress)
    first = None if grown_from is None else Segment.open(root, grown_from)
    files = builder.run(rows, terms, invert, first)
    folder.rename(final)
    fsync_directory(root)
    progress(1.0)
    return SegmentMeta(
        spec.name,
        spec.partition,
        spec.row_lo,
        spec.row_hi,
        spec.position,
        len(builder.columns),
        tuple(files),
        spec.tier,
    )


class _Builder:
    def __init__(
        self,
        spec: BuildSpec,
        folder: Path,
        throttle: Throttle,
        progress: Callable[[float], None],
    ) -> None:
        self.columns = ColumnBuilder(spec.indexed)
        self._spec = spec
        self._folder = folder
        self._throttle = throttle
        self._progress = progress
        self._files: list[FileMeta] = []
        self._graphs = 0

    def run(
        self, rows: Iterator[RowRecord], terms: Terms, invert: Invert, first: Segment | None
    ) -> list[FileMeta]:
        with ExitStack() as stack:
            writers = [
                _VectorWriter(stack, self._folder, self._spec.name, number, dimension)
                for number, dimension in self._spec.generations
            ]
            inverted = invert(self._read(rows, terms, writers))
            row_numbers = self.columns.snapshot().rows
            made = []
            for writer in writers:
                dtype = self._spec.graph(writer.generation).dtype
                file = writer.finish(row_numbers, dtype)
                if file is not None:
                    made.append(file)
        for file in made:
            self._files.append(file)
            self._derive(file, row_numbers, first)
        name = self._spec.name
        self._add(
            "postings",
            0,
            "postings.bin",
            write_postings(
                self._folder / "postings.bin", name, inverted, row_numbers, self._spec.analyzer
            ),
        )
        self._add(
            "columns",
            0,
            "columns.bin",
            write_columns(self._folder / "columns.bin", name, self.columns),
        )
        self._throttle.pause()
        return self._files

    def _add(self, kind: str, generation: int, name: str, written: tuple[int, str]) -> None:
        self._files.append(FileMeta(kind, generation, name, *written))

    def _read(
        self, rows: Iterator[RowRecord], terms: Terms, writers: list[_VectorWriter]
    ) -> Iterator[Sequence[str]]:
        """Hands out the terms of each row, and files everything else on the way."""
        span = max(1, self._spec.row_hi - self._spec.row_lo)
        before = self._spec.row_lo - 1
        for record in rows:
            if not before < record.row < self._spec.row_hi:
                raise ValueError(
                    f"row {record.row} after {before} is not in ascending order "
                    f"within [{self._spec.row_lo}, {self._spec.row_hi})"
                )
            before = record.row
            local = self.columns.append(record.row, record.state, record.head)
            for writer in writers:
                vector = record.vectors.get(writer.generation)
                if vector is not None:
                    writer.append(local, vector)
            if local % _ROWS_AT_ONCE == 0:
                self._throttle.pause()
                self._progress(_SHARE_OF_READING * (record.row - self._spec.row_lo) / span)
            yield terms(record)

    def _derive(
        self, file: FileMeta, row_numbers: NDArray[np.int64], first: Segment | None
    ) -> None:
        """The 8-bit copy and the graph of a generation, from its rows file."""
        opened = ArrayFile(
            map_file(self._folder / file.name), ROWS_KIND, ROWS_VERSION, check_sums=False
        )
        vectors = opened.array("vectors")
        local = opened.optional("local")
        if len(vectors) >= self._spec.scan_min_rows:
            self._scan(file.generation, vectors)
        if len(vectors) >= self._spec.graph_min_rows:
            number = np.arange(len(vectors)) if local is None else local
            graph = None
            if first is not None and _begins_with(row_numbers, number, first, file.generation):
                graph = self._reusable(first, file.generation)
            self._graph(file.generation, vectors, number, graph)

    def _scan(self, generation: int, vectors: NDArray[np.float32]) -> None:
        name = f"scan-{generation}.bin"
        scales = np.empty(len(vectors), np.float32)
        with ArrayFileWriter(self._folder / name, SCAN_KIND, SCAN_VERSION) as writer:
            writer.begin("vectors", np.dtype(np.int8), vectors.shape[1])
            for low in range(0, len(vectors), _QUANTISED_AT_ONCE):
                high = low + _QUANTISED_AT_ONCE
                levels, scales[low:high] = quantise(vectors[low:high])
                writer.append(levels)
                self._throttle.pause()
            writer.end()
            writer.add("scales", scales)
            meta = {
                "segment": self._spec.name,
                "generation": generation,
                "count": len(self.columns),
            }
            self._add("scan", generation, name, writer.finish(meta))

    def _reusable(self, first: Segment, generation: int) -> Graph | None:
        """The graph of the first rows, None when there is none or it was built otherwise."""
        file = first.meta.file("graph", generation)
        same = file is not None and file.graph == self._spec.graph(generation)
        return first.graph(generation) if same else None

    def _graph(
        self,
        generation: int,
        vectors: NDArray[np.float32],
        local: NDArray[Any],
        first: Graph | None,
    ) -> None:
        spec, name = self._spec, f"graph-{generation}.usearch"
        built = spec.graph(generation)
        graph = GraphBuilder(vectors.shape[1], built.dtype, built.m, built.ef_construction, first)
        low, batch = graph.vectors, 64
        while low < len(vectors):
            began = time.perf_counter()
            graph.add(local[low : low + batch], vectors[low : low + batch])
            took = time.perf_counter() - began
            low += batch
            # Short enough to be cancelled and throttled.
            batch = max(16, min(4096, int(batch * min(2.0, _BATCH_SECONDS / max(took, 1e-6)))))
            self._throttle.pause()
            done = (self._graphs + min(1.0, low / len(vectors))) / len(spec.generations)
            self._progress(_SHARE_OF_READING + _SHARE_OF_GRAPHS * done)
        self._graphs += 1
        written = graph.save(self._folder / name)
        self._files.append(FileMeta("graph", generation, name, *written, graph=built))


def _begins_with(
    row_numbers: NDArray[np.int64], local: NDArray[Any], first: Segment, generation: int
) -> bool:
    """Whether all rows of ``first``, and those that had a vector there, come first among these,
    so that they have the same local numbers. Not so when one of them has died, or got its
    vector later."""
    before, vectors = first.row_numbers, first.rows(generation)
    if before is None or vectors is None or not np.array_equal(before, row_numbers[: len(before)]):
        return False
    present = vectors.present
    had = np.arange(len(before)) if present is None else np.flatnonzero(present)
    return np.array_equal(had, local[: len(had)]) and bool((local[len(had) :] >= len(before)).all())


class _VectorWriter:
    """Streams one generation's vectors, made unit, into its rows file."""

    def __init__(
        self, stack: ExitStack, folder: Path, segment: str, generation: int, dimension: int
    ) -> None:
        self.generation = generation
        self._dimension = dimension
        self._segment = segment
        self._name = f"rows-{generation}.bin"
        self._writer = stack.enter_context(
            ArrayFileWriter(folder / self._name, ROWS_KIND, ROWS_VERSION)
        )
        self._writer.begin("vectors", np.dtype(np.float32), dimension)
        self._local: list[NDArray[np.int32]] = []
        self._held_local: list[int] = []
        self._held: list[NDArray[np.float32]] = []

    def append(self, local: int, vector: NDArray[np.float32]) -> None:
        if vector.shape != (self._dimension,):
            raise ValueError(
                f"a vector of generation {self.generation} has shape {vector.shape}, "
                f"expected ({self._dimension},)"
            )
        self._held_local.append(local)
        self._held.append(vector)
        if len(self._held) == _ROWS_AT_ONCE:
            self._flush()

    def finish(self, row_numbers: NDArray[np.int64], dtype: str) -> FileMeta | None:
        """Publishes the file; None (and no file) when there was no vector."""
        self._flush()
        vectors = self._writer.end()
        if not vectors:
            return None
        if vectors < len(row_numbers):
            self._writer.add("local", np.concatenate(self._local))
        self._writer.add("row_numbers", row_numbers)
        written = self._writer.finish(
            {
                "segment": self._segment,
                "generation": self.generation,
                "count": len(row_numbers),
                "dimension": self._dimension,
                "vectors": vectors,
                "dtype": dtype,
            }
        )
        return FileMeta("rows", self.generation, self._name, *written)

    def _flush(self) -> None:
        if not self._held:
            return
        # Length in float64, where no square of a float32 overflows or vanishes.
        wide = np.array(self._held, np.float64)
        lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        good = np.isfinite(lengths) & (lengths > 0)
        self._local.append(np.array(self._held_local, np.int32)[good])
        self._writer.append((wide[good] / lengths[good, None]).astype(np.float32))
        self._held_local.clear()
        self._held.clear()
