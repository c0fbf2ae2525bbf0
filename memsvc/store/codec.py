"""Log entries to protobuf and back. Payloads are not part of an entry's bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from memsvc.domain.log import (
    LOG_FORMAT,
    Action,
    Effect,
    Entry,
    Generation,
    Payload,
    Record,
    RememberedRequest,
    VectorRange,
)
from memsvc.domain.types import Status
from memsvc.replication.v1 import log_pb2 as pb
from memsvc.replication.v1 import replication_service_pb2 as service_pb
from memsvc.v1 import types_pb2


class UnknownFormat(Exception):
    """A log entry of a later version: this node must stop, never skip it."""


def encode(entry: Entry) -> bytes:
    """Serialised LogEntry."""
    message = pb.LogEntry(
        format=entry.format,
        epoch=entry.epoch,
        position=entry.position,
        time=entry.time,
        tenant=entry.tenant,
        agent=entry.agent,
        actor=entry.actor,
        action=cast("pb.Action.ValueType", int(entry.action)),
        reason=entry.reason,
        operation_id=entry.operation_id,
    )
    add = message.effects.add
    for e in entry.effects:
        effect = add(
            id=e.id,
            action=e.action,
            row=e.row,
            version=e.version,
            status_after=e.status_after,
            payload_hash=e.payload_hash,
            dedup_hash=e.dedup_hash,
            ts=e.ts,
            importance=e.importance,
            recalled_at=e.recalled_at,
        )
        # What is zero takes no byte but time. A new memory has none of these.
        if e.status_before:
            effect.status_before = cast("types_pb2.Status.ValueType", e.status_before)
        if e.expires_at:
            effect.expires_at = e.expires_at
        if e.recall_count:
            effect.recall_count = e.recall_count
        if e.generation:
            effect.generation = e.generation
        if e.replaces_row:
            effect.replaces_row = e.replaces_row
    if entry.request is not None:
        message.request.key = entry.request.key
        message.request.fingerprint = entry.request.fingerprint
        message.request.response = entry.request.response
    if entry.generation is not None:
        message.generation.number = entry.generation.number
        message.generation.embedding = entry.generation.embedding
        message.generation.dimension = entry.generation.dimension
        message.generation.is_default = entry.generation.is_default
        message.generation.dropped = entry.generation.dropped
        message.generation.dtype = entry.generation.dtype
        message.generation.m = entry.generation.m
        message.generation.ef_construction = entry.generation.ef_construction
    if entry.purged is not None:
        message.purged.generation, message.purged.row_lo, message.purged.row_hi = entry.purged
    return message.SerializeToString(deterministic=True)


def decode(data: bytes) -> Entry:
    """The entry, effects without payloads. Raises UnknownFormat."""
    message = pb.LogEntry.FromString(data)
    if not 1 <= message.format <= LOG_FORMAT:
        raise UnknownFormat(f"log entry format {message.format}, this software knows {LOG_FORMAT}")
    try:
        effects = tuple(
            Effect(
                e.id,
                Action(e.action),
                e.row,
                e.version,
                Status(e.status_before),
                Status(e.status_after),
                e.ts,
                e.importance,
                e.expires_at,
                e.recalled_at,
                e.recall_count,
                e.payload_hash,
                e.dedup_hash,
                e.generation,
                e.replaces_row,
            )
            for e in message.effects
        )
        action = Action(message.action)
    except ValueError as error:
        raise UnknownFormat(f"log entry {message.position}: {error}") from error
    request = generation = purged = None
    if message.HasField("request"):
        r = message.request
        request = RememberedRequest(r.key, r.fingerprint, r.response)
    if message.HasField("generation"):
        g = message.generation
        generation = Generation(
            g.number,
            g.embedding,
            g.dimension,
            g.is_default,
            g.dropped,
            g.dtype,
            g.m,
            g.ef_construction,
        )
    if message.HasField("purged"):
        p = message.purged
        purged = VectorRange(p.generation, p.row_lo, p.row_hi)
    return Entry(
        tenant=message.tenant,
        agent=message.agent,
        action=action,
        effects=effects,
        actor=message.actor,
        reason=message.reason,
        operation_id=message.operation_id,
        request=request,
        generation=generation,
        purged=purged,
        epoch=message.epoch,
        position=message.position,
        time=message.time,
    )


def encode_record(record: Record) -> service_pb.Record:
    """An entry with its payloads, as it travels."""
    message = service_pb.Record(entry=record.data, digest=record.digest)
    for place, effect in enumerate(record.entry.effects):
        payload = effect.payload
        if payload is not None:
            message.payloads.add(
                effect=place,
                payload=pb.Payload(
                    head=payload.head,
                    content=payload.content,
                    vectors=payload.vectors,
                    salt=payload.salt,
                    dedup_key=payload.dedup_key,
                ),
            )
    return message


def decode_record(message: service_pb.Record) -> Record:
    """The reverse. Raises UnknownFormat."""
    entry = decode(message.entry)
    effects = list(entry.effects)
    for found in message.payloads:
        p = found.payload
        if found.effect >= len(effects):
            raise UnknownFormat(f"log entry {entry.position} has no effect {found.effect}")
        payload = Payload(p.head, p.content, p.salt, p.dedup_key, dict(p.vectors))
        effects[found.effect] = effects[found.effect]._replace(payload=payload)
    return Record(replace(entry, effects=tuple(effects)), message.entry, message.digest)
