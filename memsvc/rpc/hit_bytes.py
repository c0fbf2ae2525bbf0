"""Hits in protobuf's wire format, written as columns.

A hit is its stored head, which is a serialised Hit already, with the fields that change: some in
its metadata, the others behind it. Those have the same lengths in all hits of an answer, so numpy
writes them for all at once, in a fraction of the time that setting them in messages takes. It rests
on two rules of the format (protobuf.dev/programming-guides/encoding): fields may come in any order,
and a varint may be longer than it need be. Not on a third, that parts of a message that comes twice
are merged, and never with more than 5 bytes for a uint32: protobuf.js before 8, which most programs
for Node use, keeps only the last part, and reads 10 bytes where there are more than 5.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.hits import Hits
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2

Bytes = NDArray[np.uint8]

_VARINT, _LENGTH, _FIXED32 = 0, 2, 5
_ID_CHARS: Final = 36
_DASHES: Final = (8, 13, 18, 23)
_HEX: Final = np.delete(np.arange(_ID_CHARS), _DASHES)
_DASH: Final = ord("-")
_SHIFTS: Final = np.arange(0, 63, 7)


@lru_cache(1 << 14)
def varint(value: int) -> bytes:
    """An unsigned number as a varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def tag(message: Any, field: str, kind: int = _LENGTH) -> bytes:
    """What stands before a field's value on the wire. ``message`` is the class."""
    return varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | kind)


_ITEM = tag(pb.QueryResponse, "items")
_CONTENT = tag(pb.Hit, "content")
_VECTOR = tag(pb.Hit, "vector")
_DATA = tag(types_pb2.Vector, "data")

_METADATA: Final = tag(pb.Hit, "metadata")

# The fields that change stand in this order. The first two are those of the metadata, which ends
# with them; what may be missing comes last, so that a hit without it ends sooner.
_TIMES: Final = ("ts", "created_at", "updated_at", "expires_at")
_COUNTS: Final = ("version", "recall_count")
_FLOATS: Final = ("importance_stored", "score", "similarity", "keyword_score")
_FLOAT_BYTES: Final = 5
_TIMES_AT: Final = _FLOAT_BYTES


@lru_cache(64)
def _template(of_time: int, of_count: int) -> Bytes:
    """The tags of all fields with room for their values, so many bytes for each number."""
    out = tag(types_pb2.Metadata, "importance", _FIXED32) + bytes(4)
    for name in _TIMES:
        message = types_pb2.Metadata if name == "ts" else pb.Hit
        out += tag(message, name, _VARINT) + bytes(of_time)
    out += b"".join(tag(pb.Hit, name, _VARINT) + bytes(of_count) for name in _COUNTS)
    out += tag(pb.Hit, "id") + varint(_ID_CHARS) + bytes(_ID_CHARS)
    out += tag(pb.Hit, "status", _VARINT) + bytes(1)
    out += b"".join(tag(pb.Hit, name, _FIXED32) + bytes(4) for name in _FLOATS)
    return np.frombuffer(out, np.uint8)


