"""A running HTTP server: what callers must and must not get from it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

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
    invalid,
)
from memsvc.domain.types import Namespace, NewMemory
from memsvc.http.answers import (
    ForgetAnswerBody,
    HealthAnswerBody,
    QueryAnswerBody,
    WriteAnswerBody,
)
from memsvc.http.app import HttpApp, metrics_app
from memsvc.http.server import HttpOptions, HttpServer, _bind
from memsvc.service.limits import Timeouts
from memsvc.service.listening import ListenError
from tests.edges.fakes import EVERYTHING, FakePrincipal, FakeTokens, hit_id, make_hit
from tests.edges.harness import TOKEN, Edge, hold, http_server, make_edge
from tests.edges.http_client import FORGET, QUERY, WRITE, connect, problem
from tests.waiting import until


@pytest.fixture
def client(edge: Edge) -> Iterator[httpx.Client]:
    with http_server(edge) as server, connect(server) as opened:
        yield opened


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
    assert (first["id"], first["similarity"], first["score"]) == (hit_id(0), 0.75, 0.75)
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


def test_importance_comes_back_as_it_was_written(edge: Edge, client: httpx.Client) -> None:
    stored = float(np.float32(0.8))
    edge.api.hits = [make_hit(0, importance=stored, importance_stored=stored)]
    item = client.post("/v1/memory/query", json=QUERY).json()["items"][0]
    assert (item["metadata"]["importance"], item["importance_stored"]) == (0.8, 0.8)


def test_delay_stands_in_the_header_and_in_the_document(edge: Edge, client: httpx.Client) -> None:
    edge.api.fail = ResourceExhausted("full", retry_after_ms=1_200, hint="wait")
    answer = client.post("/v1/memory/write", json=WRITE)
    document = problem(answer, 429)
    assert answer.headers["retry-after"] == "2" and document["retry_after_ms"] == 1_200
    assert document["hint"] == "wait"
    edge.api.fail = Unavailable("starting")
    assert client.post("/v1/memory/write", json=WRITE).headers["retry-after"] == "1"


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
            refused = client.post("/v1/memory/query", json=QUERY, headers=headers)
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
    until(lambda: edge.pool.pending == 0, 5, "the end of the work")
    assert edge.api.controls[0].cancelled()


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


def test_answers_do_not_wait_for_acknowledgements() -> None:
    # asyncio switches Nagle's algorithm off only for sockets that name their protocol; with
    # it each answer takes 40 ms.
    with _bind(HttpOptions(port=0)) as bound:
        assert bound.proto == socket.IPPROTO_TCP


def test_readiness_is_told_apart_from_life(edge: Edge, client: httpx.Client) -> None:
    assert client.get("/readyz").status_code == 200
    edge.api.ready = False
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200


def test_a_node_is_not_ready_while_nobody_answers_over_grpc(edge: Edge) -> None:
    app = HttpApp(edge.gate, edge.pool)
    app.others_serve = lambda: False
    with TestClient(app.app) as client:
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
        app.others_serve = lambda: True
        assert client.get("/readyz").status_code == 200


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
