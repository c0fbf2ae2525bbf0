"""Bodies and headers over HTTP that nobody should send."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from memsvc.domain.errors import (
    Violation,
    invalid,
)
from tests.edges.fakes import EVERYTHING, FakeTokens
from tests.edges.harness import Edge, http_server, make_edge
from tests.edges.http_client import NS, QUERY, WRITE, connect, post, problem


@pytest.fixture
def client(edge: Edge) -> Iterator[httpx.Client]:
    with http_server(edge) as server, connect(server) as opened:
        yield opened


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"namespace":["t","a"],"vector":[1,"2"]}', "vector[1]"),
        (b'{"namespace":["t","a"],"vector":[true]}', "vector[0]"),
        (b'{"namespace":["t","a"],"vector":[NaN]}', "vector[0]"),
        (b'{"namespace":["t","a"],"vector":[Infinity]}', "vector[0]"),
        (b'{"namespace":["t","a"],"vector":[1e999]}', "vector[0]"),
        (b'{"namespace":["t","a"],"vector":{"values":[1]}}', "vector"),
        (b'{"namespace":["t","a"],"top_k":"40"}', "top_k"),
        (b'{"namespace":["t","a"],"top_k":4.5}', "top_k"),
        (b'{"namespace":["t","a"],"top_k":true}', "top_k"),
        (b'{"namespace":["t","a"],"top_k":-1}', "top_k"),
        (b'{"namespace":["t","a"],"top_k":99999999999}', "top_k"),
        (b'{"namespace":["t","a"],"topk":4}', "topk"),
        (b'{"namespace":["t","a"],"text":5}', "text"),
        (b'{"namespace":["t","a"],"mode":"FUZZY"}', "mode"),
        (b'{"namespace":["t","a"],"as_of":"2026-01-01T00:00:00"}', "as_of"),
        (b'{"namespace":["t"]}', "namespace"),
        (b'{"namespace":"t/a"}', "namespace"),
        (b'{"namespace":["t",5]}', "namespace.agent"),
        (b'{"namespace":["t/u","a"]}', "namespace.tenant"),
        (b'{"namespace":["","a"]}', "namespace.tenant"),
        (b'{"text":"x"}', "namespace"),
        (b'{"namespace":["t","a"],"filters":{"ts":{"gt":"2026-01-01"}}}', "filters.ts.gt"),
        (b'{"namespace":["t","a"],"filters":{"sesion":"x"}}', "filters.sesion"),
        (b'{"namespace":["t","a"],"filters":{"attributes.x":NaN}}', "filters.attributes.x"),
        (b"[]", "body"),
        (b'"text"', "body"),
        (b"null", "body"),
    ],
)
def test_wrong_field_is_named(client: httpx.Client, edge: Edge, body: bytes, field: str) -> None:
    document = problem(post(client, "query", body), 400, "INVALID_ARGUMENT")
    assert field in [violation["field"] for violation in document["violations"]]
    assert edge.api.asked == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"namespace":["t","a"],"text":"\xc3\x28"}',
        b'{"namespace":["t","a"],"text":"\\ud800"}',
        b'{"namespace":["t","\\udc00"]}',
        b'{"\\ud800":1}',
        b'{"namespace":["t","a"],"top_k":' + b"9" * 100_000 + b"}",
        b'{"namespace":["t","a"],"filters":' + b"[" * 200_000 + b"}",
        b'{"namespace":["t","a"],"filters":' + b'{"not":' * 100_000,
        b'{"a":' * 500_000,
        b'{"namespace":["t","a"]} {"namespace":["t","a"]}',
    ],
    ids=lambda body: repr(body[:40]),
)
def test_text_that_is_no_json_is_the_callers_error(client: httpx.Client, body: bytes) -> None:
    document = problem(post(client, "query", body), 400, "MALFORMED_REQUEST")
    assert len(document["detail"]) < 400


def test_filter_that_is_legal_json_but_absurdly_deep_is_refused(client: httpx.Client) -> None:
    deep = b'{"not":' * 100 + b'{"role":"x"}' + b"}" * 100
    body = b'{"namespace":["t","a"],"filters":' + deep + b"}"
    document = problem(post(client, "query", body), 400)
    assert "nested" in document["violations"][0]["description"]


def test_wrong_values_are_never_quoted_back(client: httpx.Client) -> None:
    body = b'{"namespace":["t","a"],"items":[{"content":{"a":"private"},"metadata":"private"}]}'
    assert "private" not in post(client, "write", body).text


def test_ten_megabytes_of_text_arrive_and_more_than_the_limit_does_not(edge: Edge) -> None:
    with http_server(edge, max_body_bytes=11_000_000) as server, connect(server) as client:
        big = {"namespace": NS, "items": [{"content": "x" * 10_000_000}]}
        assert client.post("/v1/memory/write", json=big).status_code == 200
        bigger = json.dumps({"namespace": NS, "items": [{"content": "x" * 12_000_000}]}).encode()
        problem(post(client, "write", bigger), 413, "BODY_TOO_LARGE")

        def chunks() -> Iterator[bytes]:
            for start in range(0, len(bigger), 1_000_000):
                yield bigger[start : start + 1_000_000]

        headers = {"content-type": "application/json"}
        try:
            answer = client.post("/v1/memory/write", content=chunks(), headers=headers)
            problem(answer, 413, "BODY_TOO_LARGE")
        except httpx.WriteError:
            pass  # the connection was closed while the rest was being sent
        assert len(edge.api.asked) == 1


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {"content-type": ""},
    ],
)
def test_other_content_is_not_guessed_at(client: httpx.Client, headers: dict[str, str]) -> None:
    body = json.dumps(QUERY).encode()
    answer = client.post("/v1/memory/query", content=body, headers=headers)
    problem(answer, 415, "CONTENT_TYPE")


def test_charset_beside_the_content_type_is_fine(client: httpx.Client) -> None:
    headers = {"content-type": "application/json; charset=utf-8"}
    answer = client.post("/v1/memory/query", content=json.dumps(QUERY), headers=headers)
    assert answer.status_code == 200


def test_text_that_cannot_be_encoded_does_not_break_an_error(
    edge: Edge, client: httpx.Client
) -> None:
    edge.api.fail = invalid("x\ud800", "y\ud800")
    edge.api.fail.violations = (Violation("x\ud800", "y"),)
    assert problem(client.post("/v1/memory/write", json=WRITE), 400)


def test_body_of_a_caller_without_a_token_is_not_read() -> None:
    edge = make_edge(FakeTokens(ms_test_token=EVERYTHING))
    with (
        http_server(edge) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=5) as raw,
    ):
        raw.sendall(
            b"POST /v1/memory/write HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"
        )
        assert raw.recv(4_096).startswith(b"HTTP/1.1 401")


def test_web_page_with_a_turned_host_name_is_refused(client: httpx.Client, edge: Edge) -> None:
    answer = client.post("/v1/memory/query", json=QUERY, headers={"host": "evil.example:8849"})
    problem(answer, 403, "HOST_REFUSED")
    for host in ("localhost:8849", "127.0.0.1", "[::1]:8849"):
        answer = client.post("/v1/memory/query", json=QUERY, headers={"host": host})
        assert answer.status_code == 200, host
