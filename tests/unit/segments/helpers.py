"""Rows and segments for the tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.manifest import SegmentMeta
from memsvc.domain.records import RowRecord, State
from memsvc.segments.build import BuildSpec, build_segment
from memsvc.text.index import invert
from memsvc.v1 import memory_service_pb2, types_pb2

GENERATION = 1


def state(number: int, **more: Any) -> State:
    values = {
        "id": number.to_bytes(16, "big"),
        "version": 1,
        "status": 1,
        "flags": 1,
        "pad": 0,
        "created_at": 5,
        "updated_at": 6,
        "ts": 1_000 + number,
        "expires_at": 0,
        "recalled_at": 0,
        "importance": 0.5,
        "recall_count": 0,
        "size": 100,
        **more,
    }
    return State(**values)


def head(summary: str = "", session: str = "", **metadata: Any) -> bytes:
    """A serialised Hit; ``attributes`` as a dict of Python values."""
    hit = memory_service_pb2.Hit(summary=summary, session=session)
    for name, value in metadata.pop("attributes", {}).items():
        hit.metadata.attributes[name].CopyFrom(proto_value(value))
    for name, value in metadata.items():
        setattr(hit.metadata, name, value)
    return hit.SerializeToString()


def proto_value(value: Any) -> types_pb2.Value:
    if isinstance(value, bool):
        return types_pb2.Value(bool_value=value)
    if isinstance(value, int):
        return types_pb2.Value(int_value=value)
    if isinstance(value, float):
        return types_pb2.Value(double_value=value)
    if isinstance(value, str):
        return types_pb2.Value(string_value=value)
    return types_pb2.Value(list_value=types_pb2.StringList(values=value))


def units(count: int, dimension: int, seed: int = 0) -> NDArray[np.float32]:
    """Clustered unit vectors."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((20, dimension))
    rows = centres[rng.integers(0, 20, count)] + 0.7 * rng.standard_normal((count, dimension))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def records(vectors: Sequence[NDArray[np.float32] | None]) -> Iterator[RowRecord]:
    """Row 10 i + 10 for the i-th vector, with a few words."""
    for i, vector in enumerate(vectors):
        text = f"row number{i} {'even' if i % 2 == 0 else 'odd'}"
        given = {} if vector is None else {GENERATION: vector}
        yield RowRecord(10 * i + 10, state(i), head(text, f"s{i % 3}", seq=i), text, given)


def words(record: RowRecord) -> list[str]:
    return memory_service_pb2.Hit.FromString(record.head).summary.split()


def build(
    root: Path, vectors: Sequence[NDArray[np.float32] | None], name: str = "seg", **more: Any
) -> SegmentMeta:
    """A segment over vectors of one dimension, None for rows without one."""
    dimension = next((len(v) for v in vectors if v is not None), 8)
    options = {"graph_min_rows": 100, "scan_min_rows": 100, **more}
    spec = BuildSpec(name, 7, 10, 10 * len(vectors) + 10, 99, ((GENERATION, dimension),), **options)
    return build_segment(spec, records(vectors), root, words, invert)
