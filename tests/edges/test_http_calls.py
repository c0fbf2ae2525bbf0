"""A running HTTP server: what callers must and must not get from it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from memsvc.domain import filters as f
from memsvc.domain.errors import (
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    MemsvcError,
    NotFound,
    PositionLost,
    ResourceExhausted,
    Unavailable,
    VersionMismatch,
    Violation,
    invalid,
)
from memsvc.domain.types import Namespace, NewMemory
from memsvc.http.answers import (
    ForgetAnswerBody,
    HealthAnswerBody,
    ProblemAnswer,
    QueryAnswerBody,
    WriteAnswerBody,
)
from memsvc.http.app import metrics_app
from memsvc.http.server import HttpOptions, HttpServer
from memsvc.service.limits import Timeouts
from memsvc.service.listening import ListenError
from tests.edges.harness import (
    EVERYTHING,
    TOKEN,
    Edge,
    FakePrincipal,
    FakeTokens,
    hold,
    http_server,
    make_edge,
)

NS = ["acme", "bot", "s1"]
QUERY = {"namespace": NS, "vector": [1, 2]}
WRITE = {"namespace": NS, "items": [{"content": "x"}]}
FORGET = {"namespace": NS, "ids": ["m"]}


@pytest.fixture
def edge() -> Edge:
    return make_edge()


@pytest.fixture
def client(edge: Edge) -> Iterator[httpx.Client]:
    with http_server(edge) as server, connect(server) as opened:
        yield opened


def connect(server: HttpServer, **options: Any) -> httpx.Client:
    return httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=10, **options)


def problem(answer: httpx.Response, status: int, reason: str = "") -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    ProblemAnswer.model_validate(document)
    assert document["status"] == status
    if reason:
        assert document["reason"] == reason
    return document


def post(client: httpx.Client, call: str, body: bytes, **headers: str) -> httpx.Response:
    sent = {"content-type": "application/json", **headers}
    return client.post(f"/v1/memory/{call}", content=body, headers=sent)


def test_calls_of_an_existing_client_work_unchanged() -> None:
    edge = make_edge(FakeTokens(ms_test_token=EVERYTHING))
    headers = {"X-Memory-Token": TOKEN}
    with http_server(edge) as server, connect(server, headers=headers) as client:
        written = client.post(
            "/v1/memory/write",
            json={
                "namespace": ["t", "a", "s"],
                "items": [
                    {
                        "dedup_key": "s:1:abc",
                        "content": "long",
                        "summary": "short",
                        "vector": [0.1, 0.2],
                        "metadata": {
                            "seq": 1,
                            "role": "user",
                            "ts": 1_700_000_000_000,
                            "importance": 0.8,
                            "source": "chat",
                        },
                    }
                ],
            },
        )
        assert written.status_code == 200
        WriteAnswerBody.model_validate(written.json())
        found = client.post(
            "/v1/memory/query",
            json={
                "namespace": ["t", "a", "s"],
                "vector": [0.1, 0.2],
                "top_k": 40,
                "min_score": 0.62,
                "filters": {"status": "active"},
            },
        )
    memory = edge.api.asked[0].items[0]
    assert isinstance(memory, NewMemory)
    assert (memory.dedup_key, memory.metadata.role) == ("s:1:abc", "user")
    assert memory.metadata.importance == 0.8
    asked = edge.api.asked[1]
    assert asked.namespace == Namespace("t", "a", "s") and asked.top_k == 40
    assert asked.filters == f.Condition("status", f.Equals("active"))
    document = found.json()
    QueryAnswerBody.model_validate(document)
    first = document["items"][0]
    assert (first["id"], first["similarity"], first["score"]) == ("id-0", 0.75, 0.75)
    assert first["summary"] == "summary 0" and first["status"] == "ACTIVE"
    assert first["metadata"]["importance"] == 0.25 and first["metadata"]["seq"] == 0
    assert first["metadata"]["attributes"] == {"city": "Bern", "tags": ["a", "b"]}
    assert document["degraded"] == {"level": 0, "reason": ""} and document["mode"] == "VECTOR"
    assert edge.api.callers[0].actor == "root"


def test_forget_and_health_answer_by_their_models(client: httpx.Client) -> None:
    forgot = client.post("/v1/memory/forget", json=FORGET)
    ForgetAnswerBody.model_validate(forgot.json())
    health = client.get("/v1/memory/health")
    HealthAnswerBody.model_validate(health.json())
    assert health.json()["role"] == "STANDALONE" and health.json()["store"]["memories"] == 10
    assert isinstance(forgot.json()["matched"], int)


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


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (invalid("items", "bad"), 400),
        (NotFound("gone"), 404),
        (VersionMismatch("changed"), 409),
        (PositionLost("lost"), 409),
        (FailedPrecondition("read only"), 409),
        (ResourceExhausted("full", retry_after_ms=1_200), 429),
        (Unavailable("starting"), 503),
        (DeadlineExceeded("late"), 504),
        (Cancelled("gone"), 499),
        (MemsvcError("odd"), 503),
    ],
)
def test_each_error_has_its_status(
    edge: Edge, client: httpx.Client, error: MemsvcError, status: int
) -> None:
    edge.api.fail = error
    document = problem(client.post("/v1/memory/write", json=WRITE), status)
    assert document["code"] == error.code.value and document["reason"] == error.reason
    assert document["detail"] == error.message
    assert document["instance"] == "/v1/memory/write"


def test_delay_stands_in_the_header_and_in_the_document(edge: Edge, client: httpx.Client) -> None:
    edge.api.fail = ResourceExhausted("full", retry_after_ms=1_200, hint="wait")
    answer = client.post("/v1/memory/write", json=WRITE)
    document = problem(answer, 429)
    assert answer.headers["retry-after"] == "2" and document["retry_after_ms"] == 1_200
    assert document["hint"] == "wait"
    edge.api.fail = Unavailable("starting")
    assert client.post("/v1/memory/write", json=WRITE).headers["retry-after"] == "1"


def test_text_that_cannot_be_encoded_does_not_break_an_error(
    edge: Edge, client: httpx.Client
) -> None:
    edge.api.fail = invalid("x\ud800", "y\ud800")
    edge.api.fail.violations = (Violation("x\ud800", "y"),)
    assert problem(client.post("/v1/memory/write", json=WRITE), 400)


def test_a_bug_tells_an_incident_and_nothing_internal(edge: Edge, client: httpx.Client) -> None:
    edge.api.fail = RuntimeError("secret path")
    answer = client.post("/v1/memory/write", json=WRITE)
    document = problem(answer, 500, "INTERNAL")
    assert "secret" not in answer.text and len(document["metadata"]["incident"]) == 16


def test_tokens_rights_and_namespaces_hold_here_too() -> None:
    reader = FakePrincipal("reader", ("acme", "bot"), frozenset({"read"}))
    edge = make_edge(FakeTokens(ms_test_token=EVERYTHING, ms_reader=reader))
    with http_server(edge) as server, connect(server) as client:
        answer = client.post("/v1/memory/query", json=QUERY)
        problem(answer, 401, "TOKEN_MISSING")
        assert "X-Memory-Token" in answer.headers["www-authenticate"]
        for token in ("nope", "x" * 600, "\xff"):
            headers = {"X-Memory-Token": token.encode("latin-1")}
            refused = client.post("/v1/memory/query", json=QUERY, headers=headers)  # type: ignore[arg-type]
            problem(refused, 401, "TOKEN_INVALID")
        headers_ok = {"X-Memory-Token": "ms_reader"}
        assert client.post("/v1/memory/query", json=QUERY, headers=headers_ok).status_code == 200
        for call, body in (
            ("write", WRITE),
            ("forget", FORGET),
            ("query", {"namespace": ["acme", "bot2"]}),
            ("query", {"namespace": ["acme-corp", "bot"]}),
        ):
            refused = client.post(f"/v1/memory/{call}", json=body, headers=headers_ok)
            problem(refused, 403, "PERMISSION_DENIED")
        assert len(edge.api.asked) == 1
        assert "store" not in client.get("/v1/memory/health").json()
        assert "store" in client.get("/v1/memory/health", headers=headers_ok).json()
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers=headers_ok).status_code == 200
        bearer = {"Authorization": "Bearer ms_reader"}
        assert client.get("/metrics", headers=bearer).status_code == 200
        for open_path in ("/healthz", "/readyz", "/openapi.json"):
            assert client.get(open_path).status_code == 200


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


def test_unknown_path_and_method_are_problems_too(client: httpx.Client) -> None:
    problem(client.get("/v1/memory/nothing"), 404, "NO_SUCH_PATH")
    answer = client.get("/v1/memory/write")
    problem(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "POST"


def test_request_id_comes_back(client: httpx.Client) -> None:
    answer = client.post("/v1/memory/query", json=QUERY, headers={"x-request-id": "abc-1"})
    assert answer.headers["x-request-id"] == "abc-1"
    answer = client.post("/v1/memory/query", json=QUERY, headers={"x-request-id": "a b"})
    assert answer.headers["x-request-id"] != "a b"


def test_server_bounds_a_call(edge: Edge) -> None:
    edge.api.during, _, _ = hold()
    timeouts = Timeouts(read_ms=50, write_ms=50)
    with http_server(edge, timeouts=lambda: timeouts) as server, connect(server) as client:
        problem(client.post("/v1/memory/query", json=QUERY), 504, "DEADLINE_EXCEEDED")


def test_work_stops_when_the_caller_goes_away(edge: Edge, client: httpx.Client) -> None:
    edge.api.during, inside, _ = hold()

    def call() -> None:
        with pytest.raises(httpx.ReadTimeout):
            client.post("/v1/memory/query", json=QUERY, timeout=0.5)

    thread = threading.Thread(target=call)
    thread.start()
    assert inside.wait(5)
    thread.join()
    deadline = time.monotonic() + 5
    while edge.pool.pending and time.monotonic() < deadline:
        time.sleep(0.01)
    assert edge.pool.pending == 0 and edge.api.controls[0].cancelled()


def test_slow_call_does_not_hold_up_the_event_loop() -> None:
    edge = make_edge(workers=1, max_calls=1)
    edge.api.during, inside, release = hold()
    with http_server(edge) as server, connect(server) as client:
        results: list[int] = []
        thread = threading.Thread(
            target=lambda: results.append(client.post("/v1/memory/query", json=QUERY).status_code)
        )
        thread.start()
        assert inside.wait(5)
        with connect(server) as other:
            assert other.get("/healthz", timeout=2).json() == {"alive": True}
            problem(other.post("/v1/memory/query", json=QUERY), 429, "TOO_MANY_CALLS")
        release.set()
        thread.join()
        assert results == [200]


def test_answers_do_not_wait_for_acknowledgements(client: httpx.Client) -> None:
    client.post("/v1/memory/query", json=QUERY)
    seconds = []
    for _ in range(20):
        started = time.perf_counter()
        client.post("/v1/memory/query", json=QUERY)
        seconds.append(time.perf_counter() - started)
    # With Nagle's algorithm at work each of them takes 40 ms.
    assert sorted(seconds)[5] < 0.035


def test_readiness_is_told_apart_from_life(edge: Edge, client: httpx.Client) -> None:
    assert client.get("/readyz").status_code == 200
    edge.api.ready = False
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200


def test_requests_that_run_finish_when_the_server_stops() -> None:
    edge = make_edge()
    edge.api.during, inside, release = hold()
    with http_server(edge) as server, connect(server) as client:
        results: list[int] = []
        thread = threading.Thread(
            target=lambda: results.append(client.post("/v1/memory/write", json=WRITE).status_code)
        )
        thread.start()
        assert inside.wait(5)
        threading.Timer(0.2, release.set).start()
        assert server.stop(5.0)
        thread.join()
        assert results == [200]
        with pytest.raises(httpx.ConnectError):
            client.get("/healthz")


def test_taken_port_is_an_error_of_start(edge: Edge) -> None:
    with http_server(edge) as server:
        other = HttpServer(metrics_app(edge.gate), HttpOptions(port=server.port))
        with pytest.raises(ListenError, match=r"server\.http_listen.*in use"):
            other.start()


def test_metrics_of_both_listeners_are_the_same(edge: Edge, client: httpx.Client) -> None:
    client.post("/v1/memory/query", json=QUERY)
    here = client.get("/metrics")
    assert here.headers["content-type"].startswith("text/plain")
    assert 'memsvc_call_duration_seconds_count{call="Query",code="OK"} 1.0' in here.text
    alone = HttpServer(metrics_app(edge.gate), HttpOptions(port=0, key="metrics.listen"))
    alone.start()
    try:
        with connect(alone) as scraper:
            assert "memsvc_call_duration_seconds" in scraper.get("/metrics").text
            assert scraper.get("/v1/memory/health").status_code == 404
    finally:
        alone.stop(1)
