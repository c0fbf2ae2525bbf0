"""Ingestion while things fail: nothing missing, nothing doubled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memsvc.client import (
    ClientError,
    ForgetMode,
    MemoryClient,
    Metadata,
    RoutedClient,
    Update,
)
from memsvc.client.ingest import (
    Ingestor,
    IngestSettings,
    Turn,
    Windowing,
)
from memsvc.v1 import memory_service_pb2 as pb
from tests.client.conversations import conversation
from tests.client.ingesting import (
    EMBEDDER,
    MODEL,
    client_of,
    ingested_calmly,
    memories,
    missing,
    settled,
    stored,
)
from tests.client.killing import ingesting, taken_until_killed
from tests.scenarios.conftest import MakeNode
from tests.scenarios.harness import Node
from tests.scenarios.replication import level, make_primary, make_replica
from tests.waiting import until


@pytest.mark.parametrize(("flushes", "kills"), [(False, (3, 41, 88)), (True, (20, 57))])
def test_killed_and_run_again_nothing_is_missing_or_doubled(
    node: Node, space: str, tmp_path: Path, flushes: bool, kills: Sequence[int]
) -> None:
    turns = 90
    expected = ingested_calmly(node, f"{space}-calm", conversation("s1", turns))
    for after in kills:
        taken_until_killed(ingesting(node, space, tmp_path / "spill", turns, flushes), after)
    process = ingesting(node, space, tmp_path / "spill", turns, flushes)
    assert process.communicate()[0].endswith("done\n") and process.returncode == 0
    assert stored(node, space) == expected


def test_killed_and_not_run_again_what_was_taken_is_written_at_the_next_start(
    node: Node, space: str, tmp_path: Path
) -> None:
    spill = tmp_path / "spill"
    taken = taken_until_killed(ingesting(node, space, spill, 150, False), 60)
    with client_of(node) as client, Ingestor(client, space, EMBEDDER, spill=spill) as ingest:
        report = settled(ingest)
    assert not report.pending
    assert not missing(conversation("s1", 150)[:taken], memories(node, space))


def test_while_the_service_is_away_turns_wait_in_the_file(
    make_node: MakeNode, space: str, tmp_path: Path
) -> None:
    node = make_node(**MODEL).start()
    turns = conversation("s1", 60)
    spill = tmp_path / "spill"
    quick = IngestSettings(retries=1, backoff_s=0.01)
    with client_of(node) as client:
        ingest = Ingestor(client, space, EMBEDDER, spill=spill, settings=quick)
        ingest.add(*turns[:20])
        settled(ingest)
        node.kill()
        ingest.add(*turns[20:40])
        report = ingest.close()
        assert report.pending and "no memsvc answers" in report.problem
    with client_of(node) as client:
        ingest = Ingestor(client, space, EMBEDDER, spill=spill, settings=quick)
        assert ingest.report().replayed == report.pending
        ingest.add(*turns[40:])
        node.start()
        settled(ingest)
        ingest.close()
    assert not missing(turns, memories(node, space))
    assert stored(node, space) == ingested_calmly(node, f"{space}-calm", turns)


def test_an_overloaded_service_gets_the_important_ones(make_node: MakeNode, space: str) -> None:
    node = make_node(**MODEL, limits__requests_per_second=20, limits__burst=6).start()
    settings = IngestSettings(
        # Between two attempts there is room for both calls of a batch, or only the first of them
        # would ever be let through.
        windows=Windowing(turns=1, stride=1), write_batch=4, retries=0, pause_s=0.2,
    )  # fmt: skip
    turns = [
        replace(turn, importance=0.9 if number % 5 == 0 else 0.5)
        for number, turn in enumerate(conversation("s1", 80))
    ]
    with client_of(node) as client:
        ingest = Ingestor(client, space, EMBEDDER, spill=None, settings=settings)
        ingest.add(*turns)
        # Not by flush, which does not wait for the pause to end.
        until(lambda: not ingest.report().pending, 120, lambda: str(ingest.report()))
        report = ingest.close()
    assert report.sampled_out and report.sampled_out + report.written + report.existing == 80
    until(
        lambda: not missing([turn for turn in turns if turn.importance == 0.9], found(node, space))
    )


def test_where_one_call_is_let_through_at_a_time_the_search_does_not_take_the_turn_of_the_write(
    make_node: MakeNode, space: str
) -> None:
    node = make_node(**MODEL, limits__requests_per_second=5, limits__burst=1).start()
    turns = conversation("s1", 12)
    settings = IngestSettings(windows=Windowing(turns=1, stride=1), write_batch=6, backoff_s=0.01)
    with client_of(node) as client:
        ingest = Ingestor(client, space, EMBEDDER, spill=None, settings=settings)
        ingest.add(*turns)
        until(lambda: not ingest.report().pending, 120, lambda: str(ingest.report()))
        report = ingest.close()
    assert (report.written, report.sampled_out) == (12, 0)
    until(lambda: not missing(turns, found(node, space)))


def found(node: Node, space: str) -> list[pb.Hit]:
    """As memories; [] while the namespace may make no more calls."""
    try:
        return memories(node, space)
    except ClientError as error:
        assert error.code == "RESOURCE_EXHAUSTED"
        return []


class Meddled(MemoryClient):
    """A client at whose side something else happens, once, just before a write."""

    def __init__(self, node: Node, before: Callable[[MemoryClient, Sequence[pb.WriteItem]], bool]):
        super().__init__(f"{node.host}:{node.port}")
        self.before: Callable[[MemoryClient, Sequence[pb.WriteItem]], bool] | None = before
        """None once it has happened."""

    def write(self, namespace: Any, items: Any, **more: Any) -> pb.WriteResponse:
        items = list(items)
        before, self.before = self.before, None
        if before is not None and not before(self, items):
            self.before = before  # another time
        return super().write(namespace, items, **more)


class Deaf(MemoryClient):
    """Does not hear the answers to some writes."""

    unheard = 0

    def write(self, *given: Any, **more: Any) -> pb.WriteResponse:
        answer = super().write(*given, **more)
        if self.unheard:
            self.unheard -= 1
            raise ClientError("DEADLINE_EXCEEDED", "no answer in time")
        return answer


def test_a_write_whose_answer_is_lost_is_repeated_and_counted_as_what_it_was(
    node: Node, space: str
) -> None:
    turns = conversation("s1", 3)
    quick = IngestSettings(backoff_s=0.0)
    with (
        Deaf(f"{node.host}:{node.port}") as client,
        Ingestor(client, space, EMBEDDER, spill=None, settings=quick) as ingest,
    ):
        for turn in turns:
            client.unheard = 1
            ingest.add(turn)
            report = settled(ingest)
        assert (report.written, report.grown, report.existing) == (1, 2, 0)
    assert not missing(turns, memories(node, space))


def test_what_was_to_be_touched_and_is_forgotten_meanwhile_is_written(
    node: Node, space: str
) -> None:
    said = Turn("The boiler was serviced in May.", session="s1", seq=0)
    alone = IngestSettings(windows=Windowing(turns=1, stride=1))

    def forget(client: MemoryClient, items: Sequence[pb.WriteItem]) -> bool:
        if not items[0].HasField("touch"):
            return False
        client.forget(space, ids=[items[0].touch.id], mode=ForgetMode.HARD)
        return True

    with (
        Meddled(node, forget) as client,
        Ingestor(client, space, EMBEDDER, spill=None, settings=alone) as ingest,
    ):
        ingest.add(said)
        ingest.flush()
        ingest.add(replace(said, session="s2"))
        report = settled(ingest)
    assert client.before is None and (report.written, report.touched, report.pending) == (2, 0, 0)
    assert [hit.session for hit in memories(node, space)] == ["s2"]


def test_a_window_that_somebody_else_changed_meanwhile_is_looked_at_again(
    node: Node, space: str
) -> None:
    turns = conversation("s1", 3)

    def touch(client: MemoryClient, items: Sequence[pb.WriteItem]) -> bool:
        if not items[0].HasField("update"):
            return False
        client.write(space, [Update(items[0].update.id, metadata=Metadata(topic="mine"))])
        return True

    quick = IngestSettings(backoff_s=0.0)
    with (
        Meddled(node, touch) as client,
        Ingestor(client, space, EMBEDDER, spill=None, settings=quick) as ingest,
    ):
        for turn in turns:
            ingest.add(turn)
            report = settled(ingest)
    assert client.before is None and (report.written, report.grown, report.pending) == (1, 2, 0)
    assert not missing(turns, memories(node, space))


def test_with_memory_switched_off_chunks_are_written_unchecked_and_grow_later(
    make_node: MakeNode, space: str
) -> None:
    node = make_node(**MODEL).start()
    turns = conversation("s1", 3)
    quick = IngestSettings(retries=0, pause_s=0.01)
    with (
        client_of(node) as client,
        Ingestor(client, space, EMBEDDER, spill=None, settings=quick) as ingest,
    ):
        client.admin.set_degraded(4, "a drill")
        ingest.add(turns[0])
        report = settled(ingest)
        assert (report.written, report.unchecked) == (1, 1)
        ingest.add(*turns[1:])
        assert ingest.flush().pending == 1
        client.admin.set_degraded(None)
        settled(ingest)
        assert ingest.report().grown == 1
    assert not missing(turns, memories(node, space))


def test_through_a_router_duplicates_are_seen_although_a_replica_lags(
    make_node: MakeNode, space: str
) -> None:
    primary = make_primary(make_node, **MODEL).start()
    replica = make_replica(make_node, primary, **MODEL).start()
    level(primary, replica)
    turns = conversation("s1", 30)
    addresses = [f"{one.host}:{one.port}" for one in (primary, replica)]
    small = IngestSettings(write_batch=4)
    with RoutedClient(addresses) as client:
        until(lambda: any(one.reads for one in client.nodes()))
        with Ingestor(client, space, EMBEDDER, spill=None, settings=small) as ingest:
            ingest.add(*turns)
            ingest.add(*(replace(turn, session="s2") for turn in turns))
            report = settled(ingest)
    assert not report.pending and not report.unchecked
    assert report.written == len(memories(primary, space)) == 15
    assert report.touched == 15
