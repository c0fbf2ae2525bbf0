"""The standard health service follows the node."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from memsvc.rpc.server import RpcServer
from tests.edges.harness import make_edge, rpc_server


def test_readiness_is_followed_on_after_the_node_could_not_tell_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    edge = make_edge()
    told: list[bool] = []
    refused, back = threading.Event(), threading.Event()
    tell = RpcServer.tell

    def listen(self: RpcServer, serving: Mapping[str, bool]) -> None:
        ready = serving[""]
        told.append(ready)
        tell(self, serving)
        if not ready:
            refused.set()
        elif refused.is_set():
            back.set()

    with rpc_server(edge) as server:
        health = edge.gate.health
        monkeypatch.setattr(RpcServer, "tell", listen)

        def fail() -> None:
            if threading.current_thread() is not threading.main_thread():
                raise OSError("the store is in a bad way")
            return health()

        monkeypatch.setattr(edge.gate, "health", fail)
        server.follow_health(0.01)
        assert refused.wait(60)
        monkeypatch.setattr(edge.gate, "health", health)
        assert back.wait(60)
        assert told[0] is True
