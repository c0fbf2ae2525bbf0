"""Calls that fail, are lost or done twice, or hide that they are stale, while nodes come and
go behind a router."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memsvc.client import ForgetMode, NewMemory, RoutedClient, Routing
from tests.scenarios import harness as h
from tests.scenarios import replication as r
from tests.scenarios import routing as ro
from tests.scenarios.routing import Callers, Trio
from tests.waiting import until

MakeNode = Callable[..., h.Node]


def _reads(client: RoutedClient, memories: int) -> Callable[[int], None]:
    def read(number: int) -> None:
        wanted = number % memories
        (hit,) = client.query(ro.NS, vector=ro.vector(wanted), top_k=1).items
        assert f"word{wanted}x" in hit.summary

    return read


def test_a_replica_killed_under_reads_fails_no_call(make_node: MakeNode) -> None:
    trio = Trio(make_node)
    h.fill(trio.primary, range(60))
    r.level(trio.primary, *trio.replicas)
    first, second = trio.replicas
    with trio.client() as client, Callers(_reads(client, 60)) as callers:
        ro.until_read_from(client, first, second)
        callers.more()
        first.kill()
        callers.more(200)
        ro.until_read_from(client, second)
        first.start()
        ro.until_read_from(client, first, second)
        callers.more()


def test_reads_fall_back_marked_while_no_replica_is_there_and_return_when_one_is(
    make_node: MakeNode,
) -> None:
    trio = Trio(make_node)
    h.fill(trio.primary, range(60))
    r.level(trio.primary, *trio.replicas)
    with trio.client() as client:
        ro.until_read_from(client, *trio.replicas)
        whole = client.query(ro.NS, vector=ro.vector(1))
        assert (len(whole.items), whole.degraded.level) == (40, 0)
        for node in trio.replicas:
            node.stop()
        for top_k, items in ((0, 20), (200, 20), (5, 5)):
            less = client.query(ro.NS, vector=ro.vector(1), top_k=top_k)
            assert (less.degraded.level, less.degraded.reason) == (2, "READ_FALLBACK")
            assert [hit.id for hit in less.items] == [hit.id for hit in whole.items][:items]
        back = trio.replicas[0].start()
        ro.until_read_from(client, back)
        again = client.query(ro.NS, vector=ro.vector(1))
        assert (len(again.items), again.degraded.level) == (40, 0)


def test_a_replica_cut_from_its_primary_is_left_and_come_back_to(make_node: MakeNode) -> None:
    primary = r.make_primary(make_node).start()
    h.fill(primary, range(30))
    with r.Proxy(r.feed_address(primary)) as network:
        replica = r.make_replica(make_node, primary, via=network.address).start()
        addresses = [ro.address(primary), ro.address(replica)]
        routing = Routing(check_interval=ro.CHECK_S, max_lag=0.5)
        with RoutedClient(addresses, routing=routing) as client:
            ro.until_read_from(client, replica)
            network.cut()
            client.write(ro.NS, [NewMemory("what the replica cannot know", dedup_key="new")])
            ro.until_read_from(client)
            answer = client.query(ro.NS, text="cannot know")
            assert answer.degraded.reason == "READ_FALLBACK"
            assert len(answer.items) == 1
            primary.kill()
            # A stale answer is better than none, and says what it is.
            until(lambda: not ro.state(client, primary).role, 20, "the primary to be missed")
            answer = client.query(ro.NS, vector=ro.vector(1))
            assert (answer.degraded.level, answer.degraded.reason) == (2, "REPLICA_LAGGING")
            assert len(answer.items) == 30
            primary.start()
            network.heal()
            ro.until_read_from(client, replica)
            answer = client.query(ro.NS, text="cannot know")
            assert (len(answer.items), answer.degraded.level) == (1, 0)


def test_a_client_reads_what_it_wrote_whichever_node_answers(make_node: MakeNode) -> None:
    trio = Trio(make_node)
    with trio.client(read_your_writes=True) as client:
        ro.until_read_from(client, *trio.replicas)

        def write_and_read(number: int) -> None:
            word = f"word{number}x"
            written = client.write(ro.NS, [NewMemory(f"about {word}")]).results[0].id
            assert [hit.id for hit in client.query(ro.NS, text=word).items] == [written]
            client.forget(ro.NS, ids=[written], mode=ForgetMode.HARD)
            assert not client.query(ro.NS, text=word).items

        with Callers(write_and_read, threads=4) as callers:
            callers.more(200)
        served = sum(known.role == "replica" and known.reads for known in client.nodes())
        assert served == 2


def test_a_primary_killed_under_writes_fails_no_call_and_doubles_none(
    make_node: MakeNode,
) -> None:
    trio = Trio(make_node)
    with trio.client() as client:
        written = _Written(client)
        with Callers(written.write, threads=4) as callers:
            for _ in range(2):
                callers.more()
                trio.primary.kill()
                trio.primary.start()
            callers.more()
        written.check(trio)


@pytest.mark.soak
def test_every_node_replaced_in_turn_loses_no_write_and_fails_no_call(
    make_node: MakeNode,
) -> None:
    trio = Trio(make_node)
    h.fill(trio.primary, range(60))
    r.level(trio.primary, *trio.replicas)
    with trio.client() as client:
        written = _Written(client)
        with Callers(written.write) as writers, Callers(_reads(client, 60)) as readers:
            ro.until_read_from(client, *trio.replicas)
            for node in (*trio.replicas, trio.primary):
                assert node.stop() == 0
                node.start()
                ro.until_read_from(client, *trio.replicas)
                writers.more(20)
                readers.more(20)
        written.check(trio, others=60)


class _Written:
    """Writes without dedup_key, so that only the request_id keeps them from being doubled."""

    def __init__(self, client: RoutedClient) -> None:
        self._client = client
        self._ids: set[str] = set()

    def write(self, number: int) -> None:
        answer = self._client.write(ro.NS, [NewMemory(f"memory {number}", vector=ro.vector(7))])
        self._ids.add(answer.results[0].id)

    def check(self, trio: Trio, others: int = 0) -> None:
        """Fails unless every node has each memory once, and nothing else."""
        r.level(trio.primary, *trio.replicas)
        for node in trio.nodes:
            found = h.browse(node)
            assert self._ids <= set(found)
            assert len({hit.content for hit in found.values()}) == len(found)
            assert len(found) == len(self._ids) + others
