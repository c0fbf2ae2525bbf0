"""Damaged files: found before they can crash or mislead, and each fails alone."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memsvc.domain.manifest import FileMeta, SegmentMeta
from memsvc.segments.errors import SegmentDamaged
from memsvc.segments.segment import Segment, set_aside, verify
from tests.unit.segments.helpers import GENERATION, build, units

COUNT, DIMENSION = 700, 48
KINDS = ("graph", "rows", "scan", "postings", "columns")


@pytest.fixture
def meta(tmp_path: Path) -> SegmentMeta:
    return build(tmp_path, list(units(COUNT, DIMENSION)))


def file_of(meta: SegmentMeta, kind: str) -> FileMeta:
    return next(file for file in meta.files if file.kind == kind)


def change(root: Path, meta: SegmentMeta, kind: str, data: bytes | bytearray) -> None:
    path = root / meta.name / file_of(meta, kind).name
    path.unlink()
    path.write_bytes(data)


def content(root: Path, meta: SegmentMeta, kind: str) -> bytearray:
    return bytearray((root / meta.name / file_of(meta, kind).name).read_bytes())


def parts(segment: Segment) -> dict[str, bool]:
    """Which parts are in service."""
    rows = segment.rows(GENERATION)
    return {
        "graph": segment.graph(GENERATION) is not None,
        "rows": rows is not None,
        "scan": rows is not None and rows.quantised,
        "postings": segment.postings is not None,
        "columns": segment.columns is not None,
    }


def test_a_sound_segment_has_every_part_and_no_damage(tmp_path: Path, meta: SegmentMeta) -> None:
    segment = Segment.open(tmp_path, meta)
    assert parts(segment) == dict.fromkeys(KINDS, True)
    assert segment.damaged == ()
    assert verify(tmp_path, meta) == []
    assert meta.count == COUNT


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_anywhere_is_found_by_verify(
    tmp_path: Path, meta: SegmentMeta, kind: str
) -> None:
    data = content(tmp_path, meta, kind)
    for place in np.linspace(0, len(data) - 1, 40).astype(int).tolist():
        data[place] ^= 0x10
        change(tmp_path, meta, kind, data)
        assert [damage.file.kind for damage in verify(tmp_path, meta)] == [kind]
        data[place] ^= 0x10


@pytest.mark.parametrize("kind", ["graph", "postings", "columns"])
def test_a_flipped_bit_keeps_a_file_from_being_opened_and_spares_the_others(
    tmp_path: Path, meta: SegmentMeta, kind: str
) -> None:
    data = content(tmp_path, meta, kind)
    for place in np.linspace(0, len(data) - 1, 40).astype(int).tolist():
        data[place] ^= 1
        change(tmp_path, meta, kind, data)
        segment = Segment.open(tmp_path, meta)
        assert parts(segment) == {name: name != kind for name in KINDS}
        assert [damage.file.kind for damage in segment.damaged] == [kind]
        data[place] ^= 1


@pytest.mark.parametrize("full", [True, False])
def test_a_wrong_row_never_answers_but_takes_the_rows_out_of_service(
    tmp_path: Path, meta: SegmentMeta, full: bool
) -> None:
    data = content(tmp_path, meta, "rows")
    data[64 + 4 * DIMENSION * 650 + 3] ^= 0x40  # a sign or exponent in row 650
    change(tmp_path, meta, "rows", data)
    segment = Segment.open(tmp_path, meta)
    assert segment.damaged == ()
    rows = segment.rows(GENERATION)
    assert rows is not None
    query = units(COUNT, DIMENSION)[650]
    with pytest.raises(SegmentDamaged) as caught:
        rows.scan(query, None, 5, full_precision=full)
    assert caught.value.file.kind == "rows"
    assert segment.rows(GENERATION) is None
    assert [damage.file.kind for damage in segment.damaged] == ["rows"]


def test_sound_blocks_of_a_damaged_rows_file_are_not_misjudged(
    tmp_path: Path, meta: SegmentMeta
) -> None:
    data = content(tmp_path, meta, "rows")
    data[64 + 4 * DIMENSION * 650] ^= 1
    change(tmp_path, meta, "rows", data)
    rows = Segment.open(tmp_path, meta).rows(GENERATION)
    assert rows is not None
    vectors = units(COUNT, DIMENSION)
    assert rows.score(np.arange(5), vectors[0])[0] == pytest.approx(1, abs=1e-6)
    with pytest.raises(SegmentDamaged):
        rows.score(np.array([650]), vectors[0])


def test_a_damaged_scan_copy_falls_back_to_the_rows_within_the_call(
    tmp_path: Path, meta: SegmentMeta
) -> None:
    # All rows are one block of the copy here, so any scan meets it.
    data = content(tmp_path, meta, "scan")
    data[64 + DIMENSION * 600] ^= 0x7F
    change(tmp_path, meta, "scan", data)
    segment = Segment.open(tmp_path, meta)
    rows = segment.rows(GENERATION)
    assert rows is not None and rows.quantised
    vectors = units(COUNT, DIMENSION)
    found, _ = rows.scan(vectors[600], None, 3)
    assert found[0] == 600
    assert [damage.file.kind for damage in segment.damaged] == ["scan"]
    assert not rows.quantised
    assert segment.rows(GENERATION) is rows


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_file_fails_alone(tmp_path: Path, meta: SegmentMeta, kind: str) -> None:
    (tmp_path / meta.name / file_of(meta, kind).name).unlink()
    segment = Segment.open(tmp_path, meta)
    lost = {"rows", "scan"} if kind == "rows" else {kind}
    assert parts(segment) == {name: name not in lost for name in KINDS}
    assert [damage.reason for damage in segment.damaged] == ["missing"]
    assert segment.row_numbers is not None
    assert segment.row_numbers.tolist() == list(range(10, 10 * COUNT + 10, 10))


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_is_never_mapped_into_service(
    tmp_path: Path, meta: SegmentMeta, kind: str
) -> None:
    data = content(tmp_path, meta, kind)
    for length in (0, 1, 100, len(data) // 2, len(data) - 1):
        change(tmp_path, meta, kind, data[:length])
        assert not parts(Segment.open(tmp_path, meta))[kind]


def test_a_graph_of_another_segment_is_refused_although_it_is_sound(
    tmp_path: Path, meta: SegmentMeta
) -> None:
    other = build(tmp_path, list(units(300, DIMENSION)), name="other")
    path, theirs = (tmp_path / m.name / file_of(m, "graph").name for m in (meta, other))
    path.unlink()
    path.write_bytes(theirs.read_bytes())
    # Even with a manifest that expects exactly these bytes.
    swapped = tuple(
        replace(file_of(other, "graph")) if file.kind == "graph" else file for file in meta.files
    )
    segment = Segment.open(tmp_path, replace(meta, files=swapped))
    assert segment.graph(GENERATION) is None
    assert "vectors is 300, expected 700" in segment.damaged[0].reason


def test_rows_of_another_segment_are_refused_although_they_are_sound(
    tmp_path: Path, meta: SegmentMeta
) -> None:
    build(tmp_path, list(units(COUNT, DIMENSION, 5)), name="others")
    path = tmp_path / meta.name / "rows-1.bin"
    path.unlink()
    path.write_bytes((tmp_path / "others" / "rows-1.bin").read_bytes())
    segment = Segment.open(tmp_path, meta)
    assert segment.rows(GENERATION) is None


def test_the_graph_stays_when_the_rows_are_lost(tmp_path: Path, meta: SegmentMeta) -> None:
    (tmp_path / meta.name / "rows-1.bin").unlink()
    graph = Segment.open(tmp_path, meta).graph(GENERATION)
    assert graph is not None
    assert graph.search(units(COUNT, DIMENSION)[3], 1, 64)[0].tolist() == [3]


def test_a_file_set_aside_is_kept_under_another_name(tmp_path: Path, meta: SegmentMeta) -> None:
    file = file_of(meta, "graph")
    aside = set_aside(tmp_path, meta, file)
    assert aside is not None and aside.name == f"{file.name}.damaged" and aside.exists()
    assert not (tmp_path / meta.name / file.name).exists()
    assert set_aside(tmp_path, meta, file) is None


def test_an_open_segment_survives_the_removal_of_its_files(
    tmp_path: Path, meta: SegmentMeta
) -> None:
    segment = Segment.open(tmp_path, meta)
    for path in (tmp_path / meta.name).iterdir():
        path.unlink()
    rows, graph = segment.rows(GENERATION), segment.graph(GENERATION)
    assert rows is not None and graph is not None
    query = units(COUNT, DIMENSION)[9]
    assert rows.scan(query, None, 1)[0].tolist() == [9]
    assert graph.search(query, 1, 64)[0].tolist() == [9]


def test_a_dropped_segment_is_unmapped_at_once_and_not_at_the_next_collection(
    tmp_path: Path, meta: SegmentMeta
) -> None:
    gc.disable()
    try:
        segment = Segment.open(tmp_path, meta)
        rows = segment.rows(GENERATION)
        assert rows is not None
        rows.scan(units(COUNT, DIMENSION)[0], None, 5)
        watched = weakref.ref(segment), weakref.ref(rows)
        del segment, rows
        assert [ref() for ref in watched] == [None, None]
        maps = Path("/proc/self/maps")
        assert not maps.exists() or str(tmp_path) not in maps.read_text()
    finally:
        gc.enable()


def test_damage_is_told_also_when_only_the_rows_are_still_held(
    tmp_path: Path, meta: SegmentMeta
) -> None:
    data = content(tmp_path, meta, "rows")
    data[64 + 4 * DIMENSION * 650] ^= 1
    change(tmp_path, meta, "rows", data)
    rows = Segment.open(tmp_path, meta).rows(GENERATION)
    assert rows is not None
    with pytest.raises(SegmentDamaged):
        rows.score(np.array([650]), units(1, DIMENSION)[0])
