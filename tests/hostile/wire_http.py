"""What only HTTP can be sent: bodies that are no request, types that messages cannot have,
other methods, paths and content, and connections that break."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.hostile.case import (
    DENIED,
    MALFORMED,
    OK,
    Case,
    Document,
    Expect,
    Facts,
    good,
    last,
    wire,
    wrong,
)
from tests.hostile.encode import Raw, body

JSON = (("content-type", "application/json"),)
NAMESPACE = b'"namespace":["acme","sink"]'
BROKEN = Expect("", "")
"""No answer is waited for."""


def case(name: str, call: str, data: bytes, expect: Expect, **more: Any) -> Case:
    more.setdefault("headers", JSON)
    return Case(name, "http", f"/v1/memory/{call}", data, expect, **more)


def query(**fields: Any) -> bytes:
    return body({"namespace": ["acme", "sink"], "text": "number1", **fields})


@wire(4)
def body_that_is_no_json(r: Random, f: Facts) -> Case:
    whole = query()
    data = r.choice(
        [
            b"",
            whole[: r.randrange(1, len(whole))],
            whole + b"}",
            whole + b"," + whole,
            b"\xef\xbb\xbf" + whole,
            whole.decode().encode("utf-16"),
            b'{"text":"\xc3\x28",' + NAMESPACE + b"}",
            b'{"text":"\xed\xa0\x80",' + NAMESPACE + b"}",
            b'{"text":"\\ud800",' + NAMESPACE + b"}",
            b'{"\\udfff":1,' + NAMESPACE + b"}",
            b'{"top_k":0x10,' + NAMESPACE + b"}",
            b'{"top_k":01,' + NAMESPACE + b"}",
            b'{"text":"a\nb",' + NAMESPACE + b"}",
            b"{'text':'x'}",
            b'{"text":"x",' + NAMESPACE + b",}",
            b'{"filters":' + b'{"not":' * 5_000,
            b"[" * 100_000,
            b'{"a":' * 10_000,
            b"namespace=acme&text=x",
            b"<xml/>",
            b'{"top_k":' + b"9" * 10_000 + b"," + NAMESPACE + b"}",
            r.randbytes(200) + b"\xff",
        ]
    )
    return case("no JSON", r.choice(["write", "query", "forget"]), data, MALFORMED)


@wire()
def json_that_is_no_object(r: Random, f: Facts) -> Case:
    data = r.choice([b"[]", b"null", b"1", b'"x"', b"true", b"[[]]", b"-0", b"1e400"])
    return case("no object", r.choice(["write", "query", "forget"]), data, wrong("body"))


WRONG_TYPES: list[tuple[str, list[Any]]] = [
    ("top_k", ["5", 5.5, True, [5], {}, -1, Raw("1e400"), Raw("5.0000001")]),
    ("text", [5, True, ["x"], {}]),
    ("min_score", ["0.5", True, [], Raw("1e400"), Raw("-Infinity"), Raw("NaN")]),
    ("as_of", ["2026-01-01T00:00:00Z", "0", 1.5, True, Raw("1e400"), 10**30]),
    ("ids", ["x", {}, [1], [None], [["x"]]]),
    ("mode", ["FUZZY", 1, True, "MODE_VECTOR", "VECTOR;", ""]),
    ("vector", ["x", {}, {"values": [1]}, [[1]], ["1"], [True], [None], [Raw("1e400")]]),
    ("vectors", [[1], "x", [[1], ["x"]]]),
    ("rank", [[], "x", {"keep": "1"}, {"keep": 1.5}, {"nope": 1}]),
    ("include", [[], {"content": 1}, {"content": "true"}, {"everything": True}]),
    ("filters", [[], "x", 5, True, {"topic": {"like": "x"}}, {"topic": None}]),
    ("page_token", [5, [], {}]),
    ("namespace", ["acme/sink", [], ["acme"], ["acme", "sink", "s", "t"], {"tenant": "acme"}]),
    ("namespace", [{"tenant": "acme", "agent": "sink", "x": 1}, [1, 2], None, [["acme"], "b"]]),
    ("topk", [5]),
    ("__proto__", [{"admin": True}, None]),
    ("constructor", [{}]),
    ("Namespace", [["acme", "sink"]]),
    ("$where", ["1"]),
    ("", [1]),
]


@wire(5)
def value_of_a_wrong_type(r: Random, f: Facts) -> Case:
    name, values = r.choice(WRONG_TYPES)
    where = name or "body"
    return case(f"{name} of a wrong type", "query", query(**{name: r.choice(values)}), wrong(where))


ITEM_TYPES: list[tuple[str, Any, str]] = [
    ("content", 5, "content"),
    ("content", ["x"], "content"),
    ("ttl_ms", "1d", "ttl_ms"),
    ("ttl_ms", 1.5, "ttl_ms"),
    ("ttl_ms", 10**30, "ttl_ms"),
    ("status", "NEW", "status"),
    ("status", 1, "status"),
    ("vector", {"data": "AAAA"}, "vector"),
    ("vector", "AAAA", "vector"),
    ("metadata", [], "metadata"),
    ("metadata", {"ts": "2026-01-01"}, "metadata.ts"),
    ("metadata", {"ts": 1767225600000.5}, "metadata.ts"),
    ("metadata", {"seq": True}, "metadata.seq"),
    ("metadata", {"seq": 2**63}, "metadata.seq"),
    ("metadata", {"importance": "high"}, "metadata.importance"),
    ("metadata", {"importance": Raw("1e400")}, "metadata.importance"),
    ("metadata", {"attributes": []}, "metadata.attributes"),
    ("metadata", {"attributes": {"a": None}}, "metadata.attributes"),
    ("metadata", {"attributes": {"a": {"b": 1}}}, "metadata.attributes"),
    ("metadata", {"attributes": {"a": [1]}}, "metadata.attributes"),
    ("metadata", {"attributes": {"a": Raw("1e400")}}, "metadata.attributes"),
    ("metadata", {"attributes": {"a": 2**63}}, "metadata.attributes"),
    ("metadata", {"colour": "red"}, "metadata.colour"),
    ("memry", {}, "memry"),
]


@wire(4)
def item_with_a_value_of_a_wrong_type(r: Random, f: Facts) -> Case:
    document = good("Write", r)
    item, path = last(document)
    name, value, where = r.choice(ITEM_TYPES)
    item[name] = value
    return case(f"{where} of a wrong type", "write", body(document), wrong(f"{path}.{where}"))


@wire(2)
def item_that_is_several_things_or_none(r: Random, f: Facts) -> Case:
    document = good("Write", r)
    touch: Document = {"id": f.own_ids[0]}
    document["items"][-1] = r.choice(
        [
            {},
            {"content": "x", "touch": touch},
            {"memory": {"content": "x"}, "content": "x"},
            {"touch": touch, "update": {"id": "x"}},
            {"memory": {"content": "x"}, "vector": [1.0]},
            {"memory": None},
        ]
    )
    return case("several things", "write", body(document), wrong("items["))


@wire()
def items_that_are_no_objects(r: Random, f: Facts) -> Case:
    items = r.choice([{}, "x", 1, None, [1], [[]], ["x"], [None]])
    data = body({"namespace": ["acme", "sink"], "items": items})
    return case("no items", "write", data, wrong("items"))


@wire()
def last_of_equal_keys_counts(r: Random, f: Facts) -> Case:
    # Whoever checked the first only would be deceived.
    data, expect = r.choice(
        [
            (b"{" + NAMESPACE + b',"text":"x","namespace":["acme-corp","sink"]}', DENIED),
            (b'{"namespace":["acme-corp","sink"],"text":"x",' + NAMESPACE + b"}", OK),
            (b"{" + NAMESPACE + b',"text":5,"text":"number1"}', OK),
            (b"{" + NAMESPACE + b',"text":"number1","text":5}', wrong("text")),
        ]
    )
    return case("key given twice", "query", data, expect)


@wire(2)
def content_that_is_not_json(r: Random, f: Facts) -> Case:
    headers: tuple[tuple[str, str], ...] = r.choice(
        [
            (),
            (("content-type", "text/plain"),),
            (("content-type", "application/x-www-form-urlencoded"),),
            (("content-type", "multipart/form-data; boundary=x"),),
            (("content-type", "application/grpc"),),
            (("content-type", "application/jsonp"),),
            (("content-type", "application/json, text/plain"),),
            (*JSON, ("content-encoding", "gzip")),
            (*JSON, ("content-encoding", "br, identity")),
            (("content-type", "x" * 5_000),),
        ]
    )
    expect = Expect(reason="CONTENT_TYPE", status=415)
    return case("other content", "query", query(), expect, headers=headers)


@wire()
def method_or_path_that_is_none(r: Random, f: Facts) -> Case:
    if r.random() < 0.5:
        method = r.choice(["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
        expect = Expect(reason="METHOD_NOT_ALLOWED", status=405)
        return case("other method", "query", b"", expect, method=method)
    path = r.choice(
        [
            "/",
            "/v1/memory/erase",
            "/v1/memory/query/",
            "/v1/memory//query",
            "/v1/memory/%2e%2e/query",
            "/v1/memory/../../../etc/passwd",
            "/v1/memory/query%00",
            "/v1/memory/%ff%fe",
            "/" + "x" * 5_000,
            "/v2/memory/query",
            "/admin",
            "/.git/config",
        ]
    )
    return Case("other path", "http", path, query(), Expect("NOT_FOUND", "NO_SUCH_PATH"), JSON)


@wire()
def health_and_metrics_tell_strangers_little(r: Random, f: Facts) -> Case:
    token = r.choice([None, "unknown", "expired"])
    if r.random() < 0.5:
        return Case("health", "http", "/v1/memory/health", b"", OK, token=token, method="GET")
    expect = Expect("UNAUTHENTICATED", "TOKEN_INVALID" if token else "TOKEN_MISSING")
    return Case("metrics", "http", "/metrics", b"", expect, token=token, method="GET")


@wire()
def header_that_nobody_should_send(r: Random, f: Facts) -> Case:
    name, value = r.choice(
        [
            ("x-request-id", "a b\tc"),
            ("x-request-id", "é"),
            ("x-request-id", "x" * 9_000),
            ("traceparent", "00-zz-zz-zz"),
            ("host", "["),
            ("host", "a@b:99999999"),
            ("accept", "text/html"),
            ("x-forwarded-for", "127.0.0.1"),
            ("authorization", "Bearer é"),
            ("range", "bytes=0-1"),
            ("expect", "nonsense"),
        ]
    )
    return case("odd header", "query", query(), OK, headers=(*JSON, (name, value)))


@wire()
def connection_that_breaks(r: Random, f: Facts) -> Case:
    data = body(good("Write", r))
    length = len(data) + r.choice([0, 1, 1_000_000, 10**15])
    framing = r.choice([f"Content-Length: {length}", "Transfer-Encoding: chunked"])
    head = f"POST /v1/memory/write HTTP/1.1\r\nHost: x\r\nX-Memory-Token: TOKEN\r\n{framing}\r\n"
    raw = head.encode() + b"Content-Type: application/json\r\n\r\n" + data
    cut = raw[: r.randrange(1, len(raw) - 3)]
    return Case("cut", "http", "", cut, BROKEN, method="RAW")


@wire(2)
def bytes_that_are_no_http(r: Random, f: Facts) -> Case:
    ok = b"Host: x\r\n\r\n"
    data = r.choice(
        [
            b"GET /\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + r.randbytes(64),
            b"GET / HTTP/1.1\r\n" + b"A" * 70_000,
            b"GET /\xff HTTP/1.1\r\n" + ok,
            b"POST / HTTP/1.1\r\nContent-Length: -1\r\n" + ok,
            b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n" + ok,
            b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n" + ok,
            b"GET / HTTP/1.1\r\nA\0: x\r\n" + ok,
            b"GET / HTTP/1.1\r\n folded: x\r\n" + ok,
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0" * 100 + b"\r\n\r\n",
        ]
    )
    return Case("no HTTP", "http", "", data, Expect("HTTP", "", status=400), method="RAW")


@wire(0.03)
def body_over_the_limit(r: Random, f: Facts) -> Case:
    data = b'{"text":"' + b"x" * (17 << 20) + b'",' + NAMESPACE + b"}"
    expect = Expect("RESOURCE_EXHAUSTED", "BODY_TOO_LARGE", status=413)
    return case("17 MB", r.choice(["write", "query"]), data, expect)
