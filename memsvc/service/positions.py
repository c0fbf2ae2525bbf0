"""What a node makes of positions and page tokens that callers send back."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from memsvc.domain.errors import InvalidArgument, PositionLost, invalid
from memsvc.domain.positions import (
    FORMAT,
    Position,
    decode,
    encode,
    pack_position,
    unpack_position,
)

_PAGE: Final = struct.Struct(">B8sqQ")


def format_position(store_id: str, epoch: int, position: int) -> str:
    """The opaque form of a log position."""
    return pack_position(Position(bytes.fromhex(store_id)[:8], epoch, position))


def parse_position(
    text: str,
    store_id: str,
    epoch: int,
    starts: Mapping[int, int] | None = None,
    *,
    ahead: bool = False,
) -> int | None:
    """The log position from its opaque form. ``starts`` has the first position of epochs;
    ``ahead``: the node follows another, so that one of an epoch to come is None: not yet.

    Raises InvalidArgument for anything that is not one, PositionLost for one of another
    store or of a history that was abandoned: of an epoch to come, or of an earlier one and
    not before the start of a later.
    """
    try:
        store, at_epoch, position = unpack_position(text)
    except ValueError:
        raise invalid("min_position", "not a position that a Write or Forget returned") from None
    if store != bytes.fromhex(store_id)[:8]:
        raise lost_position()
    if at_epoch > epoch:
        if ahead:
            return None
        raise lost_position()
    if any(later > at_epoch and position >= first for later, first in (starts or {}).items()):
        raise lost_position()
    return position


def lost_position() -> PositionLost:
    """The error for a position that this node will never reach."""
    return PositionLost(
        "this position belongs to another store or history",
        hint="what was written at that position may be gone; read again without it",
    )


def format_page(request: bytes, ts: int, row: int) -> str:
    """The token of the page after a row, which is the same on every node; ``request``
    identifies what is paged."""
    digest = blake2b(request, digest_size=8).digest()
    return encode(_PAGE.pack(FORMAT, digest, ts, row))


def parse_page(text: str, request: bytes) -> tuple[int, int]:
    """(ts, row) of the last memory of the page before. Raises InvalidArgument."""
    try:
        _check, digest, ts, row = _PAGE.unpack(decode(text))
    except (ValueError, struct.error):
        raise invalid("page_token", "not a token that a Query returned") from None
    if digest != blake2b(request, digest_size=8).digest():
        raise InvalidArgument(
            "page_token: belongs to another request",
            hint="send the request that gave the token, changed in nothing but page_token",
        )
    return ts, row
