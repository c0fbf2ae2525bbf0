"""Requests of millions of tiny parts: refused by their number, before any part is looked at.

A message of 16 MB holds eight million empty items. Looking at each took up to two minutes of
a core and ten gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from memsvc.domain.errors import InvalidArgument
from memsvc.http import models
from memsvc.rpc import translate
from memsvc.rpc.checks import read
from memsvc.service.edge import MAX_VIOLATIONS
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2 as types

MANY = 50_000
NAMESPACE = pb.WriteRequest(namespace=types.Namespace(tenant="t", agent="a")).SerializeToString()
HEAD = b'{"namespace":["t","a"],'


def field(number: int, body: bytes = b"") -> bytes:
    """A length-delimited field."""
    size, length = len(body), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + body


def filtered(node: bytes) -> bytes:
    return NAMESPACE + field(8, node)


UNKNOWN = types.Filter(condition=types.Condition(field="nope", exists=True)).SerializeToString()
NOTED = field(1, field(2, b"x") + field(5, b"".join(
    field(10, field(1, b"k%d" % i)) for i in range(MANY)
)))  # fmt: skip

MESSAGES: dict[str, tuple[Any, Callable[[Any], Any], bytes, str]] = {
    "items": (pb.WriteRequest, translate.write_request, NAMESPACE + field(4) * MANY, "items"),
    "attributes": (
        pb.WriteRequest,
        translate.write_request,
        NAMESPACE + field(4, NOTED),
        "items[0].memory.metadata.attributes",
    ),
    "vectors": (pb.QueryRequest, translate.query_request, NAMESPACE + field(3) * MANY, "vectors"),
    "ids": (pb.QueryRequest, translate.query_request, NAMESPACE + field(5) * MANY, "ids"),
    "forget ids": (pb.ForgetRequest, translate.forget_request, NAMESPACE + field(3) * MANY, "ids"),
    "filters": (
        pb.QueryRequest,
        translate.query_request,
        filtered(field(2, field(1, UNKNOWN) * MANY)),
        "filters.all_of",
    ),
    "values": (
        pb.QueryRequest,
        translate.query_request,
        filtered(field(1, field(1, b"role") + field(3, field(1) * MANY))),
        "filters.role",
    ),
    "list": (
        pb.QueryRequest,
        translate.query_request,
        filtered(field(1, field(1, b"role") + field(2, field(5, field(1) * MANY)))),
        "filters.role",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_message_of_countless_parts_is_refused_by_their_number(name: str) -> None:
    kind, convert, data, where = MESSAGES[name]
    with pytest.raises(InvalidArgument) as caught:
        convert(read(kind, data))
    (violation,) = caught.value.violations
    assert violation.field == where
    assert violation.description.startswith("at most ")
    assert violation.description.endswith(f"got {MANY}")


def nest(depth: int) -> types.Filter:
    if not depth:
        return types.Filter(condition=types.Condition(field="role", exists=True))
    node = types.Filter()
    node.any_of.filters.extend([nest(depth - 1)] * 8)
    return node


def test_wide_and_deep_tree_of_conditions_is_not_walked_to_its_end() -> None:
    request = pb.QueryRequest(namespace=types.Namespace(tenant="t", agent="a"), filters=nest(5))
    with pytest.raises(InvalidArgument) as caught:
        translate.query_request(request)
    assert [v.description for v in caught.value.violations] == ["at most 64 conditions"]


BODIES: dict[str, tuple[Callable[[bytes], Any], bytes, str]] = {
    "items": (models.read_write, b'"items":[' + b"{}," * MANY + b"{}]", "items"),
    "wrong items": (models.read_write, b'"items":[' + b"1," * MANY + b"1]", "items"),
    "wrong numbers": (models.read_query, b'"vector":[' + b'"",' * MANY + b'""]', "vector[0]"),
    "vectors": (models.read_query, b'"vectors":[' + b"[]," * MANY + b"[]]", "vectors"),
    "ids": (models.read_query, b'"ids":[' + b"1," * MANY + b"1]", "ids"),
    "forget ids": (models.read_forget, b'"ids":[' + b'"",' * MANY + b'""]', "ids"),
    "unknown fields": (
        models.read_query,
        b",".join(b'"k%d":1' % i for i in range(MANY)),
        "body",
    ),
    "attributes": (
        models.read_write,
        b'"items":[{"content":"x","metadata":{"attributes":{'
        + b",".join(b'"k%d":{}' % i for i in range(MANY))
        + b"}}}]",
        "items[0].metadata.attributes",
    ),
    "filters": (
        models.read_query,
        b'"filters":{"and":[' + b'{"nope":1},' * MANY + b"{}]}",
        "filters.and",
    ),
    "fields": (
        models.read_query,
        b'"filters":{' + b",".join(b'"k%d":1' % i for i in range(MANY)) + b"}",
        "filters",
    ),
    "tests": (
        models.read_query,
        b'"filters":{"role":{' + b",".join(b'"k%d":1' % i for i in range(MANY)) + b"}}",
        "filters.role",
    ),
    "values": (
        models.read_query,
        b'"filters":{"role":{"in":[' + b"{}," * MANY + b"{}]}}",
        "filters.role.in",
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_body_of_countless_parts_is_refused_with_one_violation(name: str) -> None:
    convert, body, where = BODIES[name]
    with pytest.raises(InvalidArgument) as caught:
        convert(HEAD + body + b"}")
    assert [v.field for v in caught.value.violations] == [where]


def test_body_of_many_mistakes_lists_the_first_of_them() -> None:
    items = b",".join(b'{"conten":1}' for _ in range(1_000))
    with pytest.raises(InvalidArgument) as caught:
        models.read_write(HEAD + b'"items":[' + items + b"]}")
    assert len(caught.value.violations) == MAX_VIOLATIONS


def test_wide_and_deep_json_filter_is_not_walked_to_its_end() -> None:
    tree = '{"role":"x"}'
    for _ in range(5):
        tree = '{"or":[' + ",".join([tree] * 8) + "]}"
    with pytest.raises(InvalidArgument) as caught:
        models.read_query(f'{{"namespace":["t","a"],"filters":{tree}}}')
    assert [v.description for v in caught.value.violations] == ["at most 64 conditions"]
