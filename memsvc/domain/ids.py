"""Ids of memories: UUIDs of version 7, in 16 bytes or as text."""

from __future__ import annotations

import uuid


def format_id(id_bytes: bytes) -> str:
    """The text form of a memory id (a UUID)."""
    h = id_bytes.hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"


def parse_id(text: str) -> bytes | None:
    """The 16 bytes of a memory id; None when the text is no id of ours."""
    if len(text) != 36:
        return None
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        return None
    return parsed.bytes if str(parsed) == text else None


def new_id(now_ms: int, random: bytes) -> bytes:
    """A UUIDv7 (RFC 9562): 48 bits of time, 74 of the 80 random bits given."""
    value = bytearray(now_ms.to_bytes(6, "big") + random[:10])
    value[6] = value[6] & 0x0F | 0x70
    value[8] = value[8] & 0x3F | 0x80
    return bytes(value)
