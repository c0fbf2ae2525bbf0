"""Places in the log of a store, and their opaque form."""

from __future__ import annotations

import base64
import struct
from typing import Final, NamedTuple

FORMAT: Final = 1
"""First byte of everything opaque that a node gives out."""
_POSITION: Final = struct.Struct(">B8sQQ")


class Position(NamedTuple):
    """First 8 bytes of the id of a store, epoch, and position in its log."""

    store: bytes
    epoch: int
    number: int


def pack_position(position: Position) -> str:
    """The opaque form."""
    return encode(_POSITION.pack(FORMAT, *position))


def unpack_position(text: str) -> Position:
    """The reverse. ValueError for anything else."""
    try:
        _format, store, epoch, number = _POSITION.unpack(decode(text))
    except (ValueError, struct.error):
        raise ValueError("not a position") from None
    return Position(store, epoch, number)


def later(one: str, other: str) -> str:
    """The later of two opaque positions; ``other`` when they cannot be compared, as those of
    two stores."""
    try:
        first, second = unpack_position(one), unpack_position(other)
    except ValueError:
        return other
    return one if first.store == second.store and first > second else other


def encode(data: bytes) -> str:
    """Bytes as a text for URLs, without padding."""
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def decode(text: str) -> bytes:
    """The reverse. ValueError for anything else, also for another FORMAT."""
    if not text.isascii():
        raise ValueError("not ASCII")
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if data[:1] != bytes([FORMAT]):
        raise ValueError("another format")
    return data
