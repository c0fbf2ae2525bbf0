"""An opened segment, and the care of its files.

Every function takes ``root``, the folder that holds all segments; a segment's files are in
``root / meta.name``.

What is checked when:

====================  =======================  ==========================================
file                  at open                  later
====================  =======================  ==========================================
graph                 size, xxh3-128           (a wrong bit could crash the process)
postings, columns     size, xxh3-128
rows, scan            size, footer, small      each block of 64 KiB when first read
                      arrays
any                                            ``verify``: size and xxh3-128 of everything
====================  =======================  ==========================================
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.manifest import COLD, FileMeta, SegmentMeta
from memsvc.segments.arrayfile import ArrayFile
from memsvc.segments.column_file import open_columns
from memsvc.segments.columns import ColumnSet
from memsvc.segments.errors import BadFile, Damage, SegmentDamaged
from memsvc.segments.files import (
    DAMAGED_SUFFIX,
    advise_scattered,
    check_size,
    check_whole,
    fsync_directory,
    map_file,
    map_twice,
)
from memsvc.segments.graph import Graph
from memsvc.segments.guarded import GuardedMatrix
from memsvc.segments.postings import Postings, open_postings
from memsvc.segments.residency import MappedFile
from memsvc.segments.vectors import VectorRows

ROWS_KIND: Final = "rows"
SCAN_KIND: Final = "scan"
ROWS_VERSION: Final = 1
SCAN_VERSION: Final = 1

_Opened = TypeVar("_Opened")


class Segment:
    """The parts of a segment that are sound; a part that is missing or damaged is None and
    listed in ``damaged``. Safe for any number of threads. Nothing needs closing: the maps go
    with the last reference, and a removed file lives until then."""

    def __init__(
        self,
        root: Path,
        meta: SegmentMeta,
        *,
        verify: bool = True,
        analyzer: str | None = None,
    ) -> None:
        self.meta = meta
        self.count = meta.count
        self.columns: ColumnSet | None = None
        self.postings: Postings | None = None
        self._folder = root / meta.name
        self._verify = verify
        self._analyzer = analyzer
        self._lock = threading.Lock()
        self._damaged: tuple[Damage, ...] = ()
        self._rows: dict[int, VectorRows] = {}
        self._graphs: dict[int, Graph] = {}
        self._row_numbers: NDArray[np.int64] | None = None
        self.mapped: list[MappedFile] = []
        """The files of a cold segment; of a hot one the kernel decides what stays in memory."""
        self._open()
        for found in self.mapped:
            found.look()

    @classmethod
    def open(
        cls,
        root: Path,
        meta: SegmentMeta,
        *,
        verify: bool = True,
        analyzer: str | None = None,
    ) -> Segment:
        """Opens what can be opened; never raises for a damaged file. ``verify=False`` trusts
        the files, for those that this process has just written or checked. Postings of other
        rules than ``analyzer`` count as damaged. Raises FilesUnavailable."""
        return cls(root, meta, verify=verify, analyzer=analyzer)

    @property
    def descriptors(self) -> int:
        """File descriptors it holds, at most."""
        return sum(2 if file.kind in (ROWS_KIND, SCAN_KIND) else 1 for file in self.meta.files)

    @property
    def damaged(self) -> tuple[Damage, ...]:
        """Files found missing or damaged so far, at open or later."""
        return self._damaged

    @property
    def row_numbers(self) -> NDArray[np.int64] | None:
        """Row number of each local row, int64 (count,), ascending; from whichever file that
        holds them is sound, None when none is."""
        return self._row_numbers

    @property
    def cold(self) -> bool:
        """Whether its pages are not to be kept in memory."""
        return self.meta.tier == COLD

    def missing(self, kind: str, generation: int) -> float:
        """Share of a file that was not in memory when it was last looked at, 0 to 1; 0 for the
        files of a hot segment."""
        for found in self.mapped:
            if (found.kind, found.generation) == (kind, generation):
                return found.missing
        return 0.0

    def rows(self, generation: int) -> VectorRows | None:
        """The vectors of a generation, None when there are none."""
        return self._rows.get(generation)

    def graph(self, generation: int) -> Graph | None:
        """The graph of a generation, None when there is none (few rows, or damaged)."""
        return self._graphs.get(generation)

    def _open(self) -> None:
        meta = self.meta
        for file in meta.files:
            if file.kind == "columns":
                self.columns = self._part(
                    file, lambda data: open_columns(data, meta.name, meta.count)
                )
            elif file.kind == "postings":
                self.postings = self._part(
                    file,
                    lambda data: open_postings(data, meta.name, meta.count, self._analyzer),
                )
        for part in (self.columns, self.postings):
            if part is not None:
                self._row_numbers = part.rows if isinstance(part, ColumnSet) else part.row_numbers
                break
        for generation in sorted({file.generation for file in meta.files} - {0}):
            self._open_graph(generation, self._open_rows(generation))

    def _open_graph(self, generation: int, expected: dict[str, Any]) -> None:
        file = self.meta.file("graph", generation)
        if file is not None:
            graph = self._part(file, lambda data: Graph(data, expected))
            if graph is not None:
                self._graphs[generation] = graph

    def _open_rows(self, generation: int) -> dict[str, Any]:
        """Opens rows and scan of a generation; returns what the rows file says of itself."""
        file, scan_file = self.meta.file("rows", generation), self.meta.file("scan", generation)
        if file is None:
            return {}
        expected = {"segment": self.meta.name, "generation": generation, "count": self.count}
        found = self._guarded(file, ROWS_VERSION, expected)
        if found is None:
            return {}
        opened, matrix = found
        scan = scales = None
        if scan_file is not None:
            found = self._guarded(scan_file, SCAN_VERSION, expected)
            if found is not None:
                scan, scales = found[1], found[0].array("scales")
        if self._row_numbers is None:
            self._row_numbers = opened.array("row_numbers")
        self._rows[generation] = VectorRows(
            matrix, scan, scales, opened.optional("local"), self.count
        )
        return opened.meta

    def _guarded(
        self, file: FileMeta, version: int, expected: dict[str, Any]
    ) -> tuple[ArrayFile, GuardedMatrix] | None:
        """Opens a rows or scan file."""
        # Weakly, or segment and matrix would keep each other and their maps until the next
        # run of the garbage collector.
        segment, name = weakref.ref(self), self.meta.name

        def on_bad(reason: str) -> NoReturn:
            alive = segment()
            if alive is not None:
                if file.kind == ROWS_KIND:
                    alive._rows.pop(file.generation, None)
                alive._note(file, reason)
            raise SegmentDamaged(name, file, reason)

        try:
            data, scattered = map_twice(self._folder / file.name)
            check_size(data, file)
            opened = ArrayFile(data, file.kind, version, check_sums=self._verify)
            opened.require(**expected)
            mapped = self._note_mapped(file, data, scattered)
            matrix = GuardedMatrix(opened, "vectors", scattered, on_bad, mapped=mapped)
        except BadFile as error:
            self._note(file, str(error))
            return None
        if not self._verify:
            matrix.trust()
        return opened, matrix

    def _note_mapped(self, file: FileMeta, *maps: mmap.mmap) -> MappedFile | None:
        if not self.cold:
            return None
        mapped = MappedFile(self._folder / file.name, file.kind, file.generation, maps)
        self.mapped.append(mapped)
        return mapped

    def _part(self, file: FileMeta, opener: Callable[[mmap.mmap], _Opened]) -> _Opened | None:
        """Opens a file that is checked whole."""
        try:
            data = map_file(self._folder / file.name)
            if self._verify:
                check_whole(data, file)
            else:
                check_size(data, file)
            if self.cold:
                advise_scattered(data)
            found = opener(data)
            self._note_mapped(file, data)
            return found
        except BadFile as error:
            self._note(file, str(error))
            return None

    def _note(self, file: FileMeta, reason: str) -> None:
        with self._lock:
            if all(damage.file != file for damage in self._damaged):
                self._damaged = (*self._damaged, Damage(file, reason))


def verify(root: Path, meta: SegmentMeta) -> list[Damage]:
    """Reads every file of a segment whole and lists those that are missing or not as
    written. For the scrubber, for copies that just arrived, and before a backup. Raises
    FilesUnavailable."""
    found = []
    for file in meta.files:
        try:
            check_whole(map_file(root / meta.name / file.name), file)
        except BadFile as error:
            found.append(Damage(file, str(error)))
    return found


def missing(root: Path, meta: SegmentMeta) -> list[Damage]:
    """Files of a segment that are not there, or not as long as they were written. What is in
    them is not looked at. Raises OSError when it cannot be told."""
    found = []
    for file in meta.files:
        try:
            size = os.stat(root / meta.name / file.name).st_size
        except (FileNotFoundError, NotADirectoryError):
            found.append(Damage(file, "missing"))
            continue
        if size != file.bytes:
            found.append(Damage(file, f"has {size} bytes instead of {file.bytes}"))
    return found


def set_aside(root: Path, meta: SegmentMeta, file: FileMeta) -> Path | None:
    """Renames a damaged file to ``NAME.damaged``, so that it is neither opened again nor
    lost to whoever looks into it. Returns the new path, None when there was no file."""
    path = root / meta.name / file.name
    aside = path.with_name(path.name + DAMAGED_SUFFIX)
    try:
        path.replace(aside)
    except FileNotFoundError:
        return None
    fsync_directory(path.parent)
    return aside
