"""What makes a repeated request "the same": a hash of what it asks for.

It is taken from the domain request, not from the bytes on the wire, so that a repeat counts
as the same whichever protocol, client library or server version it passes through, and
whether its vectors came as numbers or as bytes.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping

import numpy as np

from memsvc.domain import filters as f
from memsvc.domain.types import (
    ForgetRequest,
    LateVector,
    Metadata,
    Namespace,
    NewMemory,
    Touch,
    Update,
    Vector,
    WriteItem,
    WriteRequest,
)

_FLOAT32 = struct.Struct("<f")


class _Hash:
    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, *values: object) -> None:
        # ASCII JSON: one spelling for each value, and it also takes lone surrogates, which
        # are refused later with a better message.
        self._hash.update(json.dumps(values, separators=(",", ":")).encode())

    def vector(self, vector: Vector | None) -> None:
        if vector is None:
            self._hash.update(b"-")
            return
        self._hash.update(b"v%d:" % vector.size)
        self._hash.update(np.ascontiguousarray(vector, dtype="<f4").data)

    def digest(self) -> bytes:
        return self._hash.digest()


def of_write(request: WriteRequest) -> bytes:
    """16 bytes over everything but ``request_id`` and ``fingerprint``."""
    digest = _Hash()
    digest.add("write", *_namespace(request.namespace), request.embedding)
    for item in request.items:
        _item(digest, item)
    return digest.digest()


def of_forget(request: ForgetRequest) -> bytes:
    """16 bytes over everything but ``request_id`` and ``fingerprint``."""
    digest = _Hash()
    digest.add(
        "forget",
        *_namespace(request.namespace),
        request.ids,
        None if request.filters is None else _filter(request.filters),
        int(request.mode),
        _float32(request.factor),
        request.validate_only,
        request.reason,
    )
    return digest.digest()


def _namespace(namespace: Namespace) -> tuple[str, str, str]:
    return namespace.tenant, namespace.agent, namespace.session


def _item(digest: _Hash, item: WriteItem) -> None:
    if isinstance(item, NewMemory):
        digest.add(
            "memory",
            item.dedup_key,
            item.content,
            item.summary,
            _metadata(item.metadata),
            item.ttl_ms,
            int(item.status),
        )
        digest.vector(item.vector)
    elif isinstance(item, Touch):
        digest.add("touch", item.id, item.ts, _float32(item.importance), int(item.kind))
    elif isinstance(item, Update):
        digest.add(
            "update",
            item.id,
            item.if_version,
            item.content,
            item.summary,
            item.clear_vector,
            _metadata(item.metadata),
            item.clear_fields,
            item.ttl_ms,
            int(item.status),
            item.reason,
        )
        digest.vector(item.vector)
    else:
        assert isinstance(item, LateVector)
        digest.add("vector", item.id, item.if_version)
        digest.vector(item.vector)


def _metadata(metadata: Metadata) -> tuple[object, ...]:
    return (
        metadata.seq,
        metadata.role,
        metadata.ts,
        _float32(metadata.importance),
        metadata.source,
        metadata.topic,
        metadata.category,
        metadata.memory_type,
        metadata.topic_key,
        _sorted(metadata.attributes),
    )


def _sorted(attributes: Mapping[str, object]) -> list[tuple[str, object]]:
    return sorted(attributes.items(), key=lambda pair: pair[0])


def _float32(value: float | None) -> float | None:
    # Importance and factor are float32 in the proto: 0.8 over HTTP and 0.8 over gRPC are
    # one value. A number too large for it is refused later; here it only must not raise.
    if value is None:
        return None
    try:
        return float(_FLOAT32.unpack(_FLOAT32.pack(value))[0])
    except OverflowError:
        return value


def _filter(node: f.Filter) -> tuple[object, ...]:
    if isinstance(node, f.Not):
        return "not", _filter(node.filter)
    if isinstance(node, f.And | f.Or):
        return ("and" if isinstance(node, f.And) else "or"), *map(_filter, node.filters)
    test = node.test
    if isinstance(test, f.Equals):
        return node.field, "equals", test.value
    if isinstance(test, f.In):
        return node.field, "in", test.values
    if isinstance(test, f.Exists):
        return node.field, "exists", test.wanted
    return node.field, "range", test.gt, test.gte, test.lt, test.lte
