"""What was forgotten, has expired or was erased with its tenant leaves every file.

Searched byte by byte, while the processes run: text in UTF-8, unique tokens, vectors as
float32 (as written and of length one), bf16, f16 and i8.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from memsvc.admin.v1 import admin_service_pb2 as admin_pb
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2 as types
from tests.scenarios import harness as h
from tests.scenarios import patterns
from tests.waiting import until

DIMENSION = 64
GRAPH_ROWS = 10_000
HOUR_S = 3_600
MakeNode = Callable[..., h.Node]


def _item(number: int, **more: Any) -> pb.WriteItem:
    """A memory with tokens of its own in every field that holds text."""
    return pb.WriteItem(
        memory=pb.Memory(
            dedup_key=f"dedupkey-{number}-zz",
            content=f"geheimnis{number}inhalt: Zürich, 東京 {number}。",
            summary=f"kurz{number}fassung of the matter",
            vector=h.wire(h.vector(number, DIMENSION)),
            metadata=types.Metadata(
                topic=f"topic{number}zz",
                source=f"source{number}zz",
                attributes={"city": types.Value(string_value=f"city{number}zz")},
            ),
            **more,
        )
    )


def _patterns(number: int) -> patterns.Patterns:
    return patterns.of_vector(h.vector(number, DIMENSION)) | patterns.of_text(
        f"geheimnis{number}inhalt",
        f"Zürich, 東京 {number}。",
        f"kurz{number}fassung",
        f"dedupkey-{number}-zz",
        f"topic{number}zz",
        f"source{number}zz",
        f"city{number}zz",
    )


def _all_patterns(numbers: list[int]) -> patterns.Patterns:
    return {f"{n}: {name}": data for n in numbers for name, data in _patterns(n).items()}


def _fill(node: h.Node, numbers: range, **more: Any) -> dict[int, str]:
    space = more.pop("namespace", h.namespace(session="sess"))
    ids: dict[int, str] = {}
    for start in range(numbers.start, numbers.stop, 500):
        batch = range(start, min(start + 500, numbers.stop))
        answer = h.write(node, [_item(n, **more) for n in batch], namespace=space)
        ids |= {n: result.id for n, result in zip(batch, answer.results, strict=True)}
    return ids


def _assert_present(node: h.Node, number: int) -> None:
    """A live memory is there, in files and answers."""
    found = patterns.found_in(node.data_dir, _patterns(number))
    for name in ("raw float32", "geheimnis", "kurz"):
        assert any(name in one for one in found), f"{name} of the live {number}: {found}"
    answer = h.by_vector(node, number, dimension=DIMENSION, include=pb.Include(content=True))
    assert f"geheimnis{number}inhalt" in answer.items[0].content
    assert answer.degraded.level == 0


def _assert_gone(node: h.Node, numbers: list[int]) -> None:
    found = patterns.found_in(node.data_dir, _all_patterns(numbers))
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "dtype", ["bf16", *(pytest.param(d, marks=pytest.mark.soak) for d in ("i8", "f16", "f32"))]
)
def test_forgotten_memories_leave_every_kind_of_segment_file(
    make_node: MakeNode, dtype: str
) -> None:
    node = make_node(
        index__dimension=DIMENSION,
        index__dtype=dtype,
        index__attributes=["city"],
        storage__seal_rows=100_000,
    ).start()
    ids = _fill(node, range(GRAPH_ROWS))
    node.maintain(seal_min_rows=1, seconds=300)
    victims, neighbours = [17, 5_000, GRAPH_ROWS - 1], [16, 18, 5_001]
    # The search is able to find them: each kind of file holds something of a victim.
    found = patterns.found_in(node.data_dir, _patterns(17))
    holding = {one.partition(": ")[0] for one in found}
    kinds = {
        "rows-1.bin",
        "scan-1.bin",
        "graph-1.usearch",
        "postings.bin",
        "columns.bin",
        "data.mdb",
    }
    assert {path.rpartition("/")[2] for path in holding} == kinds
    # An old version is erased with the memory.
    new = pb.Update(
        id=ids[17], content="geheimnis17neu", vector=h.wire(h.vector(-17 % 2**32, DIMENSION))
    )
    h.write(node, [pb.WriteItem(update=new)])
    h.forget(node, [ids[n] for n in victims])
    node.maintain(purge=True, seconds=300)
    _assert_gone(node, victims)
    assert not patterns.found_in(node.data_dir, patterns.of_text("geheimnis17neu"))
    for number in neighbours:
        _assert_present(node, number)
    assert len(node.builders()) >= 1, "the search was made while the processes run"
    assert len(h.browse(node)) == GRAPH_ROWS - len(victims)


def test_the_node_erases_on_its_own_schedule(make_node: MakeNode) -> None:
    """Forgotten, expired and erased with a tenant; sealed and in the tail; old versions."""
    node = make_node(
        index__dimension=DIMENSION,
        storage__seal_rows=100_000,
        lifecycle__purge_within_hours=3 / HOUR_S,
    ).start()
    sealed = _fill(node, range(100))
    expiring = _fill(node, range(100, 110), ttl_ms=2_500)
    other = h.namespace("gone-tenant", "bot")
    _fill(node, range(200, 230), namespace=other)
    node.maintain(seal_min_rows=1)
    tail = _fill(node, range(300, 400))
    _fill(node, range(400, 410), ttl_ms=2_500)
    _fill(node, range(500, 530), namespace=other)
    changed = [pb.Update(id=i, content="newer") for i in (sealed[5], tail[305])]
    h.write(node, [pb.WriteItem(update=one) for one in changed])
    h.forget(node, [sealed[n] for n in range(10)] + [tail[n] for n in range(300, 310)])
    node.admin().EraseTenant(
        admin_pb.EraseTenantRequest(tenant="gone-tenant", confirm="gone-tenant"), timeout=60
    )
    victims = [*range(10), *range(100, 110), *range(200, 230), *range(300, 310)]
    victims += [*range(400, 410), *range(500, 530)]
    wanted = _all_patterns(victims)
    until(lambda: not patterns.found_in(node.data_dir, wanted), 90, "the node erases", every=0.5)
    until(lambda: node.inspect()["waiting_for_erasure"] == 0, 30, "all struck off")
    for number in (10, 99, 310, 399):
        _assert_present(node, number)
    assert expiring.keys().isdisjoint({10, 99})
    assert len(h.browse(node)) == 180


def test_an_erasure_compacts_the_database_once(make_node: MakeNode) -> None:
    """The node looks every second whether erased bytes wait; a compaction takes longer."""
    node = make_node(
        index__dimension=DIMENSION,
        storage__seal_rows=100_000,
        lifecycle__purge_within_hours=2 / HOUR_S,
    ).start()
    ids = _fill(node, range(20_000))
    h.forget(node, [ids[7]])
    until(lambda: node.inspect()["dirty_since"] == 0, 90, "the node erases", every=0.2)
    until(lambda: node.inspect()["dirty_since"] == 0 and not _compacting(node), 30, "rest")
    assert node.log_file.read_text().count("database file compacted") == 1


def _compacting(node: h.Node) -> bool:
    answer = node.admin().Maintain(admin_pb.MaintainRequest(wait=True), timeout=20)
    return not answer.idle


def test_what_is_forgotten_while_a_segment_is_built_leaves_that_segment(
    make_node: MakeNode,
) -> None:
    """The builder reads an earlier position, so the memory is in the files it makes."""
    node = make_node(index__dimension=DIMENSION, storage__seal_rows=100_000).start()
    ids = _fill(node, range(3_000))
    node.admin().Maintain(admin_pb.MaintainRequest(seal_min_rows=1), timeout=10)
    until(lambda: bool(list(node.data_dir.rglob("*.tmp"))), what="a build", every=0.002)
    builders = node.builders()
    for builder in builders:
        os.kill(builder.pid, signal.SIGSTOP)
    assert list(node.data_dir.rglob("*.tmp")), "the build was over before it was stopped"
    h.forget(node, [ids[7], ids[2_999]])
    for builder in builders:
        os.kill(builder.pid, signal.SIGCONT)
    node.maintain(seal_min_rows=1)
    assert node.inspect()["segments"] == 1
    node.maintain(purge=True)
    _assert_gone(node, [7, 2_999])
    _assert_present(node, 8)


def test_files_set_aside_as_damaged_are_erased_too(make_node: MakeNode) -> None:
    node = make_node(index__dimension=DIMENSION, storage__seal_rows=100_000).start()
    ids = _fill(node, range(2_000))
    node.maintain(seal_min_rows=1)
    for path in node.segment_files():
        _flip(path)
    facts = node.inspect(verify=True)
    assert facts["damaged_found"] >= 4
    h.forget(node, [ids[7]])
    node.maintain(purge=True)
    _assert_gone(node, [7])
    _assert_present(node, 8)
    assert not [p for p in node.files() if p.suffix == ".damaged"]


def _flip(path: Any) -> None:
    os.chmod(path, 0o600)
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("victim_process", ["builder", "server"])
def test_leftovers_of_killed_builds_are_erased_too(
    make_node: MakeNode, victim_process: str
) -> None:
    node = make_node(index__dimension=DIMENSION, storage__seal_rows=100_000).start()
    ids = _fill(node, range(3_000))
    node.admin().Maintain(admin_pb.MaintainRequest(seal_min_rows=1), timeout=10)
    until(lambda: bool(list(node.data_dir.rglob("*.tmp"))), what="a build", every=0.002)
    if victim_process == "builder":
        for builder in node.builders():
            with contextlib.suppress(Exception):
                builder.kill()
    else:
        node.kill()
        node.start()
    h.forget(node, [ids[7]])
    node.maintain(purge=True)
    _assert_gone(node, [7])
    _assert_present(node, 8)
