"""Readers that are begun, and begun again, while something else is wrong."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from memsvc.readers.early import EarlyReaders
from memsvc.service.tokens_edit import add_token
from memsvc.v1 import memory_service_pb2 as pb
from tests.ports import free_port
from tests.scenarios import groups as g
from tests.scenarios import harness as h
from tests.scenarios import readers as r
from tests.scenarios.disks import fill_disk, small_disk
from tests.waiting import until

MakeNode = Callable[..., h.Node]


def _replace_reader(node: h.Node) -> None:
    (before,) = r.readers(node)
    before.kill()

    def another_serves() -> bool:
        log = node.log_file.read_text()
        return any(f"reader is up, pid {reader.pid}" in log for reader in r.readers(node))

    until(lambda: not before.is_running() and another_serves(), 60, node.log_tail)


def test_readers_pass_writes_on_to_their_own_node_and_to_no_copy_of_it(
    make_node: MakeNode,
) -> None:
    """Nodes of a group on one machine have the same store id; what readers meet at must be that
    of their node, also after the other has started and after it has ended."""
    a, b = g.make_group(make_node, ("a", "b"), server__readers=1)
    g.start([a, b])
    for number in range(2):
        _replace_reader(a)
        written = r.Channel(a).write([number])
        (answer,) = r.Channel(a).query(number).items
        assert [answer.id] == written
        if b.process is not None and b.process.poll() is None:
            assert r.Channel(b).stub.Health(pb.HealthRequest(), timeout=h.CALL_S).role == (
                pb.ROLE_REPLICA
            )
            assert b.stop() == 0


def test_a_reader_is_replaced_while_the_tokens_file_is_broken(
    make_node: MakeNode, tmp_path: Path
) -> None:
    """It changes nothing for the node, which goes on with the tokens it has read."""
    tokens = tmp_path / "tokens.yaml"
    secret = [("x-memory-token", add_token(tokens, "agent", ["acme"], ("read", "write")))]
    node = make_node(
        server__readers=1, auth__mode="token", auth__tokens_file=str(tokens)
    ).start()  # fmt: skip
    r.Channel(node).write([1], metadata=secret)
    for broken in ("tokens: [", None):
        tokens.unlink()
        if broken:
            tokens.write_text(broken)
        _replace_reader(node)
        channel = r.Channel(node)
        assert channel.query(1, metadata=secret).items
        channel.write([2], metadata=secret)
        with pytest.raises(grpc.RpcError) as refused:
            channel.query(1, metadata=[("x-memory-token", "other")])
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        if broken:
            continue
        other = [("x-memory-token", add_token(tokens, "agent", ["acme"], ("read", "write")))]

        def taken(channel: r.Channel = channel, other: list[tuple[str, str]] = other) -> bool:
            try:
                return bool(channel.query(1, metadata=other).items)
            except grpc.RpcError:
                return False

        until(taken, 30, "the file is read again once it can be")


def test_a_node_says_that_it_serves_with_its_first_answer(make_node: MakeNode) -> None:
    """For a second it said that it does not: startup probes, and clients that balance by health,
    waited for nothing at each start."""
    node = make_node(server__readers=1).start(wait=False)
    request = health_pb2.HealthCheckRequest()
    with grpc.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(request, timeout=60, wait_for_ready=True)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    _replace_reader(node)
    with grpc.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_signals_that_reach_a_reader_while_it_imports_do_not_end_it(tmp_path: Path) -> None:
    """Ctrl-C in a terminal goes to all processes in it."""
    with EarlyReaders(1, tmp_path) as early:
        reader = early.take()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            reader.send_signal(number)
        with reader:
            pass
    assert reader.returncode == 0


def test_a_replica_that_waits_for_its_primary_ends_when_it_is_told_to(make_node: MakeNode) -> None:
    node = make_node(
        node__role="replica", replication__primary=f"127.0.0.1:{free_port()}", server__readers=1
    ).start(wait=False)
    until(lambda: "waiting for the primary" in node.log_tail(), 60, node.log_tail)
    assert node.stop() == 0
    assert not h.users_of(node.data_dir), "a reader outlived its node"


def test_a_node_whose_reader_hangs_at_the_start_ends_when_it_is_told_to(
    make_node: MakeNode,
) -> None:
    node = make_node(server__readers=1, server__graceful_shutdown_ms=1_000).start(wait=False)
    until(lambda: bool(r.readers(node)), 60, node.log_tail)
    r.readers(node)[0].suspend()
    until(lambda: "HTTP listens" in node.log_tail(), 60, node.log_tail)
    assert node.stop() == 0
    assert not h.users_of(node.data_dir), "the reader outlived its node"


def test_a_node_that_hangs_keeps_its_reader_from_nothing_but_what_it_must_ask(
    make_node: MakeNode,
) -> None:
    """However many ask for Health, and without a deadline of their own."""
    node = make_node(server__readers=1).start()
    h.fill(node, range(3))
    channel = r.Channel(node)
    node.signal(signal.SIGSTOP)
    try:
        asked = [channel.stub.Health.future(pb.HealthRequest()) for _ in range(12)]
        check = health_pb2_grpc.HealthStub(channel.channel).Check
        assert check(health_pb2.HealthCheckRequest(), timeout=h.CALL_S)
        assert channel.query(1).items
        assert not all(one.done() for one in asked), "those wait"
        for one in asked:
            error = one.exception(timeout=h.CALL_S)
            code, reason, _ = h.error_info(error)
            assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "WRITER_UNAVAILABLE")
    finally:
        node.signal(signal.SIGCONT)
    until(lambda: channel.stub.Health(pb.HealthRequest(), timeout=h.CALL_S).ready, 30, "Health")


def test_a_position_that_a_hung_node_has_not_committed_is_not_called_lost(
    make_node: MakeNode,
) -> None:
    node = make_node(server__readers=1, storage__wal_sync="every_1000ms").start()
    channel = r.Channel(node)
    codes: list[grpc.StatusCode] = []
    for number in range(10):
        request = pb.WriteRequest(namespace=h.namespace(), items=[h.memory(number)])
        position = channel.stub.Write(request, timeout=h.CALL_S).position
        node.signal(signal.SIGSTOP)
        try:
            channel.query(number, min_position=position)
        except grpc.RpcError as error:
            assert h.error_info(error)[1] == "WRITER_UNAVAILABLE"
            codes.append(error.code())
        finally:
            node.signal(signal.SIGCONT)
        assert channel.query(number, min_position=position).items
        if codes:
            break
    assert codes == [grpc.StatusCode.UNAVAILABLE], "each write was committed before the node hung"


def test_a_full_disk_below_the_rate_limits_is_told_and_ends_nobody(tmp_path: Path) -> None:
    """A page of a mapped file for which there is no room ends a process by SIGBUS."""
    script = (
        "import sys; from pathlib import Path\n"
        "from memsvc.service.shared_limits import SharedRateLimiter\n"
        "limiter = SharedRateLimiter(Path(sys.argv[1]), 1_000.0)\n"
        "for number in range(1_000): limiter.take('t', str(number))"
    )
    try:
        with small_disk(tmp_path, "tmpfs", 1) as point:
            fill_disk(point, leave=1 << 16)
            done = subprocess.run(
                [sys.executable, "-c", script, str(point / "limits")],
                capture_output=True,
                text=True,
                check=False,
            )
    except OSError as error:
        pytest.fail(f"a file system is needed: {error}")
    assert done.returncode == 1 and "No space left" in done.stderr, done.stderr
