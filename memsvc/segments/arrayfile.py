"""One container for every file format of ours: named arrays and a little JSON.

::

    magic (8) | format u32 | zeros to 64
    arrays, each at a multiple of 64 bytes, C order, little-endian
    footer: JSON {kind, version, meta, arrays: [{name, dtype, shape, offset, sum, block}]}
    footer offset u64 | footer length u64 | xxh3-64 of the footer u64 | magic (8)

The description stands at the end so that rows can be streamed without knowing how many
will come. ``sum`` is the xxh3-64 of an array. A *guarded* array has none; instead an array
``NAME.sums`` holds one xxh3-64 for each ``block`` of whole rows, so that a large file is
checked piece by piece when a piece is first read and not whole before the first answer.
"""

from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from memsvc.segments.errors import BadFile
from memsvc.segments.files import TEMPORARY_SUFFIX, publish

MAGIC: Final = b"MSVCARR\0"
FORMAT: Final = 1
ALIGNMENT: Final = 64
BLOCK_BYTES: Final = 1 << 16
"""Bytes checked at once in a guarded array: a dozen rows of 1536 float32. Smaller blocks
make sums and bookkeeping larger, larger ones make a cold read of one row dearer."""

_PREAMBLE: Final = struct.Struct("<8sI52x")
_TRAILER: Final = struct.Struct("<QQQ8s")
_MAX_FOOTER: Final = 1 << 28


def rows_per_block(row_bytes: int) -> int:
    """Rows of a guarded array that are checked together; at least one."""
    return max(1, BLOCK_BYTES // max(row_bytes, 1))


class ArrayFileWriter:
    """Writes one file, streaming; used as a context manager.

    ``add`` writes a whole array; ``begin``, ``append`` ... ``end`` write a guarded one whose
    rows come in pieces. ``finish`` publishes the file (durable, read-only, under its name).
    Leaving the context without it removes what was written.
    """

    def __init__(self, path: Path, kind: str, version: int) -> None:
        self._path = path
        self._temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        self._kind = kind
        self._version = version
        self._arrays: list[dict[str, Any]] = []
        self._whole = xxhash.xxh3_128()
        self._position = 0
        self._file = self._temporary.open("wb", buffering=1 << 20)
        self._stream: _Stream | None = None
        self._write(_PREAMBLE.pack(MAGIC, FORMAT))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._file.closed:
            self._file.close()
            self._temporary.unlink(missing_ok=True)

    def add(self, name: str, array: NDArray[Any]) -> None:
        """Appends an array of any simple dtype and shape."""
        data = np.ascontiguousarray(array)
        self._align()
        view = data.reshape(-1).view(np.uint8)
        self._describe(name, data.dtype, data.shape, sum=xxhash.xxh3_64_intdigest(view.data))
        self._write(view.data)

    def begin(self, name: str, dtype: np.dtype[Any], width: int) -> None:
        """Starts a guarded array of shape (rows to come, width)."""
        assert self._stream is None, "one guarded array at a time"
        self._align()
        block = rows_per_block(dtype.itemsize * width)
        self._stream = _Stream(block * dtype.itemsize * width)
        self._describe(name, dtype, (0, width), block=block)

    def append(self, rows: NDArray[Any]) -> None:
        """Appends rows, shape (n, width), in the dtype given to ``begin``."""
        assert self._stream is not None
        entry = self._arrays[-1]
        assert rows.dtype.str == entry["dtype"] and rows.shape[1:] == tuple(entry["shape"][1:])
        entry["shape"][0] += len(rows)
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        self._stream.update(data)
        self._write(data)

    def end(self) -> int:
        """Ends the guarded array and appends its sums. Returns its number of rows."""
        assert self._stream is not None
        entry, sums = self._arrays[-1], self._stream.finish()
        self._stream = None
        self.add(f"{entry['name']}.sums", np.array(sums, np.uint64))
        return int(entry["shape"][0])

    def finish(self, meta: dict[str, Any]) -> tuple[int, str]:
        """Ends and publishes the file. Returns its bytes and its xxh3-128 in hex."""
        assert self._stream is None, "a guarded array is still open"
        self._align()
        footer = json.dumps(
            {"kind": self._kind, "version": self._version, "meta": meta, "arrays": self._arrays},
            separators=(",", ":"),
        ).encode()
        offset = self._position
        self._write(footer)
        digest = xxhash.xxh3_64_intdigest(footer)
        self._write(_TRAILER.pack(offset, len(footer), digest, MAGIC))
        self._file.close()
        publish(self._temporary, self._path)
        return self._position, self._whole.hexdigest()

    def _describe(
        self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], **more: int
    ) -> None:
        entry = {"name": name, "dtype": dtype.str, "shape": list(shape), "offset": self._position}
        self._arrays.append({**entry, **more})

    def _align(self) -> None:
        self._write(bytes(-self._position % ALIGNMENT))

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._whole.update(data)
        self._position += len(data)


