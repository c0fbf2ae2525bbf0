"""Hot and cold tiers in real processes: killed at each step, read by several, and pages that are
let go of."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import memsvc
from memsvc.config import load
from memsvc.embedded import Embedded
from memsvc.service.derived import DAY_MS
from memsvc.service.node import Node as MemoryNode
from memsvc.service.node import system_clock
from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import harness as h
from tests.scenarios import readers as r
from tests.scenarios import tiers_killed
from tests.scenarios.conftest import MakeNode
from tests.scenarios.replication import level, make_primary, make_replica
from tests.waiting import until

AGO = 130 * DAY_MS
OLD, NEW = 40, 10
NS = ("acme", "bot")


def _aged(settings: dict[str, Any], items: list[dict[str, Any]]) -> None:
    """Writes memories of long ago and seals them."""
    node = MemoryNode(load(None, {}, settings).settings, clock=lambda: system_clock() - AGO)
    with Embedded(node) as store:
        store.write(NS, items)
        assert store.admin.maintain(1, False, False, 60)[1]


def _items(numbers: range) -> list[dict[str, Any]]:
    return [{"content": f"n{n}", "vector": [1.0, n, n % 7, 2.0], "ttl_ms": 0} for n in numbers]


def _answers(store: Embedded) -> list[Any]:
    near = store.query(NS, vector=[1.0, 9.0, 2.0, 2.0], top_k=200, min_score=-1)["items"]
    words = store.query(NS, text="n9 n45", top_k=5)["items"]
    browsed = store.query(NS, mode="BROWSE", top_k=200)["items"]
    return [[(i["id"], i["score"]) for i in items] for items in (near, words, browsed)]


def _tiers(store: Embedded) -> dict[str, int]:
    facts: Any = store.admin.inspect(*NS, False, 0, "")["partition"]
    return {s["tier"]: s["count"] for s in facts["segments"]}


@pytest.mark.parametrize("step", tiers_killed.STEPS)
def test_killed_while_memories_move_none_is_lost_or_told_twice(step: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    _aged({"storage.data_dir": str(folder), "index.dimension": 4}, _items(range(OLD)))
    with memsvc.open(folder, dimension=4) as store:
        store.write(NS, _items(range(OLD, OLD + NEW)))
        assert store.admin.maintain(1, False, False, 60)[1]
        before = _answers(store)
        assert [len(items) for items in before] == [50, 5, 50]
    command = [sys.executable, "-m", "tests.scenarios.tiers_killed", str(folder), step]
    ended = subprocess.run(command, cwd=h.REPOSITORY, timeout=90, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    with memsvc.open(folder, dimension=4) as store:
        assert _answers(store) == before
        assert store.admin.maintain(0, True, False, 60)[1]
        assert _tiers(store) == {"cold": OLD, "hot": NEW}
        assert _answers(store) == before
        with store.node.store.read() as snapshot:
            named = sorted(s.name for s in snapshot.all_segments())
        assert sorted(p.name for p in (folder / "segments").glob("*/*")) == named


def _node_tiers(node: h.Node) -> dict[str, int]:
    return {s["tier"]: s["count"] for s in node.inspect(*NS)["partition"]["segments"]}


def _age(node: h.Node) -> None:
    """Gives a node, which is not started, memories of long ago."""
    _aged(
        {"storage.data_dir": str(node.data_dir), "index.dimension": h.DIMENSION},
        [{"content": f"word{n}x", "vector": h.vector(n).tolist(), "ttl_ms": 0} for n in range(OLD)],
    )


def test_a_replica_divides_its_own_files_by_the_recalls_of_the_log(make_node: MakeNode) -> None:
    primary = make_primary(make_node, lifecycle__cold_archive_after_days=0)
    _age(primary)
    primary.start()
    new = h.fill(primary, range(OLD, OLD + NEW))
    replica = make_replica(make_node, primary).start()
    level(primary, replica)

    def found(node: h.Node) -> list[tuple[str, float]]:
        return [(i.id, i.similarity) for i in h.by_vector(node, 3, top_k=50).items]

    before = found(primary)
    assert len(before) == OLD + len(new) and found(replica) == before
    for node in (primary, replica):
        node.maintain(seal_min_rows=1, merge_all=True)
    assert _node_tiers(primary) == {"hot": OLD + NEW}
    assert _node_tiers(replica) == {"cold": OLD, "hot": NEW}
    old = h.by_vector(primary, 3, top_k=1).items[0].id
    h.write(primary, [pb.WriteItem(touch=pb.Touch(id=old, kind=pb.TOUCH_KIND_USED))])
    level(primary, replica)
    replica.maintain(seal_min_rows=1, merge_all=True)
    assert _node_tiers(replica) == {"cold": OLD, "hot": NEW + 1}
    assert found(replica) == found(primary) == before


def test_every_reader_answers_from_both_tiers_while_they_change(make_node: MakeNode) -> None:
    node = make_node(server__readers=2, storage__cold_budget_bytes=0)
    _age(node)
    node.start()
    r.until_readers(node, 2)
    connections = r.to_each_reader(node)
    new = connections[0].write(list(range(OLD, OLD + NEW)))

    def found() -> list[list[tuple[str, float]]]:
        return [
            [(hit.id, hit.similarity) for hit in connection.query(n, top_k=50).items]
            for connection in connections
            for n in (3, 45)
        ]

    before = found()
    assert before[:2] == before[2:] and len(before[0]) == OLD + NEW
    node.maintain(seal_min_rows=1, merge_all=True)
    assert _node_tiers(node) == {"cold": OLD, "hot": NEW}
    for _ in range(3):
        assert found() == before
    assert new[0] in [hit_id for hit_id, _ in before[0]]
    # With no budget at all every page is let go of, and read again.
    until(lambda: node.inspect()["tiers"]["cold"]["resident_bytes"] == 0, what="pages to go")
    assert found() == before
    text = r.metrics(node)
    assert text["memsvc_cold_rows"] == OLD and text["memsvc_cold_segments"] == 1
