"""Kept answers in processes of their own: no reader may give one that a write has ended."""

from __future__ import annotations

import signal
from collections.abc import Callable

from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import harness as h
from tests.scenarios import readers as r
from tests.waiting import until

MakeNode = Callable[..., h.Node]
ROUNDS = 12


def counted(node: h.Node, result: str) -> float:
    """How many queries of the whole node were answered so."""
    return r.metrics(node).get(f'memsvc_query_cache_total{{result="{result}"}}', 0.0)


def test_a_kept_answer_of_a_reader_ends_with_a_write_over_another(make_node: MakeNode) -> None:
    node = make_node(
        server__readers=2,
        query__cache=True,
        query__cache_ms=600_000,
        # Importance differs from one millisecond to the next, in kept answers too.
        lifecycle__decay_half_life_days=0,
    ).start()
    r.until_readers(node, 2)
    first, second = r.to_each_reader(node)
    first.write(range(1_000, 1_030))
    asked = 0
    for number in range(ROUNDS):
        before = [c.query(number, top_k=3) for c in (first, second) for _ in range(2)]
        assert len({answer.SerializeToString() for answer in before}) == 1
        # Over one, and found by the other, which has just kept its answer.
        (new,) = first.write([number])
        (hit,) = second.query(number).items
        assert hit.id == new
        assert second.query(number, top_k=3).items[0].id == new
        forget = pb.ForgetRequest(namespace=h.namespace(), ids=[new], mode=pb.FORGET_MODE_HARD)
        assert second.stub.Forget(forget, timeout=h.CALL_S).changed == 1
        for connection in (first, second):
            assert new not in [i.id for i in connection.query(number, top_k=3).items]
        asked += 8
    assert counted(node, "hit") + counted(node, "miss") == asked
    assert counted(node, "hit") >= 2 * ROUNDS, "each reader was asked the same twice"


def test_a_reload_turns_the_cache_off_in_every_process(make_node: MakeNode) -> None:
    node = make_node(server__readers=1, query__cache=True, query__cache_ms=600_000).start()
    r.until_readers(node, 1)
    (connection,) = r.to_each_reader(node)
    connection.write([1])
    connection.query(1)
    connection.query(1)
    assert (counted(node, "hit"), counted(node, "miss")) == (1, 1)
    node.configure(query__cache=False)
    node.signal(signal.SIGHUP)

    def off() -> bool:
        before = counted(node, "hit")
        connection.query(1)
        return counted(node, "hit") == before

    until(off, 20, "the reader has the new settings")
    asked = counted(node, "hit") + counted(node, "miss")
    assert connection.query(1).items[0].similarity > 0.999
    assert counted(node, "hit") + counted(node, "miss") == asked
