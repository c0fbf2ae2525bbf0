"""Reader processes: what must not depend on which process takes a call."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.service.tokens_edit import add_token
from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import harness as h
from tests.scenarios import readers as r
from tests.waiting import until

MakeNode = Callable[..., h.Node]
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def node(make_node: MakeNode) -> Iterator[h.Node]:
    node = make_node(server__readers=2).start()
    r.until_readers(node, 2)
    yield node


def test_what_was_acknowledged_anywhere_is_found_by_every_reader(node: h.Node) -> None:
    connections = r.to_each_reader(node)
    for number in range(200):
        (written,) = connections[number % 2].write([number])
        for connection in connections:
            answer = connection.query(number)
            assert answer.degraded.level == 0
            assert [hit.id for hit in answer.items] == [written]
    for number in range(0, 200, 10):
        writer, other = connections[number % 2], connections[(number + 1) % 2]
        (hit,) = writer.query(number).items
        request = pb.ForgetRequest(namespace=h.namespace(), ids=[hit.id], mode=pb.FORGET_MODE_HARD)
        assert writer.stub.Forget(request, timeout=h.CALL_S).changed == 1
        for connection in (other, writer):
            assert hit.id not in [i.id for i in connection.query(number, top_k=5).items]


def test_a_position_is_reached_on_every_reader_when_commits_are_lazy(make_node: MakeNode) -> None:
    """Acknowledged is not committed in this mode: a query that names the position must not
    wait for the commit of the second, nor miss the write."""
    node = make_node(server__readers=2, storage__wal_sync="every_1000ms").start()
    connections = r.to_each_reader(node)
    slowest = 0.0
    for number in range(30):
        request = pb.WriteRequest(namespace=h.namespace(), items=[h.memory(number)])
        answer = connections[number % 2].stub.Write(request, timeout=h.CALL_S)
        for connection in reversed(connections):
            began = time.monotonic()
            found = connection.query(number, min_position=answer.position)
            slowest = max(slowest, time.monotonic() - began)
            assert [hit.id for hit in found.items] == [answer.results[0].id]
    assert slowest < 0.9, "it waited for the commit of the second"
    ids = connections[0].write(range(1_000, 1_010))
    until(
        lambda: all(c.query(1_009).items[0].id == ids[-1] for c in connections),
        5,
        "without a position: at the commit of the second",
    )


class _Load:
    """Queries and writes over one connection until told to stop; failures are kept."""

    def __init__(self, node: h.Node, first: int) -> None:
        self.connection = r.Connection(node)
        self.first = first
        self.done = 0
        self.failures: list[grpc.RpcError] = []
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = self.first
        while not self._stop.is_set():
            number += 1
            try:
                (written,) = self.connection.write([number])
                answer = self.connection.query(number)
            except grpc.RpcError as error:
                self.failures.append(error)
                time.sleep(0.05)
                continue
            if answer.degraded.level or [i.id for i in answer.items] != [written]:
                self.wrong.append(f"{number}: {answer}")
            self.done += 1

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.connection.close()


def test_a_killed_reader_costs_no_other_connection_a_call_and_is_replaced(node: h.Node) -> None:
    loads = [_Load(node, 10_000 * n) for n in range(8)]
    try:
        until(lambda: all(load.done > 20 for load in loads), 60, "all are at work")
        before = r.metrics(node)
        victim = r.readers(node)[0]
        theirs = r.connected(victim)
        others = [load for load in loads if load.connection.port not in theirs]
        failed = [len(load.failures) for load in others]
        done = [load.done for load in loads]
        victim.send_signal(signal.SIGKILL)
        until(lambda: r.metrics(node)["memsvc_reader_deaths_total"] == 1, 30, "its death")
        r.until_readers(node, 2)
        assert victim.pid not in [p.pid for p in r.readers(node)]
        # Whoever was connected to it connects again by itself.
        until(
            lambda: all(load.done > n + 20 for load, n in zip(loads, done, strict=True)),
            60,
            "all go on",
        )
        assert [len(load.failures) for load in others] == failed
    finally:
        for load in loads:
            load.end()
    assert [load.wrong for load in loads if load.wrong] == []
    assert {error.code() for load in loads for error in load.failures} <= {UNAVAILABLE}
    after = r.metrics(node)
    counted = [name for name in before if name.endswith(("_total", "_count", "_bucket"))]
    fell = {name: (before[name], after.get(name)) for name in counted if
            after.get(name, -1.0) < before[name]}  # fmt: skip
    assert not fell, "counters fell when a reader died"


def test_a_stopped_reader_is_replaced(node: h.Node) -> None:
    """It keeps its port and is given new connections, but answers none."""
    victim = r.readers(node)[0]
    victim.suspend()
    until(lambda: not psutil.pid_exists(victim.pid), 60, "it is killed")
    r.until_readers(node, 2)
    r.to_each_reader(node)


def test_a_replaced_database_file_is_noticed_before_the_next_answer(make_node: MakeNode) -> None:
    node = make_node(server__readers=2, storage__seal_rows=100).start()
    loads = [_Load(node, 10_000 * n) for n in range(4)]
    try:
        until(lambda: all(load.done > 20 for load in loads), 60, "all are at work")
        for _ in range(3):
            (hit,) = h.by_vector(node, 10_001, top_k=1).items
            h.forget(node, [hit.id])
            file = (node.data_dir / "store" / "data.mdb").stat().st_ino
            node.maintain(purge=True)
            assert (node.data_dir / "store" / "data.mdb").stat().st_ino != file
            done = [load.done for load in loads]
            until(
                lambda d=done: all(load.done > n + 20 for load, n in zip(loads, d, strict=True)),
                60,
                "they go on",
            )
    finally:
        for load in loads:
            load.end()
    assert [load.wrong for load in loads if load.wrong] == []
    assert [load.failures for load in loads if load.failures] == []
    # Nobody asks any more: the old files must go away all the same.
    until(lambda: not _deleted_files(node), 10, "no process holds a deleted file")


def _deleted_files(node: h.Node) -> list[str]:
    found = []
    for reader in r.readers(node):
        for line in Path(f"/proc/{reader.pid}/maps").read_text().splitlines():
            if str(node.data_dir) in line and line.endswith("(deleted)"):
                found.append(line)
    return found


def test_a_stop_finishes_or_refuses_the_calls_of_readers_and_loses_nothing(node: h.Node) -> None:
    connections = [r.Connection(node) for _ in range(6)]
    acknowledged: list[str] = []
    refused: list[grpc.StatusCode] = []
    begun = threading.Event()

    def work(connection: r.Connection, first: int) -> None:
        for number in range(first, first + 100_000):
            try:
                acknowledged.extend(connection.write([number]))
                assert connection.query(number).degraded.level == 0
            except grpc.RpcError as error:
                refused.append(error.code())
                return
            if len(acknowledged) > 200:
                begun.set()

    threads = [
        threading.Thread(target=work, args=(connection, 10_000 * n))
        for n, connection in enumerate(connections)
    ]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    assert node.stop() == 0
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a call was neither answered nor refused"
    assert len(refused) == 6
    assert refused.count(UNAVAILABLE) >= 5, refused
    assert not h.users_of(node.data_dir), "a reader outlived its node"
    node.start()
    assert set(acknowledged) <= set(h.browse(node))


def test_readers_end_with_a_node_that_is_killed(node: h.Node) -> None:
    every = r.readers(node)
    assert len(every) == 2
    ids = h.fill(node, range(20))
    node.kill()
    psutil.wait_procs(every, timeout=10)
    assert not any(p.is_running() for p in every)
    node.start()
    assert set(h.browse(node)) == set(ids)


def test_a_second_server_on_the_port_of_readers_is_told_so(
    node: h.Node, make_node: MakeNode
) -> None:
    for number in (0, 2):
        second = make_node(
            f"second-{number}",
            server__listen=node.settings["server.listen"],
            server__readers=number,
        )
        second.start(wait=False)
        assert second.process is not None
        assert second.process.wait(60) == 78, second.log_tail()
        assert "server.listen" in second.log_tail()
    assert len(h.fill(node, range(3))) == 3


def test_tokens_rights_and_details_pass_through_a_reader(
    make_node: MakeNode, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens.yaml"
    writer = [("x-memory-token", add_token(tokens, "writer", ["acme"], ("read", "write")))]
    reader = [("x-memory-token", add_token(tokens, "reader", ["acme"], ("read",)))]
    node = make_node(
        server__readers=2, auth__mode="token", auth__tokens_file=str(tokens)
    ).start()  # fmt: skip
    for connection in r.to_each_reader(node):
        connection.write([1], metadata=writer)
        assert connection.query(1, metadata=reader).items
        for metadata, code, reason in (
            (None, grpc.StatusCode.UNAUTHENTICATED, "TOKEN_MISSING"),
            ([("x-memory-token", "ms_no")], grpc.StatusCode.UNAUTHENTICATED, "TOKEN_INVALID"),
            (reader, grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                connection.write([2], metadata=metadata)
            assert h.error_info(refused.value)[:2] == (code, reason)
        with pytest.raises(grpc.RpcError) as refused:
            request = pb.WriteRequest(namespace=h.namespace(), items=[pb.WriteItem()])
            given = [*writer, ("x-request-id", "mine-7")]
            connection.stub.Write(request, timeout=10, metadata=given)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        trailing = dict(refused.value.trailing_metadata())
        assert trailing["x-request-id"] == "mine-7"
        assert b"items" in trailing["grpc-status-details-bin"]
        with pytest.raises(grpc.RpcError) as refused:
            connection.admin.Inspect(admin_pb.InspectRequest(), timeout=10, metadata=writer)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
    added = [("x-memory-token", add_token(tokens, "later", ["acme"], ("read", "write")))]
    node.signal(signal.SIGHUP)
    until(lambda: "reloaded" in node.log_tail(400), 10, "the reload")
    for connection in r.to_each_reader(node):
        connection.query(1, metadata=added)


def test_a_deadline_that_passes_in_the_queue_of_the_writer_is_told(node: h.Node) -> None:
    connection = r.Connection(node)
    with pytest.raises(grpc.RpcError) as refused:
        request = pb.WriteRequest(namespace=h.namespace(), items=[h.memory(1)])
        connection.stub.Write(request, timeout=0.0005)
    assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert connection.write([1])


def test_settings_and_forced_levels_hold_in_every_reader_at_once(node: h.Node) -> None:
    connections = r.to_each_reader(node)
    connections[0].write(range(40))
    for number in range(5):
        level = connections[number % 2].admin.SetDegraded(
            admin_pb.SetDegradedRequest(level=4, reason="REHEARSAL"), timeout=10
        )
        assert level.forced
        for connection in connections:
            answer = connection.query(7)
            assert (answer.degraded.level, answer.degraded.reason) == (4, "REHEARSAL")
            assert not answer.items
        r.readers(node)[0].kill()
        r.until_readers(node, 2)
        for connection in (connections := r.to_each_reader(node)):
            assert connection.query(7).degraded.level == 4, "a new reader did not know"
        connections[1].admin.SetDegraded(admin_pb.SetDegradedRequest(), timeout=10)
        for connection in connections:
            assert connection.query(7).items
        if number:
            break
    node.configure(query__default_top_k=3)
    connections[0].admin.Reload(admin_pb.ReloadRequest(), timeout=10)
    for connection in connections:
        assert len(connection.query(7, top_k=0).items) == 3


def test_a_namespace_has_one_bucket_in_all_processes(make_node: MakeNode) -> None:
    node = make_node(
        server__readers=2, limits__requests_per_second=0.01, limits__burst=20
    ).start()  # fmt: skip
    connections = r.to_each_reader(node)
    taken = 0
    for number in range(40):
        connection = connections[number % 2]
        try:
            if number % 4 < 2:
                connection.write([number])
            else:
                connection.query(number)
            taken += 1
        except grpc.RpcError as error:
            assert h.error_info(error)[:2] == (
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "RATE_LIMITED",
            )
    assert taken == 20


def test_recalls_that_readers_count_reach_the_log(node: h.Node) -> None:
    connections = r.to_each_reader(node)
    (written,) = connections[0].write([1])
    for connection in connections:
        for _ in range(3):
            connection.query(1, rank=pb.Rank())

    def counted() -> bool:
        request = pb.QueryRequest(namespace=h.namespace(), ids=[written])
        (hit,) = node.stub().Query(request, timeout=10).items
        return bool(hit.recall_count == 6)

    until(counted, 20, "six recalls")


def test_damage_that_a_reader_finds_is_repaired(make_node: MakeNode) -> None:
    node = make_node(server__readers=2, storage__seal_rows=100).start()
    h.fill(node, range(400))
    node.maintain(seal_min_rows=1, merge_all=True)
    assert node.stop() == 0
    for path in node.segment_files():
        if path.name.startswith("rows"):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 0xFF
            path.chmod(0o600)
            path.write_bytes(data)
    node.start()
    connections = r.to_each_reader(node)
    for connection in connections:
        for number in range(0, 400, 20):
            (hit,) = connection.query(number).items
            assert hit.similarity > 0.999
    until(lambda: "set aside" in node.log_file.read_text(), 10, "a reader's report")
    node.maintain()
    until(lambda: r.metrics(node)["memsvc_damaged_files"] == 0, 60, "the repair")
    for connection in connections:
        for number in range(0, 400, 20):
            answer = connection.query(number)
            assert answer.degraded.level == 0 and answer.items[0].similarity > 0.999
