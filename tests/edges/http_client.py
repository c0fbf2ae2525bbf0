"""What the tests of the HTTP server call it with."""

from __future__ import annotations

from typing import Any

import httpx

from memsvc.http.answers import (
    ProblemAnswer,
)
from memsvc.http.server import HttpServer

NS = ["acme", "bot", "s1"]
QUERY = {"namespace": NS, "vector": [1, 2]}
WRITE = {"namespace": NS, "items": [{"content": "x"}]}
FORGET = {"namespace": NS, "ids": ["m"]}


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