class _Stream:
    """Sums of consecutive blocks of equal size over data that comes in any pieces."""

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._sums: list[int] = []
        self._digest = xxhash.xxh3_64()
        self._held = 0

    def update(self, data: memoryview) -> None:
        start = 0
        while start < len(data):
            piece = data[start : start + self._block_bytes - self._held]
            self._digest.update(piece)
            self._held += len(piece)
            start += len(piece)
            if self._held == self._block_bytes:
                self._close()

    def finish(self) -> list[int]:
        if self._held:
            self._close()
        return self._sums

    def _close(self) -> None:
        self._sums.append(self._digest.intdigest())
        self._digest.reset()
        self._held = 0


class ArrayFile:
    """An opened file: ``meta`` and read-only views of its arrays. The mapping lives as long
    as any of them. Raises BadFile when bytes, kind, version or bounds are not as written."""

    def __init__(self, data: mmap.mmap, kind: str, version: int, *, check_sums: bool) -> None:
        footer = _read_footer(data)
        if footer["kind"] != kind or footer["version"] != version:
            raise BadFile(
                f"is {footer['kind']} version {footer['version']}, expected {kind} {version}"
            )
        self.meta: dict[str, Any] = footer["meta"]
        self._arrays: dict[str, NDArray[Any]] = {}
        self._entries: dict[str, dict[str, Any]] = {}
        for entry in footer["arrays"]:
            array = _view(data, entry)
            name = entry["name"]
            self._arrays[name] = array
            self._entries[name] = entry
            if check_sums and "block" not in entry:
                raw = array.reshape(-1).view(np.uint8).data
                if xxhash.xxh3_64_intdigest(raw) != entry["sum"]:
                    raise BadFile(f"array {name} is not as written")

    def array(self, name: str) -> NDArray[Any]:
        """An array by name, read-only. Raises BadFile when there is none."""
        try:
            return self._arrays[name]
        except KeyError:
            raise BadFile(f"has no array {name}") from None

    def optional(self, name: str) -> NDArray[Any] | None:
        """An array by name, None when there is none."""
        return self._arrays.get(name)

    def block_rows(self, name: str) -> int:
        """Rows of a guarded array that are checked together."""
        return int(self._entries[name]["block"])

    def offset(self, name: str) -> int:
        """Where an array begins, in bytes from the beginning of the file."""
        return int(self._entries[name]["offset"])

    def through(self, other: mmap.mmap, name: str) -> NDArray[Any]:
        """An array seen through another mapping of the same file."""
        return _view(other, self._entries[name])

    def require(self, **expected: object) -> None:
        """Raises BadFile unless ``meta`` has these values: catches a file that is sound but
        belongs to another segment."""
        for name, value in expected.items():
            if self.meta.get(name) != value:
                raise BadFile(f"{name} is {self.meta.get(name)!r}, expected {value!r}")


def _read_footer(data: mmap.mmap) -> dict[str, Any]:
    if len(data) < _PREAMBLE.size + _TRAILER.size:
        raise BadFile(f"has only {len(data)} bytes")
    magic, number = _PREAMBLE.unpack_from(data, 0)
    end = len(data) - _TRAILER.size
    offset, length, digest, magic_again = _TRAILER.unpack_from(data, end)
    if magic != MAGIC or magic_again != MAGIC:
        raise BadFile("is not an array file, or cut short")
    if number != FORMAT:
        raise BadFile(f"container format is {number}, expected {FORMAT}")
    if length > _MAX_FOOTER or offset + length != end:
        raise BadFile("footer lies outside the file")
    footer = data[offset:end]
    if xxhash.xxh3_64_intdigest(footer) != digest:
        raise BadFile("footer is not as written")
    parsed: dict[str, Any] = json.loads(footer)
    return parsed


def _view(data: mmap.mmap, entry: dict[str, Any]) -> NDArray[Any]:
    dtype, shape, offset = np.dtype(entry["dtype"]), tuple(entry["shape"]), entry["offset"]
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    if min(shape, default=0) < 0 or offset % ALIGNMENT or not 0 <= offset <= len(data) - size:
        raise BadFile(f"array {entry['name']} lies outside the file")
    if not size:
        return np.zeros(shape, dtype)
    # From a mapping opened for reading numpy makes a read-only array.
    return np.frombuffer(data, dtype, size // dtype.itemsize, offset).reshape(shape)
