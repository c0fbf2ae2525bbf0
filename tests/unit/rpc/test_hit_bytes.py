"""Hits written as bytes that a reader would take for something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memsvc.domain.hits import Hits
from memsvc.domain.types import Hit, Status
from memsvc.rpc.hit_bytes import hit_list, varint
from memsvc.v1 import memory_service_pb2 as pb
from tests.edges.fakes import hit_id, hits_of, make_hit

floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
times = st.one_of(st.just(0), st.integers(0, 253_402_300_799_999))
counts = st.integers(0, 0xFFFFFFFF)
vectors = st.lists(floats, min_size=1, max_size=3).map(lambda v: np.array(v, np.float32))
heads = st.builds(
    lambda summary, session, role: pb.Hit(
        summary=summary, session=session, metadata={"role": role, "seq": 3}
    ).SerializeToString(),
    st.text(max_size=200),
    st.text(max_size=5),
    st.text(max_size=5),
)
hits = st.builds(
    Hit,
    id=st.integers(0, 2**128 - 1).map(hit_id),
    row=st.integers(0, 2**40),
    head=heads,
    score=floats,
    similarity=st.none() | floats,
    keyword_score=st.none() | floats,
    importance=floats,
    importance_stored=floats,
    ts=times,
    version=counts,
    status=st.sampled_from([s for s in Status if s is not Status.UNSPECIFIED]),
    created_at=times,
    updated_at=times,
    expires_at=times,
    recall_count=counts,
    content=st.none() | st.text(max_size=300),
    vector=st.none() | vectors,
)


def as_message(hit: Hit) -> pb.Hit:
    """Field by field, the slow way."""
    message = pb.Hit.FromString(hit.head)
    message.metadata.ts, message.metadata.importance = hit.ts, hit.importance
    for name in (
        "id",
        "score",
        "similarity",
        "keyword_score",
        "importance_stored",
        "version",
        "status",
        "created_at",
        "updated_at",
        "expires_at",
        "recall_count",
        "content",
    ):
        value: Any = getattr(hit, name)
        if value is not None:
            setattr(message, name, value)
    if hit.vector is not None:
        message.vector.data = hit.vector.tobytes()
    return message


@given(st.lists(hits, max_size=8))
def test_hits_read_back_as_they_were(found: list[Hit]) -> None:
    answer = pb.HitList.FromString(hit_list(hits_of(*found)))
    assert [as_message(hit) for hit in found] == list(answer.items)


def fields_of(data: bytes) -> list[tuple[int, int | bytes, int]]:
    """Numbers, values and value sizes of the fields of a message as they stand on the wire."""

    def number(at: int) -> tuple[int, int]:
        end = at
        while data[end] > 0x7F:
            end += 1
        groups = [byte & 0x7F for byte in data[at : end + 1]]
        return sum(group << 7 * i for i, group in enumerate(groups)), end + 1

    found: list[tuple[int, int | bytes, int]] = []
    at = 0
    while at < len(data):
        key, at = number(at)
        value: int | bytes
        if key & 7 == 0:
            value, end = number(at)
        else:
            size, at = (4, at) if key & 7 == 5 else number(at)
            end = at + size
            value = data[at:end]
        found.append((key >> 3, value, end - at))
        at = end
    return found


@given(st.lists(hits, min_size=1, max_size=8))
def test_readers_that_do_not_merge_parts_of_a_message_lose_no_metadata(found: list[Hit]) -> None:
    for _, item, _ in fields_of(hit_list(hits_of(*found))):
        assert isinstance(item, bytes)
        fields = fields_of(item)
        numbers = [field for field, _, _ in fields]
        assert len(numbers) == len(set(numbers))
        inner = [value for field, value, _ in fields if field == pb.Hit.METADATA_FIELD_NUMBER]
        assert isinstance(inner[0], bytes)
        assert {1, 3, 4} <= {field for field, _, _ in fields_of(inner[0])}


@given(st.lists(hits, min_size=1, max_size=8))
def test_readers_of_32_bits_are_not_given_more_than_5_bytes(found: list[Hit]) -> None:
    of_32_bits = (pb.Hit.VERSION_FIELD_NUMBER, pb.Hit.RECALL_COUNT_FIELD_NUMBER)
    for _, item, _ in fields_of(hit_list(hits_of(*found))):
        assert isinstance(item, bytes)
        assert all(size <= 5 for field, _, size in fields_of(item) if field in of_32_bits)


def test_a_head_without_metadata_gets_what_changes_of_it() -> None:
    bare = make_hit(0, head=pb.Hit(summary="s" * 20_000, session="t").SerializeToString())
    answer = pb.HitList.FromString(hit_list(hits_of(bare)))
    assert list(answer.items) == [as_message(bare)]


@given(st.lists(hits, min_size=1, max_size=8), st.booleans())
def test_columns_give_the_hits_they_were_made_of(found: list[Hit], lean: bool) -> None:
    made = hits_of(*found)
    if lean:
        made = replace(made, contents=None, vectors=None)
        found = [replace(hit, content=None, vector=None) for hit in found]
    assert made.ids == [hit.id for hit in found]
    again = list(made)
    for hit, other in zip(again, found, strict=True):
        assert as_message(hit) == as_message(other)
    backwards = made.take(range(len(found) - 1, -1, -1))
    assert [hit.id for hit in backwards] == [hit.id for hit in reversed(found)]


def test_a_memory_past_its_time_is_told_as_expired() -> None:
    def at(now: int) -> Hits:
        return replace(hits_of(make_hit(0, expires_at=10), make_hit(1)), now=now)

    assert [hit.status for hit in at(9)] == [Status.ACTIVE, Status.ACTIVE]
    assert [hit.status for hit in at(10)] == [Status.EXPIRED, Status.ACTIVE]
    assert pb.HitList.FromString(hit_list(at(10))).items[0].status == int(Status.EXPIRED)


@given(st.integers(1, 2**63 - 1))
def test_numbers_are_written_as_protobuf_writes_them(number: int) -> None:
    assert pb.Hit(created_at=number).SerializeToString() == b"\x58" + varint(number)
