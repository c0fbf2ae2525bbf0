"""A flipped bit, a truncated or a deleted segment file under a running server."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from memsvc.v1 import memory_service_pb2 as pb
from tests.scenarios import harness as h
from tests.waiting import until

MakeNode = Callable[..., h.Node]
ROWS = 10_500  # enough for a graph
KINDS = ["rows-1.bin", "scan-1.bin", "graph-1.usearch", "postings.bin", "columns.bin"]
SLOW = {"rows-1.bin", "scan-1.bin", "columns.bin"}  # of the short form graph and postings
LONG = partial(pytest.param, marks=pytest.mark.soak)
SAMPLE = range(0, ROWS, 700)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with one sealed segment that has every kind of file; copied for each test."""
    node = h.Node(tmp_path_factory.mktemp("made"), storage__seal_rows=100_000)
    try:
        node.start()
        h.fill(node, range(ROWS), batch=500)
        node.maintain(seal_min_rows=1, seconds=300)
        assert {p.name for p in node.segment_files()} == set(KINDS)
        assert node.stop() == 0
    finally:
        node.close()
    return node.data_dir


@pytest.fixture
def node(made: Path, make_node: MakeNode) -> h.Node:
    """A running node on a copy of the store, warmed by queries."""
    node = make_node(storage__seal_rows=100_000)
    shutil.copytree(made, node.data_dir)
    node.start()
    _assert_answers(node, may_be_degraded=False)
    return node


def _assert_answers(node: h.Node, *, may_be_degraded: bool) -> set[str]:
    """Every search is right, or marked; returns the reasons of marked answers. Vectors are
    always found (from other files or the records); words only where postings are sound."""
    reasons = set()
    for number in SAMPLE:
        found = h.by_vector(node, number, include=pb.Include(content=True))
        words = h.by_word(node, f"word{number}x", include=pb.Include(content=True))
        reasons |= {a.degraded.reason for a in (found, words) if a.degraded.level}
        assert f"word{number}x" in found.items[0].content, (number, found)
        assert found.items[0].similarity > 0.999
        if not words.degraded.level:
            assert f"word{number}x" in words.items[0].content, (number, words)
    assert may_be_degraded or not reasons, reasons
    assert reasons <= {"SEGMENT_DAMAGED"}, reasons
    return reasons


def _file(node: h.Node, kind: str) -> Path:
    (path,) = [p for p in node.segment_files() if p.name == kind]
    os.chmod(path, 0o600)
    return path


def _break(path: Path, how: str) -> None:
    size = path.stat().st_size
    if how == "deleted":
        path.unlink()
    elif how == "truncated":
        os.truncate(path, size // 2)
    else:
        with path.open("r+b") as file:
            for at in range(size // 7, size, size // 7):
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 0x10]))


def _wait_whole(node: h.Node) -> None:
    def whole() -> bool:
        health = node.stub().Health(pb.HealthRequest(), timeout=10)
        return health.store.damaged_files == 0 and health.degraded.level == 0

    until(whole, 120, "files are rebuilt and the mark vanishes", every=0.2)


@pytest.mark.parametrize("kind", [LONG(k) if k in SLOW else k for k in KINDS])
def test_damage_found_while_serving_is_repaired(node: h.Node, kind: str) -> None:
    """A flipped bit under an open map: the check finds it, the files are made anew."""
    pid = node.pid
    _break(_file(node, kind), "flipped")
    _assert_answers(node, may_be_degraded=True)
    assert node.inspect(verify=True)["damaged_found"] <= 1
    _assert_answers(node, may_be_degraded=True)
    _wait_whole(node)
    _assert_answers(node, may_be_degraded=False)
    assert node.pid == pid and node.process is not None and node.process.poll() is None
    assert node.inspect(verify=True)["damaged_found"] == 0
    assert not [p for p in node.files() if p.suffix == ".damaged"]


@pytest.mark.parametrize("how", [LONG("flipped"), "truncated", LONG("deleted")])
def test_every_file_damaged_at_once_is_repaired(node: h.Node, how: str) -> None:
    """Found at the next start. The records answer meanwhile."""
    node.kill()
    for kind in KINDS:
        _break(_file(node, kind), how)
    node.start()
    assert _assert_answers(node, may_be_degraded=True) == {"SEGMENT_DAMAGED"}
    _wait_whole(node)
    _assert_answers(node, may_be_degraded=False)
    assert len(h.browse(node)) == ROWS


@pytest.mark.soak
@pytest.mark.parametrize("how", ["truncated", "deleted"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_file_gone_under_a_running_server_is_repaired(
    node: h.Node, kind: str, how: str
) -> None:
    """Truncation under a live map may end the process (SIGBUS); a restart must then do."""
    _break(_file(node, kind), how)
    try:
        _assert_answers(node, may_be_degraded=True)
        node.inspect(verify=True)
    except Exception:
        assert node.process is not None and node.process.wait(10) < 0
        assert how == "truncated", node.log_tail()
        node.start()
    _assert_answers(node, may_be_degraded=True)
    _wait_whole(node)
    _assert_answers(node, may_be_degraded=False)
    assert node.inspect(verify=True)["damaged_found"] == 0
