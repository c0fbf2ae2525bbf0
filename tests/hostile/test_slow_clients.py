"""HTTP clients that take places and give nothing."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from memsvc.http import app as http_app
from memsvc.http import protocol
from memsvc.http.server import HttpOptions, HttpServer
from tests.edges.fakes import EVERYTHING, FakeTokens, make_hit
from tests.edges.harness import Edge, make_edge
from tests.waiting import until

BODY = b'{"namespace":["acme","bot"],"vector":[1]}'
HEAD = (
    b"POST /v1/memory/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % len(BODY)
)
PLACES = 3 + 64
"""Connections that a server with max_connections=3 takes."""


@contextmanager
def http_server(edge: Edge, max_connections: int = 100) -> Iterator[HttpServer]:
    """A running server; ends with the test."""
    served = http_app.HttpApp(edge.gate, edge.pool)
    server = HttpServer(served.app, HttpOptions(port=0, max_connections=max_connections))
    server.start()
    try:
        yield server
    finally:
        served.draining = True
        server.stop(1.0)
        edge.pool.close(1.0)


@contextmanager
def connected(server: HttpServer, first: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as opened:
        opened.sendall(first)
        yield opened


def edge_connections(server: HttpServer) -> int:
    assert server._server is not None
    return len(server._server.server_state.connections)


def begun(server: HttpServer) -> bool:
    """Whether the server has read the head of a request."""
    assert server._server is not None
    connections = server._server.server_state.connections
    return any(isinstance(c, protocol.Protocol) and not c._idle for c in connections)


def status(server: HttpServer) -> bytes:
    with connected(server, HEAD + BODY) as opened:
        return opened.recv(100)[9:12]


def closed(opened: socket.socket) -> bool:
    """Waits for the end of a connection."""
    with contextlib.suppress(ConnectionError):
        while opened.recv(65_536):
            pass
    return True


@pytest.mark.parametrize("first", [b"", b"POST / HT", HEAD[:-2], HEAD + BODY])
def test_connections_that_ask_for_nothing_do_not_keep_others_out(edge: Edge, first: bytes) -> None:
    with http_server(edge, max_connections=3) as server, ExitStack() as stack:
        for _ in range(3 * PLACES):
            stack.enter_context(connected(server, first))
        # Requests that are still being answered are not ended to make room.
        until(lambda: status(server) == b"200", 30, "an answer", every=0.01)


def test_running_requests_are_not_ended_to_make_room(edge: Edge) -> None:
    with http_server(edge, max_connections=3) as server, ExitStack() as stack:
        slow = stack.enter_context(connected(server, HEAD + BODY[:-1]))
        # A crowd that comes at once is let in before the first of it is read.
        until(lambda: begun(server), 30, "the head to be read", every=0.01)
        for _ in range(3 * PLACES):
            stack.enter_context(connected(server))
        slow.sendall(BODY[-1:])
        assert slow.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("first", [b"", b"POST / HT"])
def test_head_that_never_ends_is_given_up(
    edge: Edge, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    with http_server(edge) as server, connected(server, first) as opened:
        assert closed(opened)


def test_head_of_a_further_request_that_never_ends_is_given_up(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)
    with http_server(edge) as server, connected(server, HEAD + BODY) as opened:
        assert opened.recv(65_536).startswith(b"HTTP/1.1 200")
        opened.sendall(b"POST")
        assert closed(opened)


def test_body_that_never_ends_is_given_up(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_app, "BODY_SECONDS", 0.3)
    chunked = HEAD.replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked")
    with http_server(edge) as server, connected(server, chunked + b"5\r\nabcde\r\n") as opened:
        assert opened.recv(100).startswith(b"HTTP/1.1 408")
        assert closed(opened)


def test_answer_that_nobody_reads_is_given_up(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "UNREAD_SECONDS", 0.3)
    edge.api.hits = [make_hit(content="x" * 1_000_000) for _ in range(20)]
    with http_server(edge) as server:
        opened = socket.socket()
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        opened.connect(("127.0.0.1", server.port))
        with opened:
            opened.sendall(HEAD + BODY)
            until(lambda: bool(edge_connections(server)))
            # Nothing is read. What the system has buffered keeps the socket, not the server.
            until(lambda: not edge_connections(server), what="the end of the connection")


def test_junk_behind_an_early_refusal_is_no_error_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    edge = make_edge(FakeTokens(ms_test_token=EVERYTHING))
    chunked = HEAD.replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked")
    with http_server(edge) as server:
        with connected(server, chunked) as opened:
            assert opened.recv(2_000).startswith(b"HTTP/1.1 401")
            opened.sendall(b"no chunk\r\n")
            assert closed(opened)
        assert status(server) == b"401"
    assert not [record for record in caplog.records if record.exc_info]


def test_client_that_resets_in_the_middle_leaves_nothing_running(edge: Edge) -> None:
    with http_server(edge) as server:
        for cut in range(1, len(HEAD + BODY), 7):
            with connected(server, (HEAD + BODY)[:cut]) as opened:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert status(server) == b"200"
        assert edge.pool.pending == 0


def test_upgrade_to_another_protocol_is_ignored(edge: Edge) -> None:
    with http_server(edge) as server:
        for name in (b"websocket", b"h2c"):
            upgrade = b"Connection: Upgrade\r\nUpgrade: %s\r\n\r\n" % name
            with connected(server, HEAD[:-2] + upgrade + BODY) as opened:
                assert opened.recv(100).startswith(b"HTTP/1.1 200")


def test_path_with_a_slash_too_many_redirects_nobody_to_a_host_of_the_callers(edge: Edge) -> None:
    asked = b"POST /v1/memory/query/ HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n"
    with http_server(edge) as server, connected(server, asked) as opened:
        answer = opened.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"evil" not in answer
