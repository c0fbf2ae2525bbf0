"""One line of an export, as a memory to write again.

A line is a JSON object: ``namespace`` (object, [tenant, agent, session] or "tenant/agent/
session"), the fields of a memory (``dedup_key, content, summary, vector, metadata, ttl_ms,
status``), and what only an export knows (``id, version, expires_at`` ...).
"""

from __future__ import annotations

import base64
import binascii
import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from memsvc.client.messages import parse_namespace
from memsvc.domain.labels import LABELS
from memsvc.domain.types import (
    AttributeValue,
    Metadata,
    Namespace,
    NewMemory,
    Status,
    Vector,
)

MEMORY_FIELDS: Final = frozenset(
    {"dedup_key", "content", "summary", "vector", "metadata", "ttl_ms", "status"}
)
EXPORT_FIELDS: Final = frozenset(
    {
        "id",
        "version",
        "expires_at",
        "created_at",
        "updated_at",
        "recalled_at",
        "recall_count",
        "importance_stored",
        "embedding",
        "session",
    }
)
KNOWN: Final = MEMORY_FIELDS | EXPORT_FIELDS | {"namespace"}
_METADATA: Final = frozenset({*LABELS, "seq", "ts", "importance", "attributes"})

# A memory is created ACTIVE, in REVIEW or ARCHIVED; the others are set by an update.
_CREATED_AS: Final = {Status.SUPERSEDED: Status.ARCHIVED, Status.REJECTED: Status.ARCHIVED}
_GONE: Final = frozenset({Status.EXPIRED, Status.FORGOTTEN})


@dataclass(frozen=True, slots=True)
class Line:
    """A memory to write, and the status it shall have in the end."""

    number: int
    namespace: Namespace
    memory: NewMemory
    status: Status
    gone: bool = False
    """True when it is past its time, so there is nothing to write."""

    @property
    def text(self) -> str:
        """What is embedded: the same that words are searched in."""
        return self.memory.summary or self.memory.content


def read_line(text: str, number: int, default: Namespace | None, now_ms: int) -> Line:
    """Reads line ``number``; ValueError says what is wrong and what is expected.

    ``default`` takes the place of a namespace that is not given. ``now_ms`` turns a time of
    expiry into a lifetime.
    """
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("expected a JSON object")
    for name in document.keys() - KNOWN:
        near = difflib.get_close_matches(name, KNOWN, 1)
        raise ValueError(
            f"unknown field {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        )
    namespace = _namespace(document, default)
    status = _status(document.get("status", "ACTIVE"))
    ttl_ms, expired = _lifetime(document, now_ms)
    metadata = _metadata(document)
    content, summary = _text(document, "content"), _text(document, "summary")
    memory = NewMemory(
        content,
        summary,
        _text(document, "dedup_key") or made_key(namespace, metadata, content or summary),
        _vector(document.get("vector")),
        metadata,
        ttl_ms,
        _CREATED_AS.get(status, status),
    )
    return Line(number, namespace, memory, status, gone=expired or status in _GONE)


def made_key(namespace: Namespace, metadata: Metadata, text: str) -> str:
    """A dedup_key for a line without one, so that a second import stores nothing twice."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    if namespace.session and metadata.seq is not None:
        return f"{namespace.session}:{metadata.seq}:{digest[:16]}"
    return f"import:{metadata.ts or 0}:{digest[:32]}"


def _namespace(document: Mapping[str, Any], default: Namespace | None) -> Namespace:
    value = document.get("namespace")
    session = _text(document, "session")
    if value is None:
        if default is None:
            raise ValueError("no namespace; add one to the line or give --namespace")
        namespace = default
    elif isinstance(value, str):
        namespace = parse_namespace(value)
    elif isinstance(value, list) and len(value) in (2, 3):
        namespace = Namespace(*map(str, value))
    elif isinstance(value, dict) and value.keys() <= {"tenant", "agent", "session"}:
        namespace = Namespace(
            **{name: str(part) for name, part in {"agent": "", "tenant": "", **value}.items()}
        )
    else:
        raise ValueError('namespace: expected {"tenant", "agent", "session"} or a list of them')
    return Namespace(namespace.tenant, namespace.agent, session or namespace.session)


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected a text, not {value!r:.60}")
    return value


def _status(value: Any) -> Status:
    try:
        return Status[str(value).upper()]
    except KeyError:
        raise ValueError(f"status: unknown {value!r:.60}") from None


def _integer(document: Mapping[str, Any], name: str) -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name}: expected a whole number, not {value!r:.60}")
    return value


def _lifetime(document: Mapping[str, Any], now_ms: int) -> tuple[int | None, bool]:
    """ttl_ms, and whether it is over already."""
    ttl_ms, expires_at = _integer(document, "ttl_ms"), _integer(document, "expires_at")
    if expires_at is None:
        return ttl_ms, False
    if expires_at == 0:
        return 0, False
    return expires_at - now_ms, expires_at <= now_ms


def _metadata(document: Mapping[str, Any]) -> Metadata:
    given = document.get("metadata") or {}
    if not isinstance(given, dict):
        raise ValueError("metadata: expected an object")
    for name in given.keys() - _METADATA:
        raise ValueError(f"metadata.{name}: unknown; own fields belong into metadata.attributes")
    # An export tells both; the stored one is what an import must restore.
    importance = document.get("importance_stored", given.get("importance"))
    if importance is not None and (
        isinstance(importance, bool) or not isinstance(importance, int | float)
    ):
        raise ValueError(f"metadata.importance: expected a number, not {importance!r:.60}")
    texts = {name: _text(given, name) for name in LABELS}
    return Metadata(
        seq=_integer(given, "seq"),
        ts=_integer(given, "ts"),
        importance=importance,
        attributes=_attributes(given.get("attributes") or {}),
        **texts,
    )


def _attributes(given: Any) -> dict[str, AttributeValue]:
    if not isinstance(given, dict):
        raise ValueError("metadata.attributes: expected an object")
    attributes: dict[str, AttributeValue] = {}
    for name, value in given.items():
        if isinstance(value, list) and all(isinstance(one, str) for one in value):
            attributes[name] = tuple(value)
        elif isinstance(value, str | int | float | bool):
            attributes[name] = value
        else:
            raise ValueError(
                f"metadata.attributes.{name}: expected a text, number, truth value or list of texts"
            )
    return attributes


def _vector(value: Any) -> Vector | None:
    """Numbers, or raw little-endian float32 as base64."""
    if value is None:
        return None
    try:
        if isinstance(value, str):
            return np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
        array = np.asarray(value, dtype=np.float32)
    except (ValueError, TypeError, binascii.Error):
        raise ValueError("vector: expected a list of numbers, or base64 of float32") from None
    if array.ndim != 1:
        raise ValueError("vector: expected a list of numbers")
    return array
