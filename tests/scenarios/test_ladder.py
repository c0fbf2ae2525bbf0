"""Each level of degradation is reached by breaking the real thing, and left again."""

from __future__ import annotations

import os
import shutil
import signal
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import harness as h
from tests.scenarios import replication as r
from tests.waiting import until

MakeNode = Callable[..., h.Node]
CHECK_MS = 50
ROWS = 300
SEGMENTS = 3
SAMPLE = range(0, ROWS * SEGMENTS, 53)
WORDS = pb.Include(content=True)


def _level(node: h.Node) -> tuple[int, str]:
    degraded = node.stub().Health(pb.HealthRequest(), timeout=5).degraded
    return degraded.level, degraded.reason


def _reaches(node: h.Node, level: int, reason: str = "") -> None:
    until(lambda: _level(node) == (level, reason), what=lambda: f"{level}, {_level(node)} is")


def _force(node: h.Node, level: int | None, reason: str = "") -> None:
    node.admin().SetDegraded(admin_pb.SetDegradedRequest(level=level, reason=reason), timeout=10)


# -- level 3 -------------------------------------------------------------------------------


@pytest.fixture
def sealed(make_node: MakeNode) -> h.Node:
    """A running node with several segments, all of them open."""
    node = make_node(node__check_interval_ms=CHECK_MS)
    _seal(node)
    _assert_right(node)
    return node


def _seal(node: h.Node, dimension: int = h.DIMENSION) -> None:
    node.start()
    for number in range(SEGMENTS):
        h.fill(node, range(ROWS * number, ROWS * (number + 1)), dimension=dimension)
        gone = h.fill(node, [ROWS * SEGMENTS + number], dimension=dimension)
        node.maintain(seal_min_rows=1)
        h.forget(node, gone)  # a segment with a dead row does not grow
    assert len({file.parent for file in node.segment_files()}) == SEGMENTS


def _assert_right(node: h.Node, *, marked: bool = False) -> None:
    """Vectors find everything, from the records if need be; words all that is not marked."""
    for number in SAMPLE:
        found = h.by_vector(node, number, include=WORDS)
        assert f"word{number}x" in found.items[0].content
        assert found.items[0].similarity > 0.999
        words = h.by_word(node, f"word{number}x", include=WORDS)
        assert [f"word{number}x" in hit.content for hit in words.items] == [True] or (
            words.degraded.level == 3
        )
        for answer in (found, words):
            assert marked or not answer.degraded.level, answer.degraded
            assert answer.degraded.reason in ("", "SEGMENT_DAMAGED")


