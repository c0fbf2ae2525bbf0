"""What only gRPC can be sent: bytes that are no message, and messages that JSON cannot say."""

from __future__ import annotations

from random import Random
from typing import Any

from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2 as types
from tests.hostile.case import (
    DENIED,
    DIMENSION,
    MALFORMED,
    OK,
    Call,
    Case,
    Expect,
    Facts,
    good,
    wire,
    wrong,
)
from tests.hostile.encode import message

MEMORY = "/memsvc.v1.MemoryService/"
ADMIN = "/memsvc.admin.v1.AdminService/"
CALLS: tuple[Call, ...] = ("Write", "Query", "Forget")


def case(name: str, call: str, body: bytes, expect: Expect, **more: Any) -> Case:
    return Case(name, "grpc", MEMORY + call, body, expect, **more)


def complete(call: Call, random: Random, facts: Facts) -> bytes:
    """A good message; a Forget that would forget something."""
    document = good(call, random)
    if call == "Query":
        document["text"] = "number1"
    elif call == "Forget":
        document["namespace"]["agent"] = "victim"
        document.update(ids=facts.own_ids, mode="HARD")
    return message(call, document, random).SerializeToString()


def field(number: int, kind: int, body: bytes) -> bytes:
    """A field as it is on the wire."""
    tag, out = number << 3 | kind, b""
    while tag > 0x7F:
        out += bytes([tag & 0x7F | 0x80])
        tag >>= 7
    return out + bytes([tag]) + body


def sized(body: bytes) -> bytes:
    """A body behind its length."""
    size, out = len(body), b""
    while size > 0x7F:
        out += bytes([size & 0x7F | 0x80])
        size >>= 7
    return out + bytes([size]) + body


@wire(3)
def bytes_that_are_no_message(r: Random, f: Facts) -> Case:
    call = r.choice(CALLS)
    whole = complete(call, r, f)
    deep = b""
    for _ in range(300):
        deep = field(4, 2, sized(deep))
    body = r.choice(
        [
            whole + b"\xff" * r.randrange(1, 12),  # a tag without end
            whole + b"\x00",  # field number 0
            whole + field(2, 7, b""),  # a wire type that does not exist
            whole + field(99, 3, b""),  # a group without end
            whole + field(2, 2, b"\xff\xff\xff\xff\x0f"),  # longer than what follows
            field(1, 2, sized(field(1, 2, sized(b"ac\xffme")))) + whole,  # not UTF-8
            field(1, 2, sized(field(1, 2, sized(b"\xed\xa0\x80")))) + whole,  # a surrogate
            field(8, 2, sized(deep)) if call == "Query" else whole + b"\x0a\x05\x0a",
            b"\x0a\x7f",
        ]
    )
    return case("bytes that are no message", call, body, MALFORMED)


@wire(2)
def field_that_nobody_knows(r: Random, f: Facts) -> Case:
    call = r.choice((*CALLS, "Health"))
    number = r.choice([15_000, 99, 536_870_911])
    extra = field(number, *r.choice([(2, sized(b"x" * 50)), (0, b"\x01"), (5, b"abcd")]))
    if call == "Health":
        return case("unknown field", call, extra, wrong(""))
    body = complete(call, r, f) + extra
    if r.random() < 0.5:
        body = field(1, 2, sized(extra)) + complete(call, r, f)
        return case("unknown field inside", call, body, wrong("namespace"))
    return case("unknown field", call, body, wrong(""))


@wire(2)
def number_that_no_enum_has(r: Random, f: Facts) -> Case:
    number: Any = r.choice([8, 99, 2**31 - 1, -1, -(2**31)])
    space = types.Namespace(tenant="acme", agent="sink")
    if r.random() < 0.3:
        query = pb.QueryRequest(namespace=space, text="x", mode=number)
        return case("unknown mode", "Query", query.SerializeToString(), wrong("mode"))
    if r.random() < 0.5:
        forget = pb.ForgetRequest(namespace=space, ids=["x"], mode=number)
        return case("unknown mode", "Forget", forget.SerializeToString(), wrong("mode"))
    write = pb.WriteRequest(namespace=space)
    if r.random() < 0.5:
        write.items.add(memory=pb.Memory(content="x", status=number))
        where = "items[0].memory.status"
    else:
        write.items.add(touch=pb.Touch(id="x", kind=number))
        where = "items[0].touch.kind"
    return case("unknown number", "Write", write.SerializeToString(), wrong(where))


