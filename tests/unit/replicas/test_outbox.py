"""Recalls that would be counted twice, or lost with a connection."""

from __future__ import annotations

from memsvc.replication.v1 import replication_service_pb2 as pb
from memsvc.service.recalls import Recalls
from replicas.outbox import IDS_MAX, Outbox


def recalls(number: int, count: int = 1) -> Recalls:
    ids = ((number * 1_000_000 + i).to_bytes(16, "big") for i in range(count))
    return Recalls("acme", "bot", dict.fromkeys(ids, 2))


def test_what_was_not_acknowledged_is_sent_again_and_nothing_else() -> None:
    outbox = Outbox(lambda: 1_000)
    outbox.add(recalls(1))
    first: list[pb.RecallBatch] = []
    outbox.opened(first.append)
    outbox.add(recalls(2))
    outbox.add(recalls(3))
    assert [batch.sequence for batch in first] == [1_000, 1_001, 1_002]
    outbox.taken(1_001)
    outbox.closed()
    outbox.add(recalls(4))
    again: list[pb.RecallBatch] = []
    outbox.opened(again.append)
    assert [batch.sequence for batch in again] == [1_002, 1_003]
    assert again[0] == first[2]
    assert (again[0].tenant, list(again[0].counts), len(again[0].ids)) == ("acme", [2], 16)


def test_sequences_rise_when_the_clock_stands_still_or_goes_back() -> None:
    now = [5_000]
    outbox = Outbox(lambda: now[0])
    seen: list[pb.RecallBatch] = []
    outbox.opened(seen.append)
    for clock in (5_000, 5_000, 4_000, 9_000):
        now[0] = clock
        outbox.add(recalls(clock))
    sequences = [batch.sequence for batch in seen]
    assert sequences == sorted(set(sequences)) and sequences[-1] == 9_000


def test_a_primary_that_stays_away_does_not_fill_the_memory() -> None:
    outbox = Outbox(lambda: 1)
    for number in range(IDS_MAX // 10_000 + 5):
        outbox.add(recalls(number, 10_000))
    seen: list[pb.RecallBatch] = []
    outbox.opened(seen.append)
    assert sum(len(batch.counts) for batch in seen) == IDS_MAX
    outbox.taken(seen[-1].sequence)
    outbox.add(recalls(99))
    assert len(seen[-1].counts) == 1


def test_no_empty_batch_is_sent() -> None:
    outbox = Outbox(lambda: 1)
    seen: list[pb.RecallBatch] = []
    outbox.opened(seen.append)
    outbox.add(Recalls("acme", "bot", {}))
    assert not seen
