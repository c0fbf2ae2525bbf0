"""A primary and its replicas, for scenario tests."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2

from memsvc.store import feed
from memsvc.store.store import Store
from memsvc.v1 import memory_service_pb2 as pb
from tests.ports import free_port
from tests.scenarios import harness as h
from tests.waiting import until

MakeNode = Callable[..., h.Node]


def make_primary(make_node: MakeNode, **settings: Any) -> h.Node:
    """A primary, not started; ``feed_port`` is where it serves replicas."""
    port = free_port()
    node = make_node(
        "primary", node__role="primary", replication__listen=f"127.0.0.1:{port}", **settings
    )
    return node


def feed_address(primary: h.Node) -> str:
    """Where a primary serves replicas."""
    return str(primary.settings["replication.listen"])


def make_replica(
    make_node: MakeNode, primary: h.Node, name: str = "replica", via: str = "", **settings: Any
) -> h.Node:
    """A replica of a primary, not started; ``via`` is a proxy's address."""
    settings = {
        "node__role": "replica",
        "replication__primary": via or feed_address(primary),
        **settings,
    }
    return make_node(name, **settings)


def health(node: h.Node) -> pb.HealthResponse:
    """How a node says it is."""
    return node.stub().Health(pb.HealthRequest(), timeout=5)


def level(primary: h.Node, *replicas: h.Node, seconds: float = 30.0) -> None:
    """Waits until replicas have what the primary has now, and say so in their answers."""
    wanted = health(primary).position
    for replica in replicas:
        until(
            lambda replica=replica: health(replica).position == wanted,  # type: ignore[misc]
            seconds,
            f"{replica.folder.name} to be level",
        )
        until(
            lambda replica=replica: not h.by_word(replica, "any").degraded.level,  # type: ignore[misc]
            seconds,
            f"the answers of {replica.folder.name} to be unmarked",
        )


def reason_of(error: grpc.RpcError) -> tuple[grpc.StatusCode, str, dict[str, str]]:
    """Code, reason and metadata of a refused call."""
    assert isinstance(error, grpc.Call)
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            assert isinstance(value, bytes)
            for detail in status_pb2.Status.FromString(value).details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info):
                    return error.code(), info.reason, dict(info.metadata)
    return error.code(), "", {}


def digest(node: h.Node) -> tuple[int, bytes]:
    """Position and running digest of a stopped node's log."""
    store = Store(node.data_dir, readonly=True)
    try:
        with store.read() as snapshot:
            found = feed.standing(snapshot)
            return found.position, found.digest
    finally:
        store.close()


LOCAL = ("partitions", "changes", "manifest", "erasures", "requests", "request_times", "expiry",
         "expired", "replaced", "meta")  # fmt: skip
"""Tables in which nodes may differ: their own files, and what upkeep has dropped."""


def same_records(one: h.Node, other: h.Node) -> None:
    """Fails unless two stopped nodes have the same records, to the byte."""
    tables = [_tables(node.data_dir) for node in (one, other)]
    for name in tables[0]:
        if name not in LOCAL:
            assert tables[0][name] == tables[1][name], f"table {name} differs"


def _tables(data_dir: Path) -> dict[str, dict[bytes, bytes]]:
    store = Store(data_dir, readonly=True)
    try:
        with store.env.lmdb.begin() as txn:
            return {name: dict(txn.cursor(db)) for name, db in store.env.tables.items()}
    finally:
        store.close()


class Proxy:
    """A TCP proxy that can cut the network, or swallow what is sent; a context manager."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._pairs: list[socket.socket] = []
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._open.set()
        self._frozen = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Breaks all connections and takes no new ones."""
        self._open.clear()
        with self._lock:
            for end in self._pairs:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            self._pairs.clear()

    def freeze(self) -> None:
        """Connections stay, and nothing comes through any more."""
        self._frozen.set()

    def heal(self) -> None:
        """Everything works again; what was frozen is broken off."""
        if self._frozen.is_set():
            self.cut()
        self._frozen.clear()
        self._open.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if not self._open.is_set():
                    near.close()
                    continue
                try:
                    far = socket.create_connection(self._target, 5)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                with self._lock:
                    self._pairs += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if not self._frozen.is_set():
                    sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()


def facts(node: h.Node) -> dict[str, Any]:
    """What a query for everything answers, without what differs by time."""
    return {
        key: json.loads(json.dumps([hit.content, hit.version, hit.metadata.ts, hit.session]))
        for key, hit in h.browse(node).items()
    }
