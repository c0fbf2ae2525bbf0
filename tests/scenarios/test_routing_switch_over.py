"""Calls that fail, are lost or done twice because the primary changed behind a router."""

from __future__ import annotations

from memsvc.client import NewMemory, RoutedClient, Routing, Timeouts
from tests.scenarios import groups as g
from tests.scenarios import harness as h
from tests.scenarios import replication as r
from tests.scenarios import routing as ro
from tests.scenarios.routing import Callers


def test_a_switch_over_behind_a_router_fails_no_call_and_doubles_no_write(
    make_node: r.MakeNode,
) -> None:
    nodes = a, b, c = g.make_group(make_node)
    g.start(nodes)
    h.fill(a, range(60))
    r.level(*nodes)
    written: set[str] = set()
    routing = Routing(check_interval=ro.CHECK_S, read_your_writes=True)
    timeouts = Timeouts(read=60, write=60)
    with RoutedClient([ro.address(n) for n in nodes], routing=routing, timeouts=timeouts) as client:

        def write(number: int) -> None:
            answer = client.write(ro.NS, [NewMemory(f"memory {number}", vector=ro.vector(7))])
            written.add(answer.results[0].id)
            assert client.query(ro.NS, ids=[answer.results[0].id]).items

        def read(number: int) -> None:
            (hit,) = client.query(ro.NS, vector=ro.vector(number % 60), top_k=1).items
            assert f"word{number % 60}x" in hit.summary or number % 60 == 7

        with Callers(write) as writers, Callers(read) as readers:
            for target in (b, c):
                writers.more()
                g.promote(target)
                writers.more()
                readers.more()
        assert ro.state(client, c).role == "primary"
    r.level(c, a, b)
    for node in nodes:
        found = h.browse(node)
        assert written <= set(found)
        assert len(found) == len(written) + 60
