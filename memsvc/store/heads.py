"""The head of a row: a serialised proto Hit with summary, session and metadata.

It is stored in the form in which it is answered, so that the edge only merges it. ``ts``
and ``importance`` change and live in the state; they are never set in a head.
"""

from __future__ import annotations

from collections.abc import Callable

from memsvc.domain import limits
from memsvc.domain.filters import ATTRIBUTE_PREFIX, FilterValue
from memsvc.domain.labels import LABELS
from memsvc.domain.records import State
from memsvc.domain.types import AttributeValue, Metadata
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2 as types


def shown_summary(summary: str, content: str) -> str:
    """The summary as it is answered: the beginning of the content when there is none."""
    return summary if summary.strip() else content[: limits.SUMMARY_FALLBACK_CHARS]


def keyword_text(summary: str, content: str) -> str:
    """What words are searched in: the summary, or the content when ``summary`` is
    only its beginning."""
    if content and summary == content[: limits.SUMMARY_FALLBACK_CHARS]:
        return content
    return summary


def build_head(summary: str, session: str, metadata: Metadata) -> bytes:
    """The serialised head; ``summary`` as it is to be shown."""
    hit = pb.Hit()
    hit.summary = summary
    if session:
        hit.session = session
    target = hit.metadata
    # An all-empty metadata must still be present, so that answers always have one.
    target.SetInParent()
    if metadata.seq is not None:
        target.seq = metadata.seq
    # One by one and by name: a loop over LABELS takes twice as long, for every new memory.
    _seq, role, _ts, _importance, source, topic, category, kind, key, attributes = metadata
    if role:
        target.role = role
    if source:
        target.source = source
    if topic:
        target.topic = topic
    if category:
        target.category = category
    if kind:
        target.memory_type = kind
    if key:
        target.topic_key = key
    for name, value in attributes.items():
        set_value(target.attributes[name], value)
    # Only a map has more than one spelling, and ordering costs as much as all the rest.
    return hit.SerializeToString(deterministic=bool(attributes))


def set_value(target: types.Value, value: AttributeValue) -> None:
    """Sets a proto Value from a typed value."""
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, int):
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    else:
        target.list_value.values.extend(value)
        target.list_value.SetInParent()


def get_value(value: types.Value) -> AttributeValue:
    """The typed value of a proto Value. Raises ValueError when none is set."""
    kind = value.WhichOneof("kind")
    if kind is None:
        raise ValueError("no value is set")
    if kind == "list_value":
        return tuple(value.list_value.values)
    found: AttributeValue = getattr(value, kind)
    return found


def parse_head(head: bytes) -> pb.Hit:
    """The head as a message."""
    return pb.Hit.FromString(head)


def metadata_of(hit: pb.Hit) -> Metadata:
    """Metadata of a head, without ts and importance."""
    m = hit.metadata
    return Metadata(
        seq=m.seq if m.HasField("seq") else None,
        role=m.role,
        source=m.source,
        topic=m.topic,
        category=m.category,
        memory_type=m.memory_type,
        topic_key=m.topic_key,
        attributes={name: get_value(value) for name, value in m.attributes.items()},
    )


def merged(old: Metadata, new: Metadata, clear: tuple[str, ...]) -> Metadata:
    """Old metadata with the set fields of ``new``, without the fields in ``clear``.
    ts and importance are not looked at."""
    changes: dict[str, object] = {}
    if new.seq is not None:
        changes["seq"] = new.seq
    for label in LABELS:
        if getattr(new, label):
            changes[label] = getattr(new, label)
    attributes = {**old.attributes, **new.attributes}
    for name in clear:
        if name.startswith(ATTRIBUTE_PREFIX):
            attributes.pop(name[len(ATTRIBUTE_PREFIX) :], None)
        else:
            changes[name] = None if name == "seq" else ""
    return old._replace(attributes=attributes, **changes)  # type: ignore[arg-type]  # fields by name


def field_getter(head: bytes, state: State) -> Callable[[str], FilterValue | None]:
    """Gives the value of any filter field of a record; None = missing."""
    hit = parse_head(head)
    metadata = hit.metadata

    def get(field: str) -> FilterValue | None:
        if field == "status":
            return state.status
        if field == "ts":
            return state.ts
        if field == "importance":
            return state.importance
        if field == "session":
            return hit.session or None
        if field == "seq":
            return metadata.seq if metadata.HasField("seq") else None
        if field.startswith(ATTRIBUTE_PREFIX):
            name = field[len(ATTRIBUTE_PREFIX) :]
            return get_value(metadata.attributes[name]) if name in metadata.attributes else None
        value: str = getattr(metadata, field)
        return value or None

    return get
