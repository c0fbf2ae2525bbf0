"""Ending, restarting, reloading and refusing to start."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.service.tokens_edit import add_token
from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import harness as h
from tests.waiting import until

MakeNode = Callable[..., h.Node]
EXIT_CONFIG = 78
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def make_node(make_node: MakeNode) -> MakeNode:
    """Nodes that begin and end as interpreters of their own."""

    def make(name: str = "node", **settings: Any) -> h.Node:
        node = make_node(name, **settings)
        node.fresh = True
        return node

    return make


class _Client:
    """Writes and queries until it is refused; keeps what was acknowledged and refused."""

    def __init__(self, node: h.Node, first: int) -> None:
        self._node, self._number = node, first
        self.acknowledged: dict[int, str] = {}
        self.refusals: list[grpc.StatusCode] = []
        self.degraded = 0

    def run(self, calls: int = 100_000) -> None:
        for number in range(self._number, self._number + calls):
            try:
                answer = h.write(self._node, [h.memory(number)])
                self.acknowledged[number] = answer.results[0].id
                self.degraded += h.by_vector(self._node, number).degraded.level
            except grpc.RpcError as error:
                self.refusals.append(error.code())
                if len(self.refusals) > 3:
                    return
            except ValueError:
                return  # the test has closed the connection


def test_sigterm_finishes_or_refuses_every_call_and_loses_nothing(make_node: MakeNode) -> None:
    node = make_node(storage__seal_rows=50).start()
    clients = [_Client(node, 10_000 * n) for n in range(6)]
    threads = [threading.Thread(target=client.run) for client in clients]
    for thread in threads:
        thread.start()
    until(lambda: all(len(c.acknowledged) >= 50 for c in clients), 60, "writes of all clients")
    assert node.process is not None
    node.process.terminate()
    assert node.process.wait(60) == 0
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a call was neither answered nor refused"
    assert all(client.refusals for client in clients)
    codes = {code for client in clients for code in client.refusals}
    # CANCELLED is the library's own answer to a call in the very instant of closing.
    assert codes <= {UNAVAILABLE, grpc.StatusCode.CANCELLED}, f"refused with {codes}"
    refusals = [code for client in clients for code in client.refusals]
    assert refusals.count(UNAVAILABLE) > len(refusals) / 2, "refused before the listener closes"
    assert sum(client.degraded for client in clients) == 0
    assert not h.users_of(node.data_dir), "a builder outlived the server"
    node.start()
    found = set(h.browse(node))
    acknowledged = {i for client in clients for i in client.acknowledged.values()}
    assert acknowledged and acknowledged <= found


def _ends_with(node: h.Node, *words: str) -> None:
    assert node.process is not None
    assert node.process.wait(30) == EXIT_CONFIG, node.log_tail()
    text = node.log_tail()
    for word in words:
        assert word in text, text
    assert "Traceback" not in text, text


def test_a_second_server_on_the_same_directory_is_told_so(make_node: MakeNode) -> None:
    first = make_node("first").start()
    second = make_node("second", storage__data_dir=str(first.data_dir))
    second.start(wait=False)
    _ends_with(second, "another process uses the data directory", "storage.data_dir")
    assert len(h.fill(first, range(3))) == 3


@pytest.mark.parametrize("key", ["server__listen", "server__http_listen"])
def test_a_second_server_on_the_same_port_is_told_so(make_node: MakeNode, key: str) -> None:
    first = make_node("first").start()
    setting = key.replace("__", ".")
    address = first.settings[setting]
    second = make_node("second", **{key: address})
    second.start(wait=False)
    _ends_with(second, setting, address.partition(":")[2])
    assert len(h.fill(first, range(3))) == 3


def test_another_dimension_than_the_stores_is_refused_by_name(make_node: MakeNode) -> None:
    node = make_node().start()
    h.fill(node, range(3))
    assert node.stop() == 0
    node.configure(index__dimension=h.DIMENSION + 1)
    node.start(wait=False)
    _ends_with(node, "index.dimension", str(h.DIMENSION), str(h.DIMENSION + 1))
    node.configure(index__dimension=h.DIMENSION)
    node.start()
    assert len(h.browse(node)) == 3


def test_an_unknown_setting_is_refused_with_the_nearest_name(make_node: MakeNode) -> None:
    node = make_node(storage__seal_row=100)
    node.start(wait=False)
    _ends_with(node, "storage.seal_row", "seal_rows")


def test_sighup_takes_new_settings_and_keeps_those_of_the_command_line(
    make_node: MakeNode,
) -> None:
    node = make_node()
    node.start(command=[*node.command, "--set", "query.default_top_k=2"])
    h.fill(node, range(40))
    assert len(h.by_vector(node, 7, top_k=0).items) == 2
    node.configure(query__max_top_k=5)
    node.signal(signal.SIGHUP)
    until(lambda: _refused_top_k(node), 30, "the new query.max_top_k")
    assert len(h.by_vector(node, 7, top_k=0).items) == 2, "--set was forgotten by the reload"
    # A broken file changes nothing and ends nothing.
    node.config.write_text("query: {max_topk: 7}\n")
    node.signal(signal.SIGHUP)
    until(lambda: "not reloaded" in node.log_tail(), 30, "the refusal is logged")
    assert _refused_top_k(node)
    with pytest.raises(grpc.RpcError) as refused:
        node.admin().Reload(admin_pb.ReloadRequest(), timeout=10)
    assert h.error_info(refused.value)[1] == "CONFIG_INVALID"


def _refused_top_k(node: h.Node) -> bool:
    try:
        h.by_vector(node, 7, top_k=6)
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        return True
    return False


def test_sighup_takes_new_tokens(make_node: MakeNode, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.yaml"
    rights = ("read", "write")
    first = add_token(tokens, "first", ["acme"], rights)
    node = make_node(auth__mode="token", auth__tokens_file=str(tokens)).start()
    assert _may_query(node, first)
    second = add_token(tokens, "second", ["acme"], rights)
    node.signal(signal.SIGHUP)
    until(lambda: _may_query(node, second), 30, "the new token is known")
    tokens.write_text("tokens: [broken\n")
    node.signal(signal.SIGHUP)
    until(lambda: "stay in force" in node.log_tail(), 30, "the refusal is logged")
    assert _may_query(node, first), "a broken tokens file took the old tokens away"


def _may_query(node: h.Node, token: str) -> bool:
    request = pb.QueryRequest(namespace=h.namespace(), text="anything")
    try:
        node.stub().Query(request, timeout=10, metadata=[("x-memory-token", token)])
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED, error
        return False
    return True


def test_the_supervisor_restarts_a_killed_server_and_clients_go_on(make_node: MakeNode) -> None:
    node = make_node()
    serve = [sys.executable, "-m", "memsvc.cli", "serve", "--config", str(node.config)]
    node.start(command=serve)
    acknowledged: dict[str, str] = {}
    stop = threading.Event()
    failures: list[BaseException] = []

    def client() -> None:
        try:
            while not stop.is_set():
                number = len(acknowledged)
                acknowledged[f"key-{number}"] = _write_with_retry(node, number)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=client)
    thread.start()
    supervisor = psutil.Process(node.pid)
    try:
        for _ in range(2):
            before = len(acknowledged)
            until(lambda before=before: len(acknowledged) > before + 5, 60, "writes go on")
            server = _server_below(supervisor)
            server.kill()
            until(
                lambda server=server: _server_below(supervisor) not in (None, server),
                60,
                "a new server",
            )
        before = len(acknowledged)
        until(lambda: len(acknowledged) > before + 5, 60, "writes go on")
    finally:
        stop.set()
        thread.join(60)
    assert not failures, failures
    assert set(h.browse(node)) == set(acknowledged.values())
    assert node.stop() == 0
    assert not h.users_of(node.data_dir)


def _server_below(supervisor: psutil.Process) -> psutil.Process | None:
    for child in supervisor.children():
        with contextlib.suppress(psutil.Error):  # it ends just now
            if "memsvc.server" in child.cmdline():
                return child
    return None


def _write_with_retry(node: h.Node, number: int) -> str:
    request_id = str(uuid.uuid4())
    end = time.monotonic() + 60
    while True:
        try:
            return h.write(node, [h.memory(number)], request_id=request_id).results[0].id
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE, error
            assert time.monotonic() < end
            time.sleep(0.05)


def test_a_stopped_server_is_not_alive_without_its_supervisor(make_node: MakeNode) -> None:
    """kill -9 of the supervisor: the server ends too, and gives port and directory up."""
    node = make_node()
    serve = [sys.executable, "-m", "memsvc.cli", "serve", "--config", str(node.config)]
    node.start(command=serve)
    ids = h.fill(node, range(20))
    server = _server_below(psutil.Process(node.pid))
    assert server is not None
    node.kill()
    server.wait(60)
    node.start()
    assert set(h.browse(node)) == set(ids)


def test_help_needs_no_data(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "memsvc.server", "--help"],
        cwd=h.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "--config" in done.stdout
