"""Domain answers as JSON objects. What is unset is left out; int64 are JSON numbers."""

from __future__ import annotations

import json
from typing import Any

from memsvc.domain.labels import LABELS
from memsvc.domain.types import (
    Degraded,
    ForgetAnswer,
    HealthAnswer,
    Hit,
    QueryAnswer,
    WriteAnswer,
)
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2

_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def dumps(document: object) -> bytes:
    """UTF-8 JSON."""
    return _encoder.encode(document).encode("utf-8", "backslashreplace")


def write_object(answer: WriteAnswer) -> dict[str, Any]:
    """Results in the order of the items."""
    return {
        "results": [
            {
                "id": result.id,
                "outcome": result.outcome.name,
                "status": result.status.name,
                "version": result.version,
            }
            for result in answer.results
        ],
        "position": answer.position,
        "replayed": answer.replayed,
    }


def query_object(answer: QueryAnswer) -> dict[str, Any]:
    """One list of hits under ``items``, or one for each vector under ``results``."""
    document: dict[str, Any] = {}
    if answer.many:
        document["results"] = [
            {"items": [hit_object(hit) for hit in hits]} for hits in answer.lists
        ]
    else:
        document["items"] = [hit_object(hit) for hits in answer.lists for hit in hits]
    document["degraded"] = degraded_object(answer.degraded)
    document["position"] = answer.position
    document["mode"] = answer.mode.name
    if answer.next_page_token:
        document["next_page_token"] = answer.next_page_token
    if answer.explain:
        document["explain"] = [
            {
                "part": part.part,
                "plan": part.plan,
                "rows": part.rows,
                "matching": part.matching,
                "candidates": part.candidates,
                "why": part.why,
                "elapsed_us": part.elapsed_us,
            }
            for part in answer.explain
        ]
    return document


def hit_object(hit: Hit) -> dict[str, Any]:
    """One memory found."""
    head = pb.Hit.FromString(hit.head)
    item: dict[str, Any] = {"id": hit.id}
    if hit.similarity is not None:
        item["similarity"] = hit.similarity
    item["score"] = hit.score
    if hit.keyword_score is not None:
        item["keyword_score"] = hit.keyword_score
    item["summary"] = head.summary
    if hit.content is not None:
        item["content"] = hit.content
    item["metadata"] = _metadata(head.metadata, hit)
    item["version"] = hit.version
    item["status"] = hit.status.name
    if head.session:
        item["session"] = head.session
    item["importance_stored"] = _importance(hit.importance_stored)
    item["created_at"] = hit.created_at
    item["updated_at"] = hit.updated_at
    item["expires_at"] = hit.expires_at
    item["recall_count"] = hit.recall_count
    if hit.vector is not None:
        item["vector"] = hit.vector.tolist()
    return item


def _importance(value: float) -> float:
    # Stored as float32: seven digits give back the 0.8 that was written, and not
    # 0.800000011920929.
    return round(value, 7)


def _metadata(message: types_pb2.Metadata, hit: Hit) -> dict[str, Any]:
    metadata: dict[str, Any] = {"ts": hit.ts, "importance": _importance(hit.importance)}
    if message.HasField("seq"):
        metadata["seq"] = message.seq
    for label in LABELS:
        text = getattr(message, label)
        if text:
            metadata[label] = text
    if message.attributes:
        metadata["attributes"] = {
            name: _value(message.attributes[name]) for name in sorted(message.attributes)
        }
    return metadata


def _value(message: types_pb2.Value) -> object:
    kind = message.WhichOneof("kind")
    if kind == "list_value":
        return list(message.list_value.values)
    return None if kind is None else getattr(message, kind)


def forget_object(answer: ForgetAnswer) -> dict[str, Any]:
    """What was forgotten."""
    return {
        "matched": answer.matched,
        "changed": answer.changed,
        "ids": list(answer.ids),
        "ids_truncated": answer.ids_truncated,
        "position": answer.position,
        "replayed": answer.replayed,
    }


def degraded_object(degraded: Degraded) -> dict[str, Any]:
    """Level and reason; 0 and "" at full service."""
    return {"level": int(degraded.level), "reason": degraded.reason}


def health_object(answer: HealthAnswer, whole: bool) -> dict[str, Any]:
    """How the node is; without ``whole`` only what anyone may know."""
    document: dict[str, Any] = {
        "ready": answer.ready,
        "role": answer.role.upper(),
        "degraded": degraded_object(answer.degraded),
        "version": answer.version,
    }
    if not whole:
        return document
    load, store = answer.load, answer.store
    return {
        **document,
        "position": answer.position,
        "lag_positions": answer.lag_positions,
        "lag_ms": answer.lag_ms,
        "store_id": answer.store_id,
        "reasons": list(answer.reasons),
        "epoch": answer.epoch,
        "load": {name: getattr(load, name) for name in load.__slots__},
        "store": {
            **{name: getattr(store, name) for name in store.__slots__},
            "embeddings": [
                {name: getattr(e, name) for name in e.__slots__} for e in store.embeddings
            ],
        },
    }