def _varints(states: NDArray[Any], names: tuple[str, ...]) -> Bytes:
    """Columns of numbers, none negative, as varints of one length: uint8 (n, names, length)."""
    values = np.empty((len(states), len(names)), np.int64)
    for column, name in enumerate(names):
        values[:, column] = states[name]
    size = max(1, (int(values.max()).bit_length() + 6) // 7)
    groups = values[..., None] >> _SHIFTS[:size]
    groups &= 0x7F
    groups[..., :-1] |= 0x80
    return groups.astype(np.uint8)


def _fields(hits: Hits) -> tuple[Bytes, int]:
    """What changes of each hit, as fields: uint8 (n, size); and how many bytes of it, at the
    beginning, belong to the metadata."""
    states, n = hits.states, len(hits)
    times, counts = _varints(states, _TIMES), _varints(states, _COUNTS)
    floats = np.empty((n, 1 + len(_FLOATS)), "<f4")
    for column, values in enumerate(
        (hits.importance, states["importance"], hits.scores, hits.similarities, hits.words)
    ):
        floats[:, column] = values
    packed = floats.view(np.uint8).reshape(n, -1, 4)
    template = _template(times.shape[2], counts.shape[2])
    out = np.empty((n, len(template)), np.uint8)
    out[:] = template
    out[:, 1:_TIMES_AT] = packed[:, 0]
    counts_at = _TIMES_AT + len(_TIMES) * (1 + times.shape[2])
    out[:, _TIMES_AT:counts_at].reshape(n, len(_TIMES), -1)[:, :, 1:] = times
    id_at = counts_at + len(_COUNTS) * (1 + counts.shape[2]) + 2
    out[:, counts_at : id_at - 2].reshape(n, len(_COUNTS), -1)[:, :, 1:] = counts
    text = out[:, id_at : id_at + _ID_CHARS]
    text[:] = _DASH
    digits = states["id"].tobytes().hex().encode()
    text[:, _HEX] = np.frombuffer(digits, np.uint8).reshape(n, -1)
    floats_at = id_at + _ID_CHARS + 2
    out[:, floats_at - 1] = hits.statuses
    out[:, floats_at:].reshape(n, len(_FLOATS), -1)[:, :, 1:] = packed[:, 1:]
    return out, _TIMES_AT + 1 + times.shape[2]


def _metadata_in(head: bytes) -> tuple[int, int, int]:
    """Where the metadata of a head begins, its value begins, and it ends; at the end of the head
    when there is none. A head has fields with a length only."""
    at = 0
    while at < len(head):
        start, size, at = at, head[at + 1], at + 2
        if size > 0x7F:
            size, shift = size & 0x7F, 7
            while head[at] > 0x7F:
                size, shift, at = size | (head[at] & 0x7F) << shift, shift + 7, at + 1
            size, at = size | head[at] << shift, at + 1
        if head[start] == _METADATA[0]:
            return start, at, at + size
        at += size
    return at, at, at


def _extra(hits: Hits, number: int) -> bytes:
    """Content and vector of one hit, as fields."""
    out = b""
    content = hits.contents[number] if hits.contents else None
    if content is not None:
        data = content.encode()
        out += _CONTENT + varint(len(data)) + data
    vector = hits.vectors[number] if hits.vectors else None
    if vector is not None:
        data = np.ascontiguousarray(vector, "<f4").tobytes()
        inner = _DATA + varint(len(data)) + data
        out += _VECTOR + varint(len(inner)) + inner
    return out


@lru_cache(1 << 14)
def _opening(before: bytes, size: int) -> bytes:
    """A tag with the length of what follows."""
    return before + varint(size)


def hit_list(hits: Hits) -> bytes:
    """A serialised HitList; a QueryResponse has its items under the same number."""
    if not hits:
        return b""
    fields, of_metadata = _fields(hits)
    size, data = fields.shape[1], fields.tobytes()
    whole = bool(hits.contents or hits.vectors)
    out: list[bytes] = []
    for number, (head, no_words, no_similarity) in enumerate(
        zip(
            hits.heads,
            np.isnan(hits.words).tolist(),
            np.isnan(hits.similarities).tolist(),
            strict=True,
        )
    ):
        begin, end = number * size, (number + 1) * size
        if no_similarity:
            words = b"" if no_words else data[end - _FLOAT_BYTES : end]
            changing = data[begin : end - 2 * _FLOAT_BYTES] + words
        else:
            changing = data[begin : end - _FLOAT_BYTES if no_words else end]
        if whole:
            changing += _extra(hits, number)
        start, inner, after = _metadata_in(head)
        metadata = _opening(_METADATA, after - inner + of_metadata)
        total = len(head) - (inner - start) + len(metadata) + len(changing)
        # Metadata last of the head, so that it ends with what changes of it.
        out += (
            _opening(_ITEM, total),
            head[:start],
            head[after:],
            metadata,
            head[inner:after],
            changing,
        )
    return b"".join(out)