@wire(2)
def message_that_leaves_something_open(r: Random, f: Facts) -> Case:
    write = pb.WriteRequest(namespace=types.Namespace(tenant="acme", agent="sink"))
    item = write.items.add(memory=pb.Memory(content="x"))
    raw, path = b"\0\0\x80\x3f" * DIMENSION, "items[0].memory"
    kind = r.randrange(5)
    if kind == 0:
        item.Clear()
        path = "items[0]"
    elif kind == 1:
        item.memory.vector.CopyFrom(types.Vector(values=[1.0], data=raw))
        path += ".vector"
    elif kind == 2:
        item.memory.vector.data = raw[: -r.randrange(1, 4)]
        path += ".vector.data"
    elif kind == 3:
        item.memory.vector.data = r.choice([b"\xff\xff\xff\x7f", b"\0\0\x80\x7f"]) + raw[4:]
        path += ".vector"
    else:
        item.memory.metadata.attributes["a"].CopyFrom(types.Value())
        path += ".metadata.attributes.a"
    return case("something left open", "Write", write.SerializeToString(), wrong(path))


@wire()
def filter_that_leaves_something_open(r: Random, f: Facts) -> Case:
    empty = types.Filter()
    condition = types.Condition(field="topic")
    tree = r.choice(
        [
            empty,
            types.Filter(negate=empty),
            types.Filter(all_of=types.FilterList()),
            types.Filter(condition=condition),
            types.Filter(condition=types.Condition(field="topic", equals=types.Value())),
            types.Filter(condition=types.Condition(field="topic", range=types.Range())),
            types.Filter(condition=types.Condition(exists=True)),
        ]
    )
    query = pb.QueryRequest(namespace=types.Namespace(tenant="acme", agent="sink"), filters=tree)
    return case("open filter", "Query", query.SerializeToString(), wrong("filters"))


@wire()
def last_of_several_values_counts(r: Random, f: Facts) -> Case:
    # Fields that stand twice are merged: whoever checked the first only would be deceived.
    foreign = types.Namespace(tenant="acme-corp")
    twice = pb.QueryRequest(namespace=foreign).SerializeToString()
    return case("namespace given twice", "Query", complete("Query", r, f) + twice, DENIED)


@wire()
def method_that_does_not_exist(r: Random, f: Facts) -> Case:
    path = r.choice(["Erase", "", "write", "Write/", "../Write", "x" * 2_000])
    return case("no such method", path, b"", Expect("UNIMPLEMENTED", ""))


@wire()
def administration_with_a_token_for_memories(r: Random, f: Facts) -> Case:
    method = r.choice(["ListTenants", "EraseTenant", "Inspect", "Maintain", "Reload"])
    body = r.choice([b"", b"\x0a\x04acme", b"\x0a\x09acme-corp"])
    if method in ("Maintain", "Reload"):
        body = b""
    return Case("administration", "grpc", ADMIN + method, body, DENIED)


@wire()
def health_tells_strangers_little(r: Random, f: Facts) -> Case:
    # The checks of every answer know the store's identity as a secret of those without token.
    return case("health", "Health", b"", OK, token=r.choice([None, "unknown", "expired"]))


@wire()
def deadline_that_is_over(r: Random, f: Facts) -> Case:
    expect = Expect("DEADLINE_EXCEEDED", "*")
    return case("no time", "Query", complete("Query", r, f), expect, timeout=-1.0)


@wire(0.03)
def message_over_the_limit(r: Random, f: Facts) -> Case:
    body = field(1, 2, sized(b"\0" * (17 << 20)))
    return case("17 MB", r.choice(CALLS), body, Expect("RESOURCE_EXHAUSTED", ""))
