"""Web pages whose host name was turned to this machine (DNS rebinding)."""

from __future__ import annotations

import pytest

from tests.edges.fakes import EVERYTHING, FakeTokens
from tests.edges.harness import http_server, make_edge
from tests.edges.http_client import connect, problem

TURNED = {"host": "evil.example:8849"}


@pytest.mark.parametrize("path", ["/v1/memory/health", "/metrics"])
def test_a_web_page_with_a_turned_host_name_cannot_read_health_or_metrics(path: str) -> None:
    with http_server(make_edge()) as server, connect(server) as client:
        problem(client.get(path, headers=TURNED), 403, "HOST_REFUSED")
        assert client.get(path, headers={"host": "localhost:8849"}).status_code == 200
        assert client.get(path, headers={"host": "127.0.0.1"}).status_code == 200


def test_with_tokens_the_host_name_is_free() -> None:
    with (
        http_server(make_edge(FakeTokens(ms_test_token=EVERYTHING))) as server,
        connect(server) as client,
    ):
        assert client.get("/v1/memory/health", headers=TURNED).status_code == 200