def _break(path: Path, how: str) -> None:
    os.chmod(path, 0o600)
    size = path.stat().st_size
    if how == "deleted":
        path.unlink()
    elif how == "truncated":
        os.truncate(path, size // 2)
    else:
        with path.open("r+b") as file:
            file.seek(size // 2)
            byte = file.read(1)[0]
            file.seek(size // 2)
            file.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize("which", ["one", "all"])
@pytest.mark.parametrize("how", ["deleted", "truncated", "flipped"])
def test_segments_whose_every_file_is_broken_are_noticed_and_built_anew(
    sealed: h.Node, how: str, which: str
) -> None:
    """While they are in use. What is missing, or short, is noticed without being asked for."""
    files = sealed.segment_files()
    if which == "one":
        files = [file for file in files if file.parent == files[0].parent]
    for file in files:
        _break(file, how)
    if how == "flipped":
        assert sealed.inspect(verify=True)["damaged_found"] == len(files)
    # Not asked before it is noticed: to read a map behind the end of its file ends the process.
    _reaches(sealed, 3, "SEGMENT_DAMAGED")
    _assert_right(sealed, marked=True)
    _reaches(sealed, 0)
    _assert_right(sealed)
    health = sealed.stub().Health(pb.HealthRequest(), timeout=5)
    assert (health.store.damaged_files, health.store.segments) == (0, SEGMENTS)
    assert sealed.inspect(verify=True)["damaged_found"] == 0
    log = sealed.log_file.read_text()
    assert "degradation 0 () -> 3 (SEGMENT_DAMAGED)" in log
    assert log.count("-> 0 ()") == 1, "it went up and down"


def test_an_index_of_another_dimension_is_not_searched(sealed: h.Node, make_node: MakeNode) -> None:
    """Whole files, but of another store, as a wrong restore leaves them."""
    other = make_node("other", index__dimension=24)
    _seal(other, dimension=24)
    assert sealed.stop() == 0
    for mine, foreign in zip(
        sorted({f.parent for f in sealed.segment_files()}),
        sorted({f.parent for f in other.segment_files()}),
        strict=True,
    ):
        for file in foreign.iterdir():
            shutil.copyfile(file, _writable(mine / file.name))
    sealed.start()
    _assert_right(sealed, marked=True)
    _reaches(sealed, 3, "SEGMENT_DAMAGED")
    _reaches(sealed, 0)
    _assert_right(sealed)


def _writable(path: Path) -> Path:
    if path.exists():
        os.chmod(path, 0o600)
    return path


# -- level 2 -------------------------------------------------------------------------------


def test_a_replica_without_word_of_its_primary_says_so_in_every_answer(
    make_node: MakeNode,
) -> None:
    primary = r.make_primary(make_node).start()
    replica = r.make_replica(
        make_node, primary, node__check_interval_ms=CHECK_MS, replication__max_lag_ms=500
    ).start()
    h.fill(primary, range(50))
    r.level(primary, replica)
    _reaches(replica, 0)
    assert not h.by_vector(replica, 3).degraded.level
    primary.signal(signal.SIGSTOP)
    try:
        _reaches(replica, 2, "REPLICA_LAGGING")
        for answer in (h.by_vector(replica, 3, top_k=40), h.by_word(replica, "memory")):
            assert (answer.degraded.level, answer.degraded.reason) == (2, "REPLICA_LAGGING")
            assert len(answer.items) == 40
    finally:
        primary.signal(signal.SIGCONT)
    _reaches(replica, 0)
    assert not h.by_vector(replica, 3).degraded.level


# -- level 1 -------------------------------------------------------------------------------


def test_a_query_past_its_time_costs_no_more_than_its_time(make_node: MakeNode) -> None:
    """The answer is empty and marked, and the work for it is broken off."""
    node = make_node().start()
    h.fill(node, range(4_000), batch=500)
    request = pb.QueryRequest(
        namespace=h.namespace(),
        vectors=[h.wire(h.vector(n)) for n in range(64)],
        text="memory about its neighbours",
        top_k=200,
        include=WORDS,
    )

    def cpu_of(count: int) -> tuple[float, set[tuple[int, str, int]]]:
        process, marks = psutil.Process(node.pid), set()
        before = sum(process.cpu_times()[:2])
        for _ in range(count):
            answer = node.stub().Query(request, timeout=h.CALL_S)
            found = sum(len(one.items) for one in answer.results)
            marks.add((answer.degraded.level, answer.degraded.reason, found))
        return sum(process.cpu_times()[:2]) - before, marks

    cpu_of(1)
    whole, marks = cpu_of(4)
    assert marks == {(0, "", 64 * 200)}
    node.configure(query__timeout_ms=1)
    node.signal(signal.SIGHUP)
    until(lambda: cpu_of(1)[1] == {(1, "TIMEOUT", 0)}, what="the new time limit is in force")
    broken_off, marks = cpu_of(4)
    assert marks == {(1, "TIMEOUT", 0)}
    assert broken_off < whole / 2


# -- level 4 -------------------------------------------------------------------------------


@pytest.mark.parametrize("readers", [0, 1])
def test_a_database_that_cannot_be_read_empties_answers_and_breaks_none(
    make_node: MakeNode, readers: int
) -> None:
    node = make_node(node__check_interval_ms=CHECK_MS, server__readers=readers).start()
    ids = h.fill(node, range(200))
    assert h.by_vector(node, 3).items[0].id == ids[3]
    _reaches(node, 0)  # facts of the store, as of the last time it could be read
    data = node.data_dir / "store" / "data.mdb"
    whole = data.read_bytes()
    head = 2 * os.sysconf("SC_PAGE_SIZE")  # which say where the tables begin
    with data.open("r+b") as file:
        file.seek(head)
        file.write(bytes(len(whole) - head))
    for answer in (h.by_vector(node, 3), h.by_word(node, "word3x")):
        assert (answer.degraded.level, answer.degraded.reason) == (4, "STORE_UNREADABLE")
        assert not answer.items
    _reaches(node, 4, "STORE_UNREADABLE")
    health = node.stub().Health(pb.HealthRequest(), timeout=5)
    assert health.store.memories == 200 and any("cannot be read" in r for r in health.reasons)
    with data.open("r+b") as file:
        file.seek(head)
        file.write(whole[head:])
    _reaches(node, 0)
    assert h.by_vector(node, 3).items[0].id == ids[3]
    assert h.fill(node, [1_000]) and len(h.browse(node)) == 201


# -- by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize("readers", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_level_by_hand_holds_through_good_checks_and_restarts_until_it_is_given_back(
    make_node: MakeNode, readers: int
) -> None:
    node = make_node(node__check_interval_ms=10, server__readers=readers).start()
    h.fill(node, range(60))
    ends = {1: node.kill, 4: node.stop}
    found = {0: 40, 1: 0, 2: 20, 3: 0, 4: 0}  # by a vector alone

    def assert_level(level: int, reason: str) -> None:
        assert _level(node) == (level, reason)
        answer = h.by_vector(node, 3, top_k=40)
        marked = "NO_QUERY_TEXT" if level == 3 else reason
        assert (answer.degraded.level, answer.degraded.reason) == (level, marked)
        assert len(answer.items) == found[level]

    for level, reason in ((1, "DRILL"), (2, "DRILL"), (3, "DRILL"), (4, "DRILL"), (0, "")):
        _force(node, level, "DRILL")
        assert_level(level, reason)
        if level in ends:
            ends[level]()
            node.start()
            assert_level(level, reason)
    assert node.inspect()["degraded"]["forced"]
    _force(node, None)
    node.kill()
    node.start()
    assert not node.inspect()["degraded"]["forced"]
    assert_level(0, "")


def test_each_change_of_level_is_counted(make_node: MakeNode) -> None:
    node = make_node().start()
    _force(node, 3, "DRILL")
    _force(node, None)
    metrics = _metrics(node)
    assert metrics['memsvc_degraded_moves_total{level="3",reason="DRILL"}'] == 1.0
    assert metrics['memsvc_degraded_moves_total{level="0",reason=""}'] == 1.0
    assert (metrics["memsvc_degraded_forced"], metrics["memsvc_degraded_level"]) == (0.0, 0.0)


def _metrics(node: h.Node) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/metrics", timeout=5) as page:
        lines = page.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}
