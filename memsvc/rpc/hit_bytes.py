"""Hits in protobuf's wire format, written as columns.

A hit is its stored head, which is a serialised Hit already, followed by the fields that change.
Those have the same lengths in all hits of an answer, so numpy writes them for all at once, in a
fifth of the time that setting them in messages takes. It rests on three rules of the format
(protobuf.dev/programming-guides/encoding): fields may come in any order, parts of a message field
that comes twice are merged, and a varint may be longer than it need be.
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

# The fields that change stand in this order. What may be missing comes first, so that a hit
# without it begins later.
_FLOATS: Final = ("keyword_score", "similarity", "score", "importance_stored")
_NUMBERS: Final = ("created_at", "updated_at", "expires_at", "version", "recall_count")
_FLOAT_BYTES: Final = 5
_ID_AT: Final = len(_FLOATS) * _FLOAT_BYTES + 2
_STATUS_AT: Final = _ID_AT + _ID_CHARS + 1
_IMPORTANCE_AT: Final = _STATUS_AT + 4
_NUMBERS_AT: Final = _IMPORTANCE_AT + 4


@lru_cache(16)
def _template(size: int) -> Bytes:
    """The tags of all fields with room for their values; ``size`` bytes for each number."""
    out = b"".join(tag(pb.Hit, name, _FIXED32) + bytes(4) for name in _FLOATS)
    out += tag(pb.Hit, "id") + varint(_ID_CHARS) + bytes(_ID_CHARS)
    out += tag(pb.Hit, "status", _VARINT) + bytes(1)
    importance = tag(types_pb2.Metadata, "importance", _FIXED32) + bytes(4)
    ts = tag(types_pb2.Metadata, "ts", _VARINT) + bytes(size)
    out += tag(pb.Hit, "metadata") + varint(len(importance) + len(ts)) + importance + ts
    out += b"".join(tag(pb.Hit, name, _VARINT) + bytes(size) for name in _NUMBERS)
    return np.frombuffer(out, np.uint8)


def _varints(values: NDArray[np.int64]) -> Bytes:
    """Numbers, none negative, as varints of one length: uint8, one axis more."""
    size = max(1, (int(values.max()).bit_length() + 6) // 7)
    groups = values[..., None] >> np.arange(0, 7 * size, 7)
    groups &= 0x7F
    groups[..., :-1] |= 0x80
    return groups.astype(np.uint8)


def _fields(hits: Hits) -> Bytes:
    """What changes of each hit, as fields of a Hit: uint8 (n, size)."""
    states, n = hits.states, len(hits)
    numbers = np.empty((n, 1 + len(_NUMBERS)), np.int64)
    for column, name in enumerate(("ts", *_NUMBERS)):
        numbers[:, column] = states[name]
    floats = np.empty((n, len(_FLOATS) + 1), "<f4")
    for column, values in enumerate(
        (hits.words, hits.similarities, hits.scores, states["importance"], hits.importance)
    ):
        floats[:, column] = values
    packed = floats.view(np.uint8).reshape(n, -1, 4)
    varints = _varints(numbers)
    template = _template(varints.shape[2])
    out = np.empty((n, len(template)), np.uint8)
    out[:] = template
    out[:, : _ID_AT - 2].reshape(n, -1, _FLOAT_BYTES)[:, :, 1:] = packed[:, :-1]
    text = out[:, _ID_AT : _ID_AT + _ID_CHARS]
    text[:] = _DASH
    digits = states["id"].tobytes().hex().encode()
    text[:, _HEX] = np.frombuffer(digits, np.uint8).reshape(n, -1)
    out[:, _STATUS_AT] = hits.statuses
    out[:, _IMPORTANCE_AT : _IMPORTANCE_AT + 4] = packed[:, -1]
    out[:, _NUMBERS_AT:].reshape(n, numbers.shape[1], -1)[:, :, 1:] = varints
    return out


def _pieces(hits: Hits) -> list[bytes]:
    """The changing fields of each hit, without those that are unset."""
    fields = _fields(hits)
    size, data = fields.shape[1], fields.tobytes()
    unset = np.isnan(hits.words), np.isnan(hits.similarities)
    pieces = []
    for end, no_words, no_similarity in zip(
        range(size, len(data) + 1, size), unset[0].tolist(), unset[1].tolist(), strict=True
    ):
        start = end - size
        if no_similarity:
            words = b"" if no_words else data[start : start + _FLOAT_BYTES]
            pieces.append(words + data[start + 2 * _FLOAT_BYTES : end])
        else:
            pieces.append(data[start + _FLOAT_BYTES if no_words else start : end])
    return pieces


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


def hit_list(hits: Hits) -> bytes:
    """A serialised HitList; a QueryResponse has its items under the same number."""
    if not hits:
        return b""
    pieces = _pieces(hits)
    if hits.contents or hits.vectors:
        pieces = [piece + _extra(hits, number) for number, piece in enumerate(pieces)]
    out: list[bytes] = []
    for head, piece in zip(hits.heads, pieces, strict=True):
        out += (_ITEM, varint(len(head) + len(piece)), head, piece)
    return b"".join(out)
