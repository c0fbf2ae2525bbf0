"""What is written to disk comes back the same; what is unknown stops, and is never skipped."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from memsvc.domain.log import (
    LOG_FORMAT,
    Action,
    Effect,
    Entry,
    Generation,
    Payload,
    RememberedRequest,
    VectorRange,
)
from memsvc.domain.manifest import FileMeta, SegmentMeta, segment_from_json
from memsvc.domain.records import STATE_DTYPE, STATE_STRUCT, State, unpack_state
from memsvc.domain.types import Metadata, Status
from memsvc.replication.v1 import log_pb2
from memsvc.store import codec, heads, keys

EFFECT = Effect(
    id=bytes(range(16)),
    action=Action.UPDATE,
    row=2**40,
    version=3,
    status_before=Status.REVIEW,
    status_after=Status.ACTIVE,
    ts=1_700_000_000_000,
    importance=0.25,
    expires_at=5,
    recalled_at=6,
    recall_count=2**32 - 1,
    payload_hash=b"p" * 16,
    dedup_hash=b"d" * 16,
    generation=2,
    replaces_row=7,
)
ENTRY = Entry(
    tenant="acme",
    agent="helper",
    action=Action.WRITE,
    effects=(EFFECT, EFFECT._replace(action=Action.PUT, replaces_row=0)),
    actor="token 1",
    reason="because 原因",
    operation_id="op",
    request=RememberedRequest(b"k" * 16, b"f" * 16, b"{}"),
    generation=Generation(2, "model", 1_536, False, True, "f16", 24, 300),
    epoch=3,
    position=2**50,
    time=1_700_000_000_000,
)


def test_an_entry_comes_back_without_its_payloads() -> None:
    payload = Payload(b"head", "content", b"s" * 16, "key", {1: b"1234"})
    written = replace(ENTRY, effects=tuple(e._replace(payload=payload) for e in ENTRY.effects))
    data = codec.encode(written)
    assert codec.decode(data) == ENTRY
    assert codec.encode(codec.decode(data)) == data, "the digest needs one spelling"
    assert b"content" not in data and b"head" not in data
    assert codec.decode(codec.encode(Entry("", "", Action.NONE))) == Entry("", "", Action.NONE)


@pytest.mark.parametrize("action", Action)
@pytest.mark.parametrize("status", Status)
def test_every_action_and_status_has_a_number_in_the_log(action: Action, status: Status) -> None:
    effect = EFFECT._replace(action=action, status_after=status)
    entry = replace(ENTRY, action=action, effects=(effect,))
    assert codec.decode(codec.encode(entry)) == entry


def test_only_what_is_about_generations_beside_the_first_has_the_later_format() -> None:
    first = Generation(1, "model", 8, True)
    for entry, wanted in (
        (Entry("t", "a", Action.WRITE, effects=(EFFECT,)), 1),
        (Entry("", "", Action.GENERATION, generation=first), 1),
        (Entry("", "", Action.GENERATION, generation=replace(first, number=2)), 2),
        (Entry("", "", Action.GENERATION_DEFAULT, generation=first), 2),
        (Entry("", "", Action.GENERATION_DROP, generation=replace(first, dropped=True)), 2),
        (Entry("t", "a", Action.GENERATION_PURGE, purged=VectorRange(1, 7, 2**40)), 2),
    ):
        data = codec.encode(entry)
        assert log_pb2.LogEntry.FromString(data).format == wanted
        assert codec.decode(data) == entry
        assert codec.encode(codec.decode(data)) == data


def _changed(change: str) -> bytes:
    message: Any = log_pb2.LogEntry.FromString(codec.encode(ENTRY))
    if change == "format":
        message.format = LOG_FORMAT + 1
    elif change == "no format":
        message.format = 0
    elif change == "action":
        message.action = 99
    elif change == "effect":
        message.effects[1].action = 99
    else:
        message.effects[0].status_after = 99
    changed: bytes = message.SerializeToString()
    return changed


@pytest.mark.parametrize("change", ["format", "no format", "action", "effect", "status"])
def test_an_entry_of_a_later_version_stops_and_is_never_skipped(change: str) -> None:
    with pytest.raises(codec.UnknownFormat):
        codec.decode(_changed(change))


def test_a_state_is_the_same_bytes_for_struct_and_numpy() -> None:
    state = State(bytes(range(16)), 9, 3, 1, 0, 11, 12, 13, 14, 15, 0.5, 16, 17)
    data = state.pack()
    assert unpack_state(data) == state
    assert len(data) == STATE_STRUCT.size == STATE_DTYPE.itemsize
    (row,) = np.frombuffer(data, STATE_DTYPE)
    assert tuple(STATE_DTYPE.names or ()) == State._fields
    for name in State._fields[1:]:
        assert row[name] == getattr(state, name), name
    assert bytes(row["id"]) == state.id


@pytest.mark.parametrize(
    "text",
    [
        keys.Text(b"", "", "", bytes(16)),
        keys.Text(b"head", "content 原文", "key é", b"s" * 16),
        keys.Text(b"h" * 100_000, "x" * 65_536, "k" * 512, b"s" * 16),
    ],
    ids=["empty", "short", "long"],
)
def test_a_text_comes_back_and_its_head_alone(text: keys.Text) -> None:
    data = keys.pack_text(*text)
    assert keys.unpack_text(data) == text
    assert keys.text_head(data) == text.head


def test_a_partition_comes_back() -> None:
    numbers = {f.name: n for n, f in enumerate(fields(keys.Partition), 1)}
    values: dict[str, Any] = {**numbers, "number": 5, "tenant": "acme é", "agent": "a:b"}
    partition = keys.Partition(**values)
    assert keys.unpack_partition(5, partition.pack()) == partition
    assert partition.copy() == partition and partition.copy() is not partition


def test_keys_sort_as_their_numbers() -> None:
    numbers = [0, 1, 255, 256, 65_535, 2**32, 2**40]
    rows = [keys.row_key(2, n) for n in numbers]
    assert rows == sorted(rows)
    assert keys.row_key(1, 2**40) < keys.row_key(2, 0)
    times = [keys.TIMED_ROW.pack(n, 1, 1) for n in numbers]
    assert times == sorted(times)


def test_no_name_is_the_prefix_of_another() -> None:
    names = [keys.name_key(*n) for n in (("acme", "a"), ("acme-corp", "a"), ("acme", "ab"))]
    assert keys.name_key("acme", "") == b"acme\0"
    assert [n.startswith(b"acme\0") for n in names] == [True, False, True]
    assert keys.name_key("a", "bc") != keys.name_key("ab", "c")


def test_request_ids_of_other_calls_and_namespaces_have_other_hashes() -> None:
    hashes = {
        keys.request_hash(call, tenant, agent, "r")
        for call in ("Write", "Forget")
        for tenant, agent in (("a", "bc"), ("ab", "c"), ("a", "b"))
    }
    assert len(hashes) == 6
    assert keys.dedup_hash("a") != keys.dedup_hash("b")


def test_the_hash_of_a_payload_depends_on_every_part_and_the_salt() -> None:
    base = (b"s" * 16, b"head", "content", {1: b"1234", 2: b"5678"})
    found = {
        keys.payload_hash(*base),
        keys.payload_hash(b"t" * 16, *base[1:]),
        keys.payload_hash(base[0], b"headc", "ontent", base[3]),
        keys.payload_hash(*base[:2], "other", base[3]),
        keys.payload_hash(*base[:3], {1: b"1234"}),
        keys.payload_hash(*base[:3], {1: b"1234", 3: b"5678"}),
        keys.payload_hash(*base[:3], {}),
    }
    assert len(found) == 7
    assert keys.payload_hash(*base[:3], {2: b"5678", 1: b"1234"}) in found


@pytest.mark.parametrize(
    ("vector", "accounted"), [(0, 0), (32, 32), (1_900, 1_900), (1_901, 4_096), (6_144, 8_192)]
)
def test_vectors_are_accounted_by_the_pages_they_take(vector: int, accounted: int) -> None:
    vectors = {1: bytes(vector)} if vector else {}
    found = keys.accounted_bytes(b"head", "é", vectors)
    assert found == keys.ENTRY_OVERHEAD_BYTES + 4 + 2 + accounted


def test_a_segment_comes_back_from_the_manifest_and_another_format_is_refused() -> None:
    files = (FileMeta("rows", 1, "rows-1.bin", 10, "ab"), FileMeta("columns", 0, "c.bin", 5, "cd"))
    meta = SegmentMeta("name", 3, 1, 9, 77, 8, files)
    assert segment_from_json(meta.to_json()) == meta
    assert meta.size == 15
    assert meta.file("rows", 1) == files[0] and meta.file("rows", 2) is None
    with pytest.raises(ValueError, match="format"):
        segment_from_json(meta.to_json().replace(b'"format": 1', b'"format": 2'))


def test_the_manifest_of_an_earlier_version_is_read() -> None:
    """Graphs of which nothing is known, and fields that a later version added."""
    text = (
        '{"format": 1, "name": "a", "partition": 1, "row_lo": 1, "row_hi": 9, "position": 3,'
        ' "count": 8, "later": 1, "files": [{"kind": "graph", "generation": 1, "name": "g",'
        ' "bytes": 5, "checksum": "00"%s}]}'
    )
    (file,) = segment_from_json(text % "").files
    assert file.graph is None
    (file,) = segment_from_json(text % ', "later": 2').files
    assert (file.bytes, file.graph) == (5, None)


METADATA = Metadata(
    seq=-3,
    role="user",
    source="chat",
    topic="food",
    category="c",
    memory_type="m",
    topic_key="k",
    attributes={
        "s": "x",
        "e": "",
        "i": 2**62,
        "d": 1.5,
        "t": True,
        "f": False,
        "l": ("a",),
        "n": (),
    },
)


def test_metadata_comes_back_from_a_head_with_its_types() -> None:
    head = heads.build_head("summary", "s1", METADATA)
    hit = heads.parse_head(head)
    found = heads.metadata_of(hit)
    assert found == METADATA
    assert {n: type(v) for n, v in found.attributes.items()} == {
        n: type(v) for n, v in METADATA.attributes.items()
    }
    assert (hit.summary, hit.session) == ("summary", "s1")
    assert heads.build_head("summary", "s1", found) == head


def test_merging_metadata_sets_what_is_given_and_clears_what_is_named() -> None:
    new = Metadata(role="assistant", attributes={"s": "y", "z": 1})
    found = heads.merged(METADATA, new, ("seq", "topic", "attributes.i", "attributes.none"))
    assert (found.role, found.source, found.topic, found.seq) == ("assistant", "chat", "", None)
    assert found.attributes["s"] == "y" and found.attributes["z"] == 1
    assert "i" not in found.attributes
    assert METADATA.attributes["s"] == "x", "the old one is left alone"


def test_filters_read_every_field_of_a_head() -> None:
    state = State(bytes(16), 1, int(Status.REVIEW), 1, 0, 0, 0, 42, 0, 0, 0.5, 0, 0)
    get = heads.field_getter(heads.build_head("x", "s1", METADATA), state)
    wanted = {
        "status": 2,
        "ts": 42,
        "importance": 0.5,
        "session": "s1",
        "seq": -3,
        "topic": "food",
        "attributes.t": True,
        "attributes.e": "",
        "attributes.n": (),
        "attributes.no": None,
    }
    assert {name: get(name) for name in wanted} == wanted
    empty = heads.field_getter(heads.build_head("x", "", Metadata()), state)
    assert [empty(n) for n in ("session", "seq", "topic", "attributes.t")] == [None] * 4


@pytest.mark.parametrize(
    ("summary", "content", "shown", "searched"),
    [
        ("s", "c", "s", "s"),
        ("", "c", "c", "c"),
        ("  ", "c", "c", "c"),
        ("s", "", "s", "s"),
        ("", "x" * 300, "x" * 240, "x" * 300),
    ],
)
def test_what_is_shown_and_what_is_searched(
    summary: str, content: str, shown: str, searched: str
) -> None:
    assert heads.shown_summary(summary, content) == shown
    assert heads.keyword_text(shown, content) == searched
