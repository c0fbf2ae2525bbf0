"""The columns file of a segment."""

from __future__ import annotations

import json
import mmap
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.filters import FilterValue
from memsvc.domain.records import STATE_DTYPE
from memsvc.segments.arrayfile import ArrayFile, ArrayFileWriter
from memsvc.segments.columns import Column, ColumnBuilder, ColumnSet
from memsvc.segments.dictionary import SealedDictionary
from memsvc.segments.errors import BadFile
from memsvc.segments.sorted_strings import open_strings, write_strings

KIND: Final = "columns"
VERSION: Final = 1

_BYTES: Final = np.zeros(0, np.uint8)
_INTEGERS: Final = np.zeros(0, np.int64)
_FLOATS: Final = np.zeros(0, np.float64)


def write_columns(path: Path, segment: str, builder: ColumnBuilder) -> tuple[int, str]:
    """Writes what a builder collected. Returns the file's bytes and xxh3-128 in hex."""
    rows = builder.snapshot()
    with ArrayFileWriter(path, KIND, VERSION) as writer:
        writer.add("rows", rows.rows)
        writer.add("ids", rows.ids.view(np.uint8).reshape(-1, 16))
        writer.add("state", rows.state.view(np.uint8).reshape(-1, STATE_DTYPE.itemsize))
        described = []
        for number, field in enumerate(builder.fields):
            column = rows.column(field)
            assert column is not None
            values = builder.values(field)
            described.append(_write_column(writer, f"c{number}", field, column.codes, values))
        return writer.finish(
            {"segment": segment, "columns": described, "complete": builder.complete}
        )


def _write_column(
    writer: ArrayFileWriter,
    prefix: str,
    field: str,
    codes: NDArray[np.int32],
    values: list[FilterValue],
) -> dict[str, Any]:
    if not values:
        return {"field": field, "array": None}
    groups: tuple[list[int], ...] = ([], [], [], [], [])
    for code, value in enumerate(values):
        groups[_group(value)].append(code)
    groups[0].sort(key=lambda code: str(values[code]))
    sealed = np.full(len(values) + 1, -1, np.int32)  # the last answers for -1
    order = [code for group in groups for code in group]
    sealed[order] = np.arange(len(order))
    writer.add(f"{prefix}.codes", sealed[codes])
    strings, integers, floats, booleans, lists = ([values[c] for c in g] for g in groups)
    if strings:
        write_strings(writer, f"{prefix}.strings", [str(text) for text in strings])
    if integers:
        writer.add(f"{prefix}.integers", np.array(integers, np.int64))
    if floats:
        writer.add(f"{prefix}.floats", np.array(floats, np.float64))
    if lists:
        text = json.dumps(lists, ensure_ascii=False).encode()
        writer.add(f"{prefix}.lists", np.frombuffer(text, np.uint8))
    return {"field": field, "array": prefix, "booleans": booleans, "lists": len(lists)}


def _group(value: FilterValue) -> int:
    if isinstance(value, bool):
        return 3
    for group, kind in enumerate((str, int, float)):
        if isinstance(value, kind):
            return group
    return 4


def open_columns(data: mmap.mmap, segment: str, count: int) -> ColumnSet:
    """The columns of a segment of ``count`` rows from its mapped, verified file. Raises
    BadFile."""
    file = ArrayFile(data, KIND, VERSION, check_sums=False)
    file.require(segment=segment)
    rows = file.array("rows")
    if len(rows) != count:
        raise BadFile(f"has {len(rows)} rows, expected {count}")
    none: NDArray[np.int32] = np.broadcast_to(np.int32(-1), (count,))
    columns = {}
    for entry in file.meta["columns"]:
        codes = none if entry["array"] is None else file.array(f"{entry['array']}.codes")
        if len(codes) != count:
            raise BadFile(f"column {entry['field']} has {len(codes)} rows, expected {count}")
        columns[entry["field"]] = Column(codes, _open_dictionary(file, entry))
    ids = file.array("ids").reshape(-1).view("V16")
    state = file.array("state").reshape(-1).view(STATE_DTYPE)
    # Files from before attributes got columns of their own accord do not say.
    return ColumnSet(rows, ids, state, columns, complete=file.meta.get("complete", False))


def _open_dictionary(file: ArrayFile, entry: dict[str, Any]) -> SealedDictionary:
    def array(name: str, default: NDArray[Any]) -> NDArray[Any]:
        found = file.optional(f"{entry['array']}.{name}")
        return default if found is None else found

    return SealedDictionary(
        open_strings(file, f"{entry['array']}.strings"),
        array("integers", _INTEGERS),
        array("floats", _FLOATS),
        entry.get("booleans", ()),
        array("lists", _BYTES),
        entry.get("lists", 0),
    )
