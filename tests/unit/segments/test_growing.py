"""Growing: a segment made of an earlier one and further rows, whose graph is not built again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from memsvc.domain.manifest import GraphSettings, SegmentMeta
from memsvc.domain.records import RowRecord
from memsvc.segments import build as build_module
from memsvc.segments.build import BuildSpec, build_segment
from memsvc.segments.check import disagreement, graph_recall
from memsvc.segments.graph import GraphBuilder
from memsvc.segments.segment import Segment
from memsvc.text.index import invert
from tests.unit.segments.helpers import GENERATION, build, records, units, words

FIRST, ALL, DIMENSION = 600, 900, 32
VECTORS = units(ALL, DIMENSION)


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Rows that are linked into graphs from now on."""
    found: list[int] = []
    add = GraphBuilder.add

    def counted(self: GraphBuilder, local: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        found.extend(local.tolist())
        add(self, local, rows)

    monkeypatch.setattr(build_module.GraphBuilder, "add", counted)
    yield found


def first(root: Path, vectors: list[NDArray[np.float32] | None] | None = None) -> SegmentMeta:
    return build(root, list(VECTORS[:FIRST]) if vectors is None else vectors, "first")


def grown(
    root: Path, before: SegmentMeta, rows: Iterator[RowRecord] | None = None, dtype: str = "i8"
) -> Segment:
    spec = BuildSpec(
        "grown",
        7,
        10,
        10 * ALL + 10,
        99,
        ((GENERATION, DIMENSION),),
        dtype,
        graph_min_rows=100,
        scan_min_rows=100,
    )
    rows = records(list(VECTORS)) if rows is None else rows
    return Segment.open(root, build_segment(spec, rows, root, words, invert, grown_from=before))


def check(root: Path, segment: Segment) -> None:
    """All rows are in it, are found, and by no less than by a graph built at once."""
    fresh = Segment.open(root, build(root, list(VECTORS), "fresh"))
    assert disagreement(fresh, segment, np.arange(10, 10 * ALL + 10, 10)) == ""
    graph = segment.graph(GENERATION)
    assert graph is not None
    for number in (0, FIRST - 1, FIRST, ALL - 1):
        assert graph.search(VECTORS[number], 1, 64)[0].tolist() == [number]
    recalls = [graph_recall(s, GENERATION, samples=200) for s in (segment, fresh)]
    assert recalls[0] is not None and recalls[1] is not None
    assert recalls[0] >= recalls[1] - 0.005


def test_only_new_rows_are_linked_and_all_are_found(tmp_path: Path, linked: list[int]) -> None:
    before = first(tmp_path)
    linked.clear()
    segment = grown(tmp_path, before)
    assert linked == list(range(FIRST, ALL))
    assert segment.meta.file("graph", GENERATION).graph == GraphSettings("i8", 16, 200)  # type: ignore[union-attr]
    check(tmp_path, segment)


def test_growing_many_times_is_as_good_as_building_once(tmp_path: Path) -> None:
    meta = build(tmp_path, list(VECTORS[:200]), "s200")
    for count in range(300, ALL + 1, 100):
        spec = BuildSpec(
            f"s{count}", 7, 10, 10 * count + 10, 99, ((GENERATION, DIMENSION),), graph_min_rows=100
        )
        rows = records(list(VECTORS[:count]))
        meta = build_segment(spec, rows, tmp_path, words, invert, grown_from=meta)
    check(tmp_path, Segment.open(tmp_path, meta))


def test_a_row_that_died_leaves_the_graph(tmp_path: Path, linked: list[int]) -> None:
    before = first(tmp_path)
    linked.clear()
    alive = (record for record in records(list(VECTORS)) if record.row != 10 * 50 + 10)
    segment = grown(tmp_path, before, alive)
    assert linked == list(range(ALL - 1))
    graph = segment.graph(GENERATION)
    assert graph is not None and graph.vectors == ALL - 1
    assert graph.search(VECTORS[50], 1, 64)[1][0] < 0.99


def test_a_row_that_got_its_vector_later_is_in_the_graph(tmp_path: Path, linked: list[int]) -> None:
    lacking: list[NDArray[np.float32] | None] = list(VECTORS[:FIRST])
    lacking[FIRST - 1] = None
    before = first(tmp_path, lacking)
    linked.clear()
    segment = grown(tmp_path, before)
    assert linked == list(range(ALL))
    check(tmp_path, segment)


def test_rows_without_vectors_keep_their_places(tmp_path: Path, linked: list[int]) -> None:
    some = [None if number % 5 == 0 else vector for number, vector in enumerate(VECTORS)]
    before = first(tmp_path, some[:FIRST])
    linked.clear()
    segment = grown(tmp_path, before, records(some))
    assert linked == [number for number in range(FIRST, ALL) if number % 5]
    graph = segment.graph(GENERATION)
    assert graph is not None
    for number in (1, FIRST - 1, FIRST + 1, ALL - 1):
        assert graph.search(VECTORS[number], 1, 64)[0].tolist() == [number]


@pytest.mark.parametrize("name", ["graph-1.usearch", "rows-1.bin"])
@pytest.mark.parametrize("harm", ["flip", "gone"])
def test_what_is_damaged_is_not_taken_over(
    tmp_path: Path, linked: list[int], name: str, harm: str
) -> None:
    before = first(tmp_path)
    linked.clear()
    path = tmp_path / "first" / name
    data = bytearray(path.read_bytes())
    path.unlink()
    if harm == "flip":
        data[-40 if name.startswith("rows") else len(data) // 2] ^= 1
        path.write_bytes(data)
    segment = grown(tmp_path, before)
    assert linked == list(range(ALL))
    check(tmp_path, segment)


def test_a_graph_of_other_settings_is_not_taken_over(tmp_path: Path, linked: list[int]) -> None:
    before = first(tmp_path)
    linked.clear()
    assert grown(tmp_path, before, dtype="bf16").graph(GENERATION) is not None
    assert linked == list(range(ALL))
    unknown = replace(before, files=tuple(replace(f, graph=None) for f in before.files))
    (tmp_path / "grown").rename(tmp_path / "aside")
    linked.clear()
    grown(tmp_path, unknown)
    assert linked == list(range(ALL))


def test_a_segment_without_a_graph_gets_one(tmp_path: Path, linked: list[int]) -> None:
    before = build(tmp_path, list(VECTORS[:99]), "first")
    segment = grown(tmp_path, before)
    assert linked == list(range(ALL))
    check(tmp_path, segment)
