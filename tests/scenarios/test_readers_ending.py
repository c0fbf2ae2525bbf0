"""Readers that end in other ways than by a crash, and what they pass on at length."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import psutil
import pytest

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.readers.early import EarlyReaders
from memsvc.v1 import memory_service_pb2 as pb
from tests.certificates import make_authority
from tests.edges import test_tls as tls
from tests.scenarios import harness as h
from tests.scenarios import readers as r
from tests.waiting import until

MakeNode = Callable[..., h.Node]


def test_an_export_passes_through_a_reader_whole(make_node: MakeNode) -> None:
    node = make_node(server__readers=1).start()
    ids = h.fill(node, range(500))
    request = admin_pb.ExportTenantRequest(tenant="acme", vectors=True)
    lines = [json.loads(m.json) for m in node.admin().ExportTenant(request, timeout=60)]
    assert {line["id"] for line in lines} == set(ids)
    # Left half way: the serving process must not go on with it for ever.
    stream = node.admin().ExportTenant(request, timeout=60)
    next(stream)
    stream.cancel()
    with pytest.raises(grpc.RpcError) as refused:
        list(node.admin().ExportTenant(admin_pb.ExportTenantRequest(tenant="a/b"), timeout=60))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert h.error_info(refused.value)[1]


def test_a_reader_told_to_end_finishes_its_calls_and_is_replaced(make_node: MakeNode) -> None:
    node = make_node(server__readers=2).start()
    r.until_readers(node, 2)
    first, second = r.to_each_reader(node)
    first.write([1])
    victim = next(p for p in r.readers(node) if first.port in r.connected(p))
    codes: list[grpc.StatusCode] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                assert first.query(1).items
            except grpc.RpcError as error:
                codes.append(error.code())
                time.sleep(0.02)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        victim.send_signal(signal.SIGTERM)
        until(lambda: not victim.is_running(), 30, "it ends")
        assert second.query(1).items
        r.until_readers(node, 2)
        assert first.query(1).items
    finally:
        stop.set()
        thread.join(30)
    assert set(codes) <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    assert codes.count(grpc.StatusCode.CANCELLED) <= 1


def test_under_the_supervisor_a_killed_server_takes_its_readers_along(
    make_node: MakeNode,
) -> None:
    node = make_node(server__readers=2)
    node.start(command=[sys.executable, "-m", "memsvc.cli", "serve", "--config", str(node.config)])
    r.until_readers(node, 2)
    before = r.readers(node)
    ids = h.fill(node, range(50))
    (server,) = [c for c in psutil.Process(node.pid).children() if "memsvc.server" in c.cmdline()]
    server.kill()
    psutil.wait_procs(before, timeout=20)
    assert not any(p.is_running() for p in before)
    until(lambda: _answers(node), 60, "a new server")
    r.until_readers(node, 2)
    assert set(h.browse(node)) == set(ids)
    assert node.stop() == 0
    assert not h.users_of(node.data_dir)


def test_a_node_whose_only_reader_is_gone_is_not_ready_until_there_is_another(
    make_node: MakeNode,
) -> None:
    """Probes over HTTP reach the server, which is well; callers over gRPC reach nobody."""
    node = make_node(server__readers=1).start()
    until(lambda: _ready(node), 60, node.log_tail)
    (victim,) = r.readers(node)
    victim.kill()
    until(lambda: not _ready(node), 30, node.log_tail, every=0.005)
    until(lambda: _ready(node), 60, node.log_tail)
    r.Channel(node).close()
    assert f"reader 0 ended (pid {victim.pid}, signal SIGKILL)" in node.log_tail()
    assert node.stop() == 0


def _ready(node: h.Node) -> bool:
    url = f"http://127.0.0.1:{node.http_port}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as refused:
        assert refused.code == 503
        return False


def test_readers_ask_for_the_certificates_that_one_process_would(
    make_node: MakeNode, tmp_path: Path
) -> None:
    own = make_authority(tmp_path)
    ca, server, client, stranger = own.ca, own.server, own.client, own.stranger
    node = make_node(
        server__readers=2,
        server__tls__cert_file=str(server.cert),
        server__tls__key_file=str(server.key),
        server__tls__client_ca_file=str(ca.cert),
    ).start(wait=False)
    until(lambda: "readers that serve port" in node.log_tail(), 60, "readers that serve")
    assert tls.ask(node.port, ca, client).ready
    tls.unavailable(lambda: tls.ask(node.port, ca))
    tls.unavailable(lambda: tls.ask(node.port, ca, stranger))
    assert node.stop() == 0
    node.configure(server__tls__key_file=str(tmp_path / "absent.key"))
    node.start(wait=False)
    assert node.process is not None
    assert node.process.wait(60) == 78
    assert "server.tls.key_file" in node.log_tail() and "Traceback" not in node.log_tail()


def test_readers_begun_early_end_with_a_node_that_cannot_start(make_node: MakeNode) -> None:
    first = make_node(server__readers=1).start()
    second = make_node(server__readers=2, storage__data_dir=str(first.data_dir)).start(wait=False)
    assert second.process is not None
    assert second.process.wait(60) == 78
    until(lambda: len(_readers_of(first.data_dir)) == 1, 30, "those of the second end")
    assert _readers_of(first.data_dir) == [p.pid for p in r.readers(first)]


def test_a_reader_that_nobody_takes_is_ended(tmp_path: Path) -> None:
    with EarlyReaders(2, tmp_path) as early:
        taken = early.take()
        assert len(_readers_of(tmp_path)) == 2
    assert _readers_of(tmp_path) == [taken.pid]
    with taken:  # closes its input, as the end of its node does, and waits
        pass
    assert taken.returncode == 0


def _readers_of(data_dir: Path) -> list[int]:
    """Also those whose node is gone."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if "memsvc.readers.process" in (found := process.info["cmdline"] or ())
        and str(data_dir) in found
    ]


def _answers(node: h.Node) -> bool:
    try:
        return bool(node.stub().Health(pb.HealthRequest(), timeout=2).ready)
    except grpc.RpcError:
        return False
