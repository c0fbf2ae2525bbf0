"""Domain values as messages, and messages as plain values."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from numpy.typing import NDArray

from memsvc.client.filters import filter_message, parse_filter, value_message
from memsvc.domain import filters as f
from memsvc.domain.types import (
    LateVector,
    Metadata,
    Namespace,
    NewMemory,
    RankOptions,
    Touch,
    Update,
    WriteItem,
)
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2

LAST_SEQ: Final = "last_seq"
"""Attribute with the seq of the last turn of a memory that covers several."""

VectorLike = NDArray[Any] | Sequence[float]
FilterLike = f.Filter | Mapping[str, object]
NamespaceLike = Namespace | str


def parse_namespace(text: str) -> Namespace:
    """ "tenant/agent" or "tenant/agent/session"; ValueError for anything else."""
    parts = text.split("/")
    if len(parts) not in (2, 3) or not all(parts):
        raise ValueError(f"expected tenant/agent or tenant/agent/session, not {text!r}")
    return Namespace(*parts)


def namespace_message(namespace: NamespaceLike) -> types_pb2.Namespace:
    """A namespace, given as such or as a text."""
    if isinstance(namespace, str):
        namespace = parse_namespace(namespace)
    return types_pb2.Namespace(
        tenant=namespace.tenant, agent=namespace.agent, session=namespace.session
    )


def vector_message(vector: VectorLike) -> types_pb2.Vector:
    """A vector as raw bytes, which are cheaper to read than numbers."""
    array = np.ascontiguousarray(vector, dtype="<f4")
    if array.ndim != 1:
        raise ValueError(f"a vector has one dimension, not shape {array.shape}")
    return types_pb2.Vector(data=array.tobytes())


def vector_array(message: types_pb2.Vector) -> NDArray[np.float32]:
    """The numbers of a vector message."""
    if message.data:
        return np.frombuffer(message.data, dtype="<f4")
    return np.array(message.values, dtype=np.float32)


def any_filter(node: FilterLike) -> types_pb2.Filter:
    """A filter, given as a tree or in the JSON form of the HTTP interface."""
    return filter_message(parse_filter(node) if isinstance(node, Mapping) else node)


def metadata_message(metadata: Metadata) -> types_pb2.Metadata:
    """Metadata; what is None or "" is left unset."""
    return types_pb2.Metadata(
        seq=metadata.seq,
        role=metadata.role,
        ts=metadata.ts,
        importance=metadata.importance,
        source=metadata.source,
        topic=metadata.topic,
        category=metadata.category,
        memory_type=metadata.memory_type,
        topic_key=metadata.topic_key,
        attributes={name: value_message(one) for name, one in metadata.attributes.items()},
    )


def item_message(item: WriteItem) -> pb.WriteItem:
    """One change."""
    if isinstance(item, NewMemory):
        memory = pb.Memory(
            dedup_key=item.dedup_key,
            content=item.content,
            summary=item.summary,
            metadata=metadata_message(item.metadata),
            ttl_ms=item.ttl_ms,
            status=types_pb2.Status.ValueType(item.status),
        )
        if item.vector is not None:
            memory.vector.CopyFrom(vector_message(item.vector))
        return pb.WriteItem(memory=memory)
    if isinstance(item, Touch):
        return pb.WriteItem(
            touch=pb.Touch(
                id=item.id,
                ts=item.ts,
                importance=item.importance,
                kind=pb.TouchKind.ValueType(item.kind),
            )
        )
    if isinstance(item, LateVector):
        return pb.WriteItem(
            vector=pb.LateVector(
                id=item.id, if_version=item.if_version, vector=vector_message(item.vector)
            )
        )
    return pb.WriteItem(update=_update_message(item))


def _update_message(item: Update) -> pb.Update:
    message = pb.Update(
        id=item.id,
        if_version=item.if_version,
        content=item.content,
        summary=item.summary,
        clear_vector=item.clear_vector,
        metadata=metadata_message(item.metadata),
        clear_fields=item.clear_fields,
        ttl_ms=item.ttl_ms,
        status=types_pb2.Status.ValueType(item.status),
        reason=item.reason,
    )
    if item.vector is not None:
        message.vector.CopyFrom(vector_message(item.vector))
    return message


def rank_message(rank: RankOptions) -> pb.Rank:
    """Options of the re-ranking on the server."""
    return pb.Rank(
        similarity_weight=rank.similarity_weight,
        importance_weight=rank.importance_weight,
        freshness_weight=rank.freshness_weight,
        half_life_ms=rank.half_life_ms,
        max_per_topic=rank.max_per_topic,
        token_budget=rank.token_budget,
        keep=rank.keep,
    )


def to_plain(message: Message) -> dict[str, Any]:
    """A message as plain values, as the HTTP interface shows it: integers as numbers, enum
    values by their short names, vectors as lists of numbers; what is unset is left out."""
    return {field.name: _plain_field(field, value) for field, value in message.ListFields()}


def _plain_field(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        return {str(key): _plain_value(inner, value[key]) for key in sorted(value)}
    if field.is_repeated:
        return [_plain_value(field, one) for one in value]
    return _plain_value(field, value)


def _plain_value(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, types_pb2.Vector):
        return [float(number) for number in vector_array(value)]
    if isinstance(value, types_pb2.Value):
        kind = value.WhichOneof("kind")
        if kind == "list_value":
            return list(value.list_value.values)
        return getattr(value, kind) if kind else None
    if isinstance(value, Message):
        return to_plain(value)
    if field.enum_type is not None:
        return enum_name(field, value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and field.type == FieldDescriptor.TYPE_FLOAT:
        # 0.8 was sent, 0.800000011920929 is what a float32 makes of it.
        return float(f"{value:.7g}")
    return value


def enum_name(field: FieldDescriptor, number: int) -> str | int:
    """The short name of an enum value, as in HARD for FORGET_MODE_HARD; a number that this
    version does not know stays a number."""
    assert field.enum_type is not None
    value = field.enum_type.values_by_number.get(number)
    if value is None:
        return number
    zero = field.enum_type.values_by_number[0].name
    return str(value.name).removeprefix(zero.removesuffix("UNSPECIFIED"))
