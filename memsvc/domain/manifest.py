"""The manifest: which immutable segment files answer for which rows of a partition."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

MANIFEST_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class FileMeta:
    """One file of a segment. ``kind`` is rows, scan, graph, postings or columns; ``generation``
    0 for files that hold no vectors; ``checksum`` the xxh3-128 of the whole file in hex."""

    kind: str
    generation: int
    name: str
    bytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class SegmentMeta:
    """A sealed segment: the live rows of [row_lo, row_hi) as of log position
    ``position``. ``name`` is its directory below ``segments/``; ``count`` its rows."""

    name: str
    partition: int
    row_lo: int
    row_hi: int
    position: int
    count: int
    files: tuple[FileMeta, ...]

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

    def to_json(self) -> bytes:
        """The form that is stored."""
        return json.dumps({"format": MANIFEST_FORMAT, **asdict(self)}).encode()


def segment_from_json(data: bytes | str) -> SegmentMeta:
    """The segment from its stored form. Raises ValueError for another format."""
    raw: dict[str, Any] = json.loads(data)
    if raw.pop("format", None) != MANIFEST_FORMAT:
        raise ValueError(f"segment manifest format is not {MANIFEST_FORMAT}")
    files = tuple(FileMeta(**f) for f in raw.pop("files"))
    return SegmentMeta(**raw, files=files)
