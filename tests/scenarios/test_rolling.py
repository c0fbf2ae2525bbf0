"""Every node replaced, one after the other, under load and with another graph."""

from __future__ import annotations

import pytest

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.client import NewMemory, RoutedClient, Routing, Timeouts
from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import groups as g
from tests.scenarios import harness as h
from tests.scenarios import replication as r
from tests.scenarios import routing as ro
from tests.scenarios.routing import Callers
from tests.waiting import until

ROWS = 400


def _rebuilt(node: h.Node) -> bool:
    found = node.admin().GetRebuild(admin_pb.GetRebuildRequest(), timeout=10).rebuild
    return found.state == admin_pb.Rebuild.STATE_DONE and not found.failures


def _near(node: h.Node) -> bool:
    """Writes go on, so that it is never level for long."""
    found = r.health(node)
    return found.ready and found.lag_positions < 20


def _replace(node: h.Node) -> None:
    """Stops a node in good order and starts it with another graph, which it builds in the
    shadow while it serves."""
    assert node.stop() == 0
    node.configure(index__m=24)
    node.start()
    node.admin().StartRebuild(admin_pb.StartRebuildRequest(everything=True), timeout=30)
    until(lambda: _rebuilt(node), 120, f"{node.folder.name} to be rebuilt")


@pytest.mark.soak
def test_all_nodes_replaced_with_another_graph_fail_no_call_and_lose_no_write(
    make_node: r.MakeNode,
) -> None:
    nodes = a, b, c = g.make_group(
        make_node, storage__seal_rows=100, replication__min_acks=1, index__build_share=1.0
    )
    g.start(nodes)
    h.fill(a, range(ROWS))
    for node in nodes:
        r.level(a, node)
        node.maintain()
    written: set[str] = set()
    routing = Routing(check_interval=ro.CHECK_S, read_your_writes=True)
    timeouts = Timeouts(read=60, write=60)
    with RoutedClient([ro.address(n) for n in nodes], routing=routing, timeouts=timeouts) as client:

        def write(number: int) -> None:
            memory = NewMemory(f"memory {number}", vector=ro.vector(number), dedup_key=f"d{number}")
            written.add(client.write(ro.NS, [memory]).results[0].id)

        def read(number: int) -> None:
            (hit,) = client.query(ro.NS, vector=ro.vector(number % ROWS), top_k=1).items
            assert f"word{number % ROWS}x" in hit.summary

        with Callers(write) as writers, Callers(read) as readers:
            for node in (c, b):
                _replace(node)
                until(lambda node=node: _near(node), 120, "the replica to catch up")  # type: ignore[misc]
                writers.more()
                readers.more()
            g.promote(b)
            _replace(a)
            writers.more()
            readers.more()
    assert g.role(b) == pb.ROLE_PRIMARY
    r.level(b, a, c)
    for node in nodes:
        found = set(h.browse(node))
        assert written <= found
        assert len(found) == len(written) + ROWS
        assert node.stop() == 0
    assert r.digest(a) == r.digest(b) == r.digest(c)
