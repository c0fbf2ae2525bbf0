"""Readers that are killed again and again, and writes that are looked for everywhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import count

import grpc
import psutil

from tests.scenarios import harness as h
from tests.scenarios import readers as r
from tests.waiting import until

MakeNode = Callable[..., h.Node]
KILLS = 4
NUMBERS = count(2)


def _channel(node: h.Node) -> r.Channel:
    """A channel that is known by the address it reaches the node by, through all of its
    connections."""
    high, low = divmod(next(NUMBERS), 250)
    return r.Channel(node, f"127.0.{high}.{low + 2}")


class _Asking:
    """Queries over one channel until told to stop. After a failed call it takes another one, as a
    client does; ``failed`` has the addresses of those that had one."""

    def __init__(self, node: h.Node, number: int) -> None:
        self._node = node
        self._number = number
        self.channel = _channel(node)
        self.done = 0
        self.failed: list[tuple[str, grpc.StatusCode]] = []
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                answer = self.channel.query(self._number)
            except grpc.RpcError as error:
                self.failed.append((self.channel.host, error.code()))
                self.channel.close()
                self.channel = _channel(self._node)
                continue
            if len(answer.items) != 1 or answer.degraded.level:
                self.wrong.append(str(answer))
            self.done += 1

    def end(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        self.channel.close()


def test_only_connections_of_a_killed_reader_have_failed_calls(make_node: MakeNode) -> None:
    """However often: each kill may cost each of its connections the call under way, with
    UNAVAILABLE, and nobody else anything; new connections are taken by the others at once."""
    node = make_node(server__readers=2, server__allow_insecure=True)
    node.configure(server__listen=f"0.0.0.0:{node.port}")
    node.start()
    r.until_readers(node, 2)
    h.fill(node, range(20))
    every = [_Asking(node, number) for number in range(10)]
    theirs: set[str] = set()
    try:
        for _ in range(KILLS):
            done = [asking.done for asking in every]
            until(
                lambda d=done: all(a.done > n for a, n in zip(every, d, strict=True)), 60, "all ask"
            )
            victim = r.readers(node)[0]
            # Frozen first: nobody connects to it between the look and the kill unseen.
            victim.suspend()
            theirs |= r.hosts_of(victim)
            victim.kill()
            gone, _ = psutil.wait_procs([victim], timeout=30)
            assert gone
            other = _channel(node)
            assert other.query(3).items, "the other reader takes new connections"
            other.close()
            r.until_readers(node, 2)
    finally:
        for asking in every:
            asking.end()
    failed = [pair for asking in every for pair in asking.failed]
    assert {code for _, code in failed} <= {grpc.StatusCode.UNAVAILABLE}
    assert theirs, "the killed had connections"
    assert {host for host, _ in failed} <= theirs
    assert len(failed) <= len(theirs)
    assert not [asking.wrong for asking in every if asking.wrong]


def test_each_write_of_one_connection_is_found_at_once_over_eight_others(
    make_node: MakeNode,
) -> None:
    """Several hundred looks, each begun after the acknowledgement, while segments are swapped
    below them."""
    node = make_node(server__readers=2, storage__seal_rows=100).start()
    r.until_readers(node, 2)
    writer = r.to_each_reader(node)[0]
    looking = [*r.to_each_reader(node), *(r.Connection(node) for _ in range(6))]
    missed: list[str] = []

    def look(connection: r.Connection, number: int, id_: str) -> None:
        answer = connection.query(number)
        if answer.degraded.level or [hit.id for hit in answer.items] != [id_]:
            missed.append(f"{number}: {answer}")

    began = time.monotonic()
    for number in range(100):
        (id_,) = writer.write([number])
        threads = [threading.Thread(target=look, args=(c, number, id_)) for c in looking]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(h.CALL_S)
        if number % 10 == 9:
            writer.write(range(1_000 + 20 * number, 1_020 + 20 * number))
            if time.monotonic() - began > 60:  # a slow machine has looked often enough
                break
    assert missed == []
    for connection in (writer, *looking):
        connection.close()
