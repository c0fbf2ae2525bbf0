"""The manifest: which immutable segment files answer for which rows of a partition."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

MANIFEST_FORMAT: Final = 1

HOT: Final = "hot"
COLD: Final = "cold"
"""Tiers of segments: what a cold one has is not kept in memory (see domain/tiering.py)."""


@dataclass(frozen=True, slots=True)
class GraphSettings:
    """What a graph was built with: number format, links of a row, and candidates looked at when
    a row is linked."""

    dtype: str
    m: int
    ef_construction: int


@dataclass(frozen=True, slots=True)
class FileMeta:
    """One file of a segment. ``kind`` is rows, scan, graph, postings or columns; ``generation``
    0 for files that hold no vectors; ``checksum`` the xxh3-128 of the whole file in hex;
    ``graph`` what a graph was built with, None where that was not written down."""

    kind: str
    generation: int
    name: str
    bytes: int
    checksum: str
    graph: GraphSettings | None = None


@dataclass(frozen=True, slots=True)
class SegmentMeta:
    """A sealed segment: the live rows of [row_lo, row_hi) as of log position
    ``position``, or those of them that belong to its ``tier``. ``name`` is its directory below
    ``segments/``; ``count`` its rows."""

    name: str
    partition: int
    row_lo: int
    row_hi: int
    position: int
    count: int
    files: tuple[FileMeta, ...]
    tier: str = HOT

    @property
    def size(self) -> int:
        """Bytes of all its files."""
        return sum(f.bytes for f in self.files)

    def file(self, kind: str, generation: int = 0) -> FileMeta | None:
        """Its file of a kind, None when there is none."""
        for f in self.files:
            if f.kind == kind and f.generation == generation:
                return f
        return None

    def outdated(self, wanted: Mapping[int, GraphSettings]) -> bool:
        """Whether it has a graph that would be built differently now, or may be; ``wanted`` by
        generation."""
        return any(
            f.kind == "graph" and f.generation in wanted and f.graph != wanted[f.generation]
            for f in self.files
        )

    def with_vectors_of(self, generations: Collection[int]) -> SegmentMeta:
        """The segment without the vector files of other generations."""
        files = tuple(f for f in self.files if f.generation in (0, *generations))
        return self if len(files) == len(self.files) else replace(self, files=files)

    def to_json(self) -> bytes:
        """The form that is stored."""
        raw = asdict(self)
        if self.tier == HOT:
            del raw["tier"]
        for file in raw["files"]:
            # Versions before it was written down refuse names that they do not know.
            if file["graph"] is None:
                del file["graph"]
        return json.dumps({"format": MANIFEST_FORMAT, **raw}).encode()


def segment_from_json(data: bytes | str) -> SegmentMeta:
    """The segment from its stored form; what a later version added is passed over. Raises
    ValueError for another format."""
    raw: dict[str, Any] = json.loads(data)
    if raw.pop("format", None) != MANIFEST_FORMAT:
        raise ValueError(f"segment manifest format is not {MANIFEST_FORMAT}")
    files = tuple(_file(f) for f in raw.pop("files"))
    return SegmentMeta(**{k: v for k, v in raw.items() if k in _SEGMENT_FIELDS}, files=files)


_SEGMENT_FIELDS: Final = frozenset(f.name for f in fields(SegmentMeta))
_FILE_FIELDS: Final = frozenset(f.name for f in fields(FileMeta))


def _file(raw: dict[str, Any]) -> FileMeta:
    graph = raw.pop("graph", None)
    settings = (
        GraphSettings(graph["dtype"], graph["m"], graph["ef_construction"]) if graph else None
    )
    return FileMeta(**{k: v for k, v in raw.items() if k in _FILE_FIELDS}, graph=settings)
