"""Keys and small values of the LMDB tables. Integers are big-endian, so that keys sort.

The tables and what they hold are listed in DESIGN.md beside this file.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, NamedTuple

TABLES: Final = (
    "meta",
    "log",
    "partitions",
    "names",
    "tenants",
    "ids",
    "versions",
    "states",
    "texts",
    "vectors",
    "dedup",
    "audit",
    "changes",
    "expiry",
    "replaced",
    "expired",
    "erasures",
    "requests",
    "request_times",
    "manifest",
    "generations",
)

U64: Final = struct.Struct(">Q")
ROW: Final = struct.Struct(">IQ")
"""partition, row"""
VECTOR: Final = struct.Struct(">HIQ")
"""generation, partition, row"""
TIMED_ROW: Final = struct.Struct(">QIQ")
"""UTC ms, partition, row"""
CHANGE: Final = struct.Struct(">IQ")
"""partition, position"""
LOCATION: Final = struct.Struct(">IQ")
"""value of ``ids``: partition, row"""
PARTITION_VALUE: Final = struct.Struct(">8Q")
TENANT_VALUE: Final = struct.Struct(">2Q")
TEXT_HEAD: Final = struct.Struct("<IHI")
"""lengths of head, dedup key and content in a ``texts`` value; the salt follows them"""
SALT_BYTES: Final = 16
HEAD_LENGTH: Final = struct.Struct("<I")
"""The first number of TEXT_HEAD."""
HEAD_AT: Final = TEXT_HEAD.size + SALT_BYTES
"""Where the head of a stored text begins."""
ENTRY_OVERHEAD_BYTES: Final = 256
"""Accounted for a memory beside text and vectors: state, keys, indexes, log header."""


@dataclass(slots=True)
class Partition:
    """Counters of a partition (tenant/agent).

    ``next_row`` is the number the next row gets (from 1); ``position`` the last log
    position that concerned it; ``manifest`` counts changes of its segments; rows below
    ``sealed_row`` are in segments; changes up to position ``pruned`` are no longer kept;
    ``memories`` counts those not forgotten, ``active`` those with status ACTIVE, ``size`` the
    bytes they are accounted.
    """

    number: int
    tenant: str
    agent: str
    next_row: int = 1
    position: int = 0
    manifest: int = 0
    sealed_row: int = 1
    pruned: int = 0
    memories: int = 0
    active: int = 0
    size: int = 0

    def pack(self) -> bytes:
        """The stored form: eight counters, then the names."""
        name = f"{self.tenant}\0{self.agent}".encode()
        return (
            PARTITION_VALUE.pack(
                self.next_row,
                self.position,
                self.manifest,
                self.sealed_row,
                self.pruned,
                self.memories,
                self.active,
                self.size,
            )
            + name
        )

    def copy(self) -> Partition:
        """An independent copy."""
        return replace(self)


def unpack_partition(number: int, data: bytes) -> Partition:
    """The partition from its stored form."""
    tenant, _, agent = data[PARTITION_VALUE.size :].decode().partition("\0")
    return Partition(number, tenant, agent, *PARTITION_VALUE.unpack_from(data))


class Text(NamedTuple):
    """Text of a row: ``head`` is a serialised proto Hit (see domain.log.Payload)."""

    head: bytes
    content: str
    dedup_key: str
    salt: bytes


def pack_text(head: bytes, content: str, dedup_key: str, salt: bytes) -> bytes:
    """The stored form of a row's text."""
    text, dedup = content.encode(), dedup_key.encode()
    return b"".join((TEXT_HEAD.pack(len(head), len(dedup), len(text)), salt, head, dedup, text))


def unpack_text(data: bytes) -> Text:
    """The text from its stored form."""
    head, dedup, content = TEXT_HEAD.unpack_from(data)
    return Text(
        data[HEAD_AT : HEAD_AT + head],
        data[HEAD_AT + head + dedup : HEAD_AT + head + dedup + content].decode(),
        data[HEAD_AT + head : HEAD_AT + head + dedup].decode(),
        data[TEXT_HEAD.size : HEAD_AT],
    )


def text_head(data: bytes) -> bytes:
    """Only the head of a stored text; the cheap way on the query path."""
    return data[HEAD_AT : HEAD_AT + HEAD_LENGTH.unpack_from(data)[0]]


def row_key(partition: int, row: int) -> bytes:
    """Key of ``states`` and ``texts``."""
    return ROW.pack(partition, row)


def name_key(tenant: str, agent: str) -> bytes:
    """Key of ``names``. A NUL cannot be part of a name, so no tenant is another's prefix."""
    return f"{tenant}\0{agent}".encode()


def dedup_hash(dedup_key: str) -> bytes:
    """16 bytes that stand for a dedup key, so that its text can be erased."""
    return blake2b(dedup_key.encode(), digest_size=16, person=b"memsvc dedup").digest()


def request_hash(call: str, tenant: str, agent: str, request_id: str) -> bytes:
    """16 bytes that stand for a request id in its namespace and call."""
    data = "\0".join((call, tenant, agent, request_id)).encode()
    return blake2b(data, digest_size=16, person=b"memsvc request").digest()


def payload_hash(salt: bytes, head: bytes, content: str, vectors: Mapping[int, bytes]) -> bytes:
    """16-byte salted hash of a payload, kept in log headers after the payload is erased."""
    parts = [len(head).to_bytes(4, "little"), head, content.encode()]
    for number in sorted(vectors):
        parts += (number.to_bytes(4, "little"), vectors[number])
    # At once: while it hashes the interpreter is released, and to have it back takes a while.
    data = b"".join(parts)
    return blake2b(data, digest_size=16, key=salt, person=b"memsvc payload").digest()


def accounted_bytes(head: bytes, content: str, vectors: Mapping[int, bytes]) -> int:
    """What a memory counts against max_bytes and quotas: its bytes, vectors rounded up to
    LMDB pages (a 6 KB value occupies 8 KB), and a fixed overhead."""
    size = len(head) + ENTRY_OVERHEAD_BYTES
    size += len(content) if content.isascii() else len(content.encode())
    for vector in vectors.values():
        size += accounted_vector(len(vector))
    return size


def accounted_vector(length: int) -> int:
    """What a vector of so many bytes counts."""
    return -(-(length + 16) // 4096) * 4096 if length > 1_900 else length
