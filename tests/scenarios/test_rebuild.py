"""Rebuilds in real processes: killed at each step, gone on with, cancelled, told of."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import memsvc
from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.domain.rebuild import RebuildState, StepState
from memsvc.embedded import Embedded
from tests.scenarios import rebuild_killed
from tests.scenarios.conftest import MakeNode
from tests.scenarios.harness import REPOSITORY, Node, browse, by_vector, by_word, fill, forget

SPACES = (("acme", "bot"), ("globex", "bot"))
ROWS = 40
VECTORS = 4_200
"""Enough for a graph."""


def _filled(folder: Path) -> dict[tuple[str, str], list[str]]:
    ids = {}
    with memsvc.open(folder, dimension=4) as store:
        for space in SPACES:
            items = [{"content": f"n{n}", "vector": [1.0, n, n % 7, 2.0]} for n in range(ROWS)]
            ids[space] = [r["id"] for r in store.write(space, items)["results"]]
        assert store.admin.maintain(1, False, False, 60)[1]
        # Not in the segments as they are now.
        store.forget(SPACES[0], ids=ids[SPACES[0]][:3], mode="HARD")
        ids[SPACES[0]] = ids[SPACES[0]][3:]
    return ids


def _wait_ended(store: Embedded) -> None:
    until = time.monotonic() + 30
    while store.node.rebuilds.facts().running:
        assert time.monotonic() < until
        time.sleep(0.02)


def _folders(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "segments").glob("*/*"))


def _retired(store: Embedded) -> list[tuple[bytes, bytes]]:
    with store.node.store.read() as snapshot:
        return list(snapshot.local(b"retired/"))


@pytest.mark.parametrize("step", rebuild_killed.STEPS)
def test_killed_at_any_step_it_is_gone_on_with(step: str, tmp_path: Path) -> None:
    """No row is lost or found twice, every segment is rebuilt, and no file is left over."""
    folder = tmp_path / "data"
    ids = _filled(folder)
    before = set(_folders(folder))
    command = [sys.executable, "-m", "tests.scenarios.rebuild_killed", str(folder), step]
    ended = subprocess.run(command, cwd=REPOSITORY, timeout=90, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    settings = {"storage.reclaim_after_min": 0.001}
    with memsvc.open(folder, dimension=4, settings=settings) as store:
        _wait_ended(store)
        facts = store.node.rebuilds.facts()
        assert facts.plan is not None and facts.plan.state is RebuildState.DONE
        assert (facts.progress.segments, facts.progress.segments_left) == (2, 0)
        states = {s.state for s in store.node.rebuilds._steps.values()}
        assert states == {StepState.DONE}
        for space, kept in ids.items():
            found = store.query(space, mode="BROWSE", top_k=200)["items"]
            assert sorted(item["id"] for item in found) == sorted(kept)
            near = store.query(space, vector=[1.0, 9.0, 2.0, 2.0], top_k=200, min_score=-1)
            assert sorted(item["id"] for item in near["items"]) == sorted(kept)
            words = store.query(space, text="n9", top_k=5)["items"]
            assert [item["summary"] or item["id"] for item in words]
        until = time.monotonic() + 20
        with store.node.store.read() as snapshot:
            named = sorted(s.name for s in snapshot.all_segments())
        assert not set(named) & before
        while _folders(folder) != named or _retired(store):
            assert time.monotonic() < until, (_folders(folder), named)
            time.sleep(0.1)


def _rebuild(node: Node) -> admin_pb.Rebuild:
    return node.admin().GetRebuild(admin_pb.GetRebuildRequest(), timeout=10).rebuild


def _wait_rebuilt(node: Node, seconds: float = 60.0) -> admin_pb.Rebuild:
    until = time.monotonic() + seconds
    while (found := _rebuild(node)).state == admin_pb.Rebuild.STATE_RUNNING:
        assert time.monotonic() < until, node.log_tail()
        time.sleep(0.05)
    return found


def _cli(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "memsvc.cli", *arguments]
    target = ["--address", f"127.0.0.1:{node.port}"]
    return subprocess.run(
        [*command, *target], cwd=REPOSITORY, capture_output=True, text=True, timeout=90, check=False
    )


def _graph(node: Node) -> dict[str, object]:
    (segment,) = node.inspect("acme", "bot")["partition"]["segments"]
    found: dict[str, object] = segment["graph"]
    return found


def _wait_log(node: Node, text: str) -> None:
    until = time.monotonic() + 20
    while text not in node.log_file.read_text():
        assert time.monotonic() < until, node.log_tail()
        time.sleep(0.05)


def test_a_changed_number_format_reaches_old_segments_while_the_node_serves(
    make_node: MakeNode,
) -> None:
    """Told at the reload, cancelled, begun again, killed in the middle, gone on with after the
    start; what changed meanwhile is in force."""
    node = make_node(index__rebuild_share=0.05, storage__seal_rows=100_000).start()
    ids = fill(node, range(VECTORS))
    node.maintain(seal_min_rows=1)
    assert _graph(node) == {"dtype": "i8", "m": 16, "ef_construction": 200}
    node.configure(index__dtype="f16")
    node.signal(signal.SIGHUP)
    _wait_log(node, "memsvc rebuild start builds them anew")
    assert node.inspect()["rebuild"]["graphs_outdated"] == 1

    begun = _cli(node, "rebuild", "start")
    assert begun.returncode == 0 and "running: 0 of 1 segment" in begun.stdout, begun
    again = _cli(node, "rebuild", "start")
    assert again.returncode != 0 and "running" in again.stderr
    cancelled = _cli(node, "rebuild", "cancel")
    assert "cancelled: 0 of 1 segment" in cancelled.stdout, cancelled
    assert _graph(node)["dtype"] == "i8"

    assert _cli(node, "rebuild", "start").returncode == 0
    time.sleep(0.5)
    assert _rebuild(node).state == admin_pb.Rebuild.STATE_RUNNING
    node.kill()
    node.configure(index__rebuild_share=0.3)
    node.start()
    assert _rebuild(node).segments == 1
    forget(node, ids[:50])
    late = fill(node, range(VECTORS, VECTORS + 30))
    assert by_vector(node, 77).items[0].id == ids[77]
    waited = _cli(node, "rebuild", "status", "--wait")
    assert waited.returncode == 0 and "done: 1 of 1 segment" in waited.stdout, waited
    assert _graph(node) == {"dtype": "f16", "m": 16, "ef_construction": 200}
    assert set(browse(node)) == {*ids[50:], *late}
    for number in (60, 2_000, VECTORS - 1, VECTORS + 7):
        wanted = (ids + late)[number]
        assert by_vector(node, number).items[0].id == wanted
        assert by_word(node, f"word{number}x").items[0].id == wanted
    assert not {hit.id for hit in by_vector(node, 7, top_k=20).items} & set(ids[:50])
    assert node.inspect()["rebuild"]["state"] == "DONE"


def test_a_restart_with_other_settings_tells_of_old_graphs(make_node: MakeNode) -> None:
    node = make_node(storage__seal_rows=100_000).start()
    fill(node, range(VECTORS))
    node.maintain(seal_min_rows=1)
    node.stop()
    node.configure(index__m=8)
    node.start()
    _wait_log(node, "1 of 1 graphs were built with other settings")
    told = _cli(node, "rebuild", "start", "--dry-run")
    assert "1 segment to build anew" in told.stdout, told
