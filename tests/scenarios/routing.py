"""A primary with two replicas, and calls that go on while nodes come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from memsvc.client import NodeState, RoutedClient, Routing, Timeouts
from tests.scenarios import harness as h
from tests.scenarios import replication as r
from tests.waiting import until

CHECK_S = 0.1
NS = "acme/bot"


class Trio:
    """A primary and two replicas, all started and level."""

    def __init__(self, make_node: r.MakeNode, via: str = "", **settings: Any) -> None:
        self.primary = r.make_primary(make_node, **settings).start()
        names = ("one", "two")
        self.replicas = [r.make_replica(make_node, self.primary, n, **settings) for n in names]
        for node in self.replicas:
            node.start(wait=False)
        for node in self.replicas:
            node.wait_ready()

    @property
    def nodes(self) -> list[h.Node]:
        return [self.primary, *self.replicas]

    @contextmanager
    def client(self, **routing: Any) -> Iterator[RoutedClient]:
        """A router that checks often and is in no hurry to give up."""
        with RoutedClient(
            [address(node) for node in self.nodes],
            timeouts=Timeouts(read=60, write=60),
            routing=Routing(check_interval=CHECK_S, **routing),
        ) as client:
            yield client


def address(node: h.Node) -> str:
    """Where clients reach a node."""
    return f"127.0.0.1:{node.port}"


def vector(number: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The vector of harness.memory(number)."""
    return h.vector(number)


def state(client: RoutedClient, node: h.Node) -> NodeState:
    """What the router knows of a node."""
    return next(known for known in client.nodes() if known.address == address(node))


def until_read_from(client: RoutedClient, *nodes: h.Node) -> None:
    """Waits until the router reads from these nodes and from no others."""
    wanted = {address(node) for node in nodes}
    until(lambda: {n.address for n in client.nodes() if n.reads} == wanted, 60, "reads to move")


class Callers:
    """Threads that call again and again; a context manager that ends them and fails when a
    call has failed."""

    def __init__(self, call: Callable[[int], object], threads: int = 2) -> None:
        self._call = call
        self._stop = threading.Event()
        self.done = 0
        """Calls that succeeded."""
        self._counting = threading.Lock()
        self.errors: list[Exception] = []
        self._threads = [
            threading.Thread(target=self._run, args=(1_000_000 * n,)) for n in range(1, threads + 1)
        ]

    def _run(self, number: int) -> None:
        while not self._stop.is_set():
            number += 1
            try:
                self._call(number)
            except Exception as error:
                self.errors.append(error)
                return
            with self._counting:
                self.done += 1

    def more(self, calls: int = 50) -> None:
        """Waits for so many more calls."""
        wanted = self.done + calls
        until(lambda: self.done >= wanted or bool(self.errors), 60, "calls to go on")
        assert not self.errors, self.errors

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self.errors, self.errors
