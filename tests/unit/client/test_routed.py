"""What a routed call does when nodes fail, hang, refuse or change places, over real gRPC."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from memsvc.client import (
    ClientError,
    NewMemory,
    RoutedClient,
    Routing,
    Timeouts,
    Tls,
)
from memsvc.client.connection import IDLE_MS, PROBE_MS
from memsvc.domain.positions import Position, pack_position
from memsvc.rpc import server
from memsvc.v1 import memory_service_pb2 as pb
from tests.unit.client.fake import FakeService, Running, refuse
from tests.waiting import until

NS = "acme/assistant/chat"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
QUICK = Routing(check_interval=0.05, hedge_after=0.1)


class Nodes:
    """A primary and two replicas that share what is remembered."""

    def __init__(self) -> None:
        self.primary = Running(FakeService())
        self.replicas = [Running(FakeService()) for _ in range(2)]
        self.all = [self.primary, *self.replicas]
        for node in self.all:
            node.service.memories = self.primary.service.memories
            node.service.role = pb.ROLE_REPLICA
            node.service.hook = not_primary(self.primary.address)
        self.primary.service.role = pb.ROLE_PRIMARY
        self.primary.service.hook = lambda *_: None

    @contextmanager
    def client(self, routing: Routing = QUICK, **more: Any) -> Iterator[RoutedClient]:
        addresses = [node.address for node in self.all]
        with RoutedClient(addresses, routing=routing, **more) as client:
            yield client

    def promote(self, node: Running, epoch: int = 2) -> None:
        """The node is the primary from now on, and the others refuse changes."""
        for other in self.all:
            other.service.role, other.service.epoch = pb.ROLE_REPLICA, epoch
            other.service.hook = not_primary(node.address)
        node.service.role, node.service.hook = pb.ROLE_PRIMARY, lambda *_: None

    def asked(self, call: str) -> list[int]:
        return [len(node.service.calls(call)) for node in self.all]


def not_primary(named: str) -> Callable[[str, Any, grpc.ServicerContext], None]:
    def hook(call: str, request: Any, context: grpc.ServicerContext) -> None:
        if call in ("Write", "Forget"):
            code = grpc.StatusCode.FAILED_PRECONDITION
            refuse(context, code, "a replica", reason="NOT_PRIMARY", primary=named)

    return hook


def only(call: str, do: Callable[[grpc.ServicerContext], None]) -> Callable[..., None]:
    """A hook that does something in one of the calls."""

    def hook(name: str, request: Any, context: grpc.ServicerContext) -> None:
        if name == call:
            do(context)

    return hook


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    nodes = Nodes()
    yield nodes
    for node in nodes.all:
        node.stop()


def all_in(client: RoutedClient, replicas: int = 2) -> None:
    """Waits until so many replicas are read from."""
    until(lambda: sum(node.reads for node in client.nodes()) == replicas, 20, "replicas to be in")


def test_writes_reach_the_primary_alone_and_reads_the_replicas_alone(nodes: Nodes) -> None:
    with nodes.client() as client:
        (written,) = client.write(NS, [NewMemory("likes tea")]).results
        all_in(client)
        for _ in range(10):
            answer = client.query(NS, text="tea")
            assert [hit.id for hit in answer.items] == [written.id]
        assert client.forget(NS, ids=[written.id]).matched == 1
        assert client.health().role == pb.ROLE_PRIMARY
    assert nodes.asked("Write") == [1, 0, 0]
    assert nodes.asked("Forget") == [1, 0, 0]
    reads = nodes.asked("Query")
    assert reads[0] == 0
    assert min(reads[1:]) >= 3, "both take their share"


def test_a_read_that_falls_back_says_so_and_one_to_a_replica_does_not(nodes: Nodes) -> None:
    with nodes.client() as client:
        all_in(client)
        client.query(NS, text="tea")
        for node in nodes.replicas:
            node.service.hook = only(
                "Query", lambda context: refuse(context, UNAVAILABLE, "gone", reason="X")
            )
        client.query(NS, text="tea")
        (marked,) = nodes.primary.service.calls("Query")
        assert marked.fallback
    assert not any(q.fallback for node in nodes.replicas for q in node.service.calls("Query"))


@pytest.mark.parametrize("code", [grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN])
def test_a_call_that_broke_without_a_word_of_the_node_is_asked_of_another(
    nodes: Nodes, code: grpc.StatusCode
) -> None:
    with nodes.client() as client:
        all_in(client)
        for node in nodes.replicas:
            node.service.hook = only("Query", lambda context: context.abort(code, "Stream removed"))
        client.query(NS, text="tea", timeout=20)
    assert nodes.asked("Query")[0] == 1


def test_a_read_that_hangs_is_asked_of_another_node(nodes: Nodes) -> None:
    held = threading.Event()
    with nodes.client() as client:
        all_in(client)
        nodes.replicas[0].service.hook = only("Query", lambda _: held.wait(10) and None)
        for _ in range(4):
            client.query(NS, text="tea", timeout=10)
        held.set()
    assert nodes.asked("Query")[0] == 0, "the other replica is asked before the primary"


def test_a_position_that_a_replica_does_not_reach_is_asked_of_the_primary(nodes: Nodes) -> None:
    def refuse_position(context: grpc.ServicerContext) -> None:
        code = grpc.StatusCode.DEADLINE_EXCEEDED
        refuse(context, code, "not yet", reason="POSITION_NOT_REACHED", retry_ms=200)

    with nodes.client() as client:
        all_in(client)
        for node in nodes.replicas:
            node.service.hook = only("Query", refuse_position)
        client.query(NS, text="tea", min_position="p9")
        assert all(node.reads for node in client.nodes() if node.role == "replica")
    (asked,) = nodes.primary.service.calls("Query")
    assert (asked.min_position, asked.fallback) == ("p9", True)
    assert sum(nodes.asked("Query")[1:]) == 1


def test_a_refusal_that_the_primary_would_repeat_is_told_at_once(nodes: Nodes) -> None:
    def wrong(context: grpc.ServicerContext) -> None:
        refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "no", reason="INVALID_ARGUMENT")

    with nodes.client() as client:
        all_in(client)
        for node in nodes.all:
            node.service.hook = only("Query", wrong)
        with pytest.raises(ClientError, match="no"):
            client.query(NS, text="tea")
    assert sum(nodes.asked("Query")) == 1


def test_a_write_follows_a_primary_that_changed_while_nobody_was_it(nodes: Nodes) -> None:
    new = nodes.replicas[0]
    with nodes.client() as client:
        client.write(NS, [NewMemory("one")])
        nodes.primary.service.role = pb.ROLE_REPLICA
        nodes.primary.service.hook = not_primary("")
        timer = threading.Timer(0.7, nodes.promote, [new])
        timer.start()
        answer = client.write(NS, [NewMemory("two")], timeout=20)
        timer.join()
        assert answer.results[0].outcome == pb.OUTCOME_CREATED
        client.write(NS, [NewMemory("three")])
    assert [node.service.counter for node in nodes.all] == [1, 2, 0], "each was taken once"


def test_a_write_to_a_primary_that_hangs_goes_to_the_one_that_took_its_place(
    nodes: Nodes,
) -> None:
    new, inside, held = nodes.replicas[1], threading.Event(), threading.Event()

    def hang(_: grpc.ServicerContext) -> None:
        inside.set()
        held.wait(20)

    with nodes.client() as client:
        client.write(NS, [NewMemory("one")])
        nodes.primary.service.hook = only("Write", hang)
        timer = threading.Thread(
            target=lambda: (inside.wait(20), nodes.promote(new))  # type: ignore[func-returns-value]
        )
        timer.start()
        client.write(NS, [NewMemory("two")], request_id="r2", timeout=20)
        timer.join()
        held.set()
    assert {write.request_id for write in new.service.calls("Write")} == {"r2"}


def test_an_address_that_nobody_gave_is_followed_when_a_replica_names_it(nodes: Nodes) -> None:
    replica = nodes.replicas[0]
    with RoutedClient([replica.address], routing=QUICK) as client:
        client.write(NS, [NewMemory("one")])
        client.write(NS, [NewMemory("two")])
    assert nodes.asked("Write")[0] == 2


def test_a_write_without_a_request_id_is_sent_once(nodes: Nodes) -> None:
    with nodes.client() as client:
        client.write(NS, [NewMemory("one")])
        nodes.primary.service.hook = only(
            "Write", lambda context: refuse(context, UNAVAILABLE, "broken", reason="X")
        )
        with pytest.raises(ClientError, match="broken"):
            client.write(NS, [NewMemory("two")], request_id="")
        assert nodes.asked("Write")[0] == 2
        with pytest.raises(ClientError, match="broken"):
            client.write(NS, [NewMemory("three")], request_id="r", timeout=1)
        assert nodes.asked("Write")[0] > 3


def test_a_node_that_asks_for_a_pause_gets_it(nodes: Nodes) -> None:
    times: list[float] = []

    def busy(context: grpc.ServicerContext) -> None:
        times.append(time.monotonic())
        if len(times) == 1:
            refuse(context, UNAVAILABLE, "later", reason="X", retry_ms=600)

    with nodes.client() as client:
        client.write(NS, [NewMemory("one")])
        nodes.primary.service.hook = only("Write", busy)
        client.write(NS, [NewMemory("two")], timeout=20)
    assert times[1] - times[0] >= 0.6


def test_no_node_at_all_is_told_at_the_deadline_with_the_addresses() -> None:
    timeouts = Timeouts(read=0.3, write=0.3)
    with RoutedClient(["127.0.0.1:1", "127.0.0.1:2"], timeouts=timeouts, routing=QUICK) as client:
        for call in (lambda: client.query(NS, text="x"), lambda: client.forget(NS, ids=["x"])):
            with pytest.raises(ClientError, match=r"127\.0\.0\.1:1, 127\.0\.0\.1:2") as caught:
                call()
            assert caught.value.unreachable


def test_that_nobody_is_the_primary_is_told_and_may_be_tried_again(nodes: Nodes) -> None:
    addresses = [node.address for node in nodes.replicas]
    nodes.primary.stop()
    with RoutedClient(addresses, routing=QUICK) as client:
        with pytest.raises(ClientError) as caught:
            client.write(NS, [NewMemory("one")], timeout=0.5)
        assert caught.value.code == "UNAVAILABLE"
        assert caught.value.retriable


def test_calls_that_wait_for_a_primary_do_not_storm_the_nodes(nodes: Nodes) -> None:
    addresses = [node.address for node in nodes.replicas]
    for node in nodes.replicas:
        node.service.hook = not_primary("")
    with RoutedClient(addresses, routing=Routing(check_interval=60)) as client:
        with pytest.raises(ClientError) as caught:
            client.write(NS, [NewMemory("one")], timeout=6)
        assert caught.value.reason == "NO_PRIMARY"
    for call in ("Health", "Write"):
        assert 2 <= max(nodes.asked(call)) <= 25


def test_a_lagging_replica_answers_marked_when_there_is_nobody_else(nodes: Nodes) -> None:
    for node in nodes.replicas:
        node.service.lag_ms = 11_000
    with nodes.client() as client:
        until(lambda: all(node.role for node in client.nodes()), 20, "all to be known")
        assert client.query(NS, text="tea").degraded.level == 0, "the fake marks nothing"
        assert nodes.asked("Query") == [1, 0, 0]
        nodes.primary.stop()
        answer = client.query(NS, text="tea", timeout=20)
        assert (answer.degraded.level, answer.degraded.reason) == (2, "REPLICA_LAGGING")


def position(number: int) -> str:
    return pack_position(Position(b"12345678", 1, number))


def test_reads_carry_the_latest_position_that_was_written(nodes: Nodes) -> None:
    with nodes.client(Routing(check_interval=0.05, read_your_writes=True)) as client:
        all_in(client)
        for told, expected in ((5, 5), (9, 9), (7, 9)):
            nodes.primary.service.position = position(told)
            client.write(NS, [NewMemory("x")])
            client.query(NS, text="x")
            queries = [q for node in nodes.replicas for q in node.service.calls("Query")]
            assert position(expected) in [q.min_position for q in queries]
            for node in nodes.replicas:
                node.service.requests.clear()
        client.query(NS, text="x", min_position=position(1))
        queries = [q for node in nodes.replicas for q in node.service.calls("Query")]
        assert [q.min_position for q in queries] == [position(1)], "an explicit one counts"


def test_a_position_that_was_lost_is_told_once_and_does_not_end_all_reads(nodes: Nodes) -> None:
    def lost(call: str, request: Any, context: grpc.ServicerContext) -> None:
        if call == "Query" and request.min_position:
            refuse(context, grpc.StatusCode.ABORTED, "lost", reason="POSITION_LOST")

    with nodes.client(Routing(check_interval=0.05, read_your_writes=True)) as client:
        client.write(NS, [NewMemory("x")])
        for node in nodes.all:
            node.service.hook = lost
        with pytest.raises(ClientError) as caught:
            client.query(NS, text="x")
        assert caught.value.reason == "POSITION_LOST"
        client.query(NS, text="x")


def test_closing_ends_waiting_calls_and_every_thread(nodes: Nodes) -> None:
    before = threading.active_count()
    errors: list[ClientError] = []
    client = RoutedClient(["127.0.0.1:1"], routing=QUICK)

    def wait() -> None:
        with pytest.raises(ClientError) as caught:
            client.query(NS, text="x", timeout=60)
        errors.append(caught.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: any(t.name == "memsvc-router" for t in threading.enumerate()), 20, "the router")
    client.close()
    waiting.join(20)
    assert [error.reason for error in errors] == ["CLIENT_CLOSED"]
    assert not any(t.name == "memsvc-router" for t in threading.enumerate())
    with pytest.raises(ClientError, match="closed"):
        client.write(NS, [NewMemory("x")])
    client.close()
    until(lambda: threading.active_count() <= before, 20, "threads to end")


def test_certificates_that_cannot_be_read_are_told_at_once() -> None:
    with pytest.raises(FileNotFoundError):
        RoutedClient(["127.0.0.1:1"], tls=Tls(ca_file="/nowhere/ca.pem"))


def test_why_no_node_can_be_asked_is_told(nodes: Nodes) -> None:
    with nodes.client(token="x", token_header="no header") as client:
        with pytest.raises(ClientError, match="Invalid metadata"):
            client.query(NS, text="tea", timeout=0.5)
        assert all("Invalid metadata" in node.trouble for node in client.nodes())


def test_one_address_as_a_text_is_refused() -> None:
    with pytest.raises(TypeError, match="list"):
        RoutedClient("127.0.0.1:8848")


def test_connections_are_given_up_before_the_server_closes_them_and_probed_as_it_allows() -> None:
    assert IDLE_MS < server.IDLE_MS
    assert PROBE_MS >= 10_000, "the server takes more frequent probes for an attack"
