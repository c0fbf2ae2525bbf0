"""Building: crash leftovers, cancelling, throttling, and what ends up in the files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from memsvc.domain.filters import Condition, Equals
from memsvc.domain.manifest import segment_from_json
from memsvc.domain.records import RowRecord
from memsvc.segments.build import BuildSpec, build_segment, estimate_bytes
from memsvc.segments.check import graph_recall
from memsvc.segments.columns import Indexed
from memsvc.segments.errors import BuildCancelled
from memsvc.segments.segment import Segment, verify
from memsvc.segments.throttle import Throttle
from memsvc.text.index import invert
from tests.unit.segments.helpers import GENERATION, build, head, records, state, units, words

SPEC = BuildSpec("seg", 7, 10, 1_000_000, 99, ((GENERATION, 32),), graph_min_rows=100)


def test_everything_about_the_rows_comes_back(tmp_path: Path) -> None:
    vectors = [None if i % 5 == 0 else v for i, v in enumerate(units(600, 32))]
    meta = build(tmp_path, vectors)
    assert segment_from_json(meta.to_json()) == meta
    assert (meta.partition, meta.row_lo, meta.row_hi, meta.position) == (7, 10, 6010, 99)
    segment = Segment.open(tmp_path, meta)
    rows, graph, postings = segment.rows(GENERATION), segment.graph(GENERATION), segment.postings
    assert rows is not None and graph is not None and postings is not None
    assert segment.columns is not None
    assert segment.columns.rows.tolist() == list(range(10, 6010, 10))
    # Vectors, words and columns all speak of the same local rows.
    query = vectors[123]
    assert query is not None
    assert rows.scan(query, None, 1)[0].tolist() == [123]
    assert graph.search(query, 1, 64)[0].tolist() == [123]
    assert postings.lookup("number123")[0].tolist() == [123]
    mask = segment.columns.mask(Condition("seq", Equals(123)))
    assert mask is not None and np.flatnonzero(mask).tolist() == [123]
    assert rows.vectors == 480
    assert segment.rows(2) is None and segment.graph(2) is None


def test_stored_vectors_are_unit_whatever_their_length_was(tmp_path: Path) -> None:
    base = units(200, 32)
    scales = np.logspace(-25, 25, 200).astype(np.float32)
    rows = Segment.open(tmp_path, build(tmp_path, list(base * scales[:, None]))).rows(GENERATION)
    assert rows is not None
    for i in (0, 100, 199):
        assert rows.score(np.array([i]), base[i])[0] == pytest.approx(1, abs=1e-6)


def test_a_vector_without_direction_is_left_out_instead_of_spoiling_the_graph(
    tmp_path: Path,
) -> None:
    vectors = list(units(300, 32))
    vectors[3] = np.zeros(32, np.float32)
    vectors[7] = np.full(32, np.nan, np.float32)
    segment = Segment.open(tmp_path, build(tmp_path, vectors))
    rows, graph = segment.rows(GENERATION), segment.graph(GENERATION)
    assert rows is not None and graph is not None
    assert rows.vectors == graph.vectors == 298
    assert rows.present is not None
    assert np.flatnonzero(~rows.present).tolist() == [3, 7]


def test_small_segments_have_neither_graph_nor_copy(tmp_path: Path) -> None:
    meta = build(tmp_path, list(units(99, 32)))
    assert sorted(file.kind for file in meta.files) == ["columns", "postings", "rows"]


def test_rows_without_vectors_make_a_segment_without_rows_file(tmp_path: Path) -> None:
    meta = build(tmp_path, [None, None])
    segment = Segment.open(tmp_path, meta)
    assert sorted(file.kind for file in meta.files) == ["columns", "postings"]
    assert segment.count == 2 and segment.damaged == ()
    assert not list((tmp_path / "seg").glob("*.tmp"))


def test_a_segment_without_rows_can_be_opened(tmp_path: Path) -> None:
    meta = build_segment(SPEC, iter(()), tmp_path, words, invert)
    segment = Segment.open(tmp_path, meta)
    assert meta.count == 0 and segment.damaged == ()
    assert segment.postings is not None and segment.postings.total == 0


def test_two_generations_of_different_dimension_stand_side_by_side(tmp_path: Path) -> None:
    small, large = units(150, 16), units(150, 32)
    spec = BuildSpec("seg", 7, 1, 151, 9, ((1, 16), (2, 32)), graph_min_rows=100)
    given = (
        RowRecord(i + 1, state(i), head(f"w{i}"), "", {1: small[i], 2: large[i]})
        for i in range(150)
    )
    segment = Segment.open(tmp_path, build_segment(spec, given, tmp_path, words, invert))
    for generation, vectors in ((1, small), (2, large)):
        rows, graph = segment.rows(generation), segment.graph(generation)
        assert rows is not None and graph is not None
        assert rows.scan(vectors[70], None, 1)[0].tolist() == [70]
        assert graph.search(vectors[70], 1, 64)[0].tolist() == [70]


def test_leftovers_of_a_crashed_build_do_not_get_into_the_next(tmp_path: Path) -> None:
    left = tmp_path / "seg.tmp"
    left.mkdir()
    (left / "rows-1.bin").write_text("half")
    (left / "other").write_text("x")
    meta = build(tmp_path, list(units(20, 32)))
    assert verify(tmp_path, meta) == []
    assert sorted(path.name for path in (tmp_path / "seg").iterdir()) == sorted(
        file.name for file in meta.files
    )
    assert not left.exists()


def test_a_finished_segment_is_never_overwritten(tmp_path: Path) -> None:
    build(tmp_path, list(units(20, 32)))
    with pytest.raises(FileExistsError):
        build(tmp_path, list(units(30, 32)))


@pytest.mark.parametrize("after", [0, 1, 3, 10])
def test_a_cancelled_build_leaves_no_segment(tmp_path: Path, after: int) -> None:
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > after

    with pytest.raises(BuildCancelled):
        build_segment(
            SPEC, records(list(units(1500, 32))), tmp_path, words, invert, cancelled=cancelled
        )
    assert not (tmp_path / "seg").exists()


def test_progress_rises_to_one(tmp_path: Path) -> None:
    seen: list[float] = []
    build_segment(SPEC, records(list(units(1500, 32))), tmp_path, words, invert, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) > 5


def test_rows_out_of_order_are_refused_because_search_bisects_them(tmp_path: Path) -> None:
    swapped = list(records(list(units(3, 32))))[::-1]
    with pytest.raises(ValueError, match="ascending"):
        build_segment(SPEC, iter(swapped), tmp_path, words, invert)


def test_a_vector_of_another_dimension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected \\(32,\\)"):
        build_segment(SPEC, records(list(units(3, 31))), tmp_path, words, invert)


def test_a_spec_survives_the_command_line() -> None:
    spec = BuildSpec("a", 1, 2, 3, 4, ((1, 8), (2, 16)), "bf16", indexed=Indexed(("x", "y"), 3))
    assert BuildSpec.from_json(spec.to_json()) == spec
    with pytest.raises(ValueError, match="expected one of"):
        BuildSpec("a", 1, 2, 3, 4, dtype="f64")
    with pytest.raises(ValueError, match="throttle"):
        BuildSpec("a", 1, 2, 3, 4, throttle=0)


def test_the_estimate_is_not_below_what_is_written(tmp_path: Path) -> None:
    for number, dtype in enumerate(("f32", "bf16", "f16", "i8")):
        meta = build(tmp_path, list(units(500, 64)), f"seg{number}", dtype=dtype)
        spec = BuildSpec("x", 1, 0, 1, 1, ((1, 64),), dtype)
        words_bytes = next(file.bytes for file in meta.files if file.kind == "postings")
        assert estimate_bytes(spec, 500) >= sum(f.bytes for f in meta.files) - words_bytes


def test_throttling_sleeps_for_the_rest_of_the_time() -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    throttle = Throttle(0.2, clock=lambda: now, sleep=sleep)
    for _ in range(10):
        now += 1.0
        throttle.pause()
    assert now == pytest.approx(50.0)


def test_cancelling_does_not_wait_for_a_long_sleep() -> None:
    now, stopped = 0.0, False

    def sleep(seconds: float) -> None:
        nonlocal now, stopped
        now += seconds
        stopped = True

    throttle = Throttle(0.01, lambda: stopped, lambda: now, sleep)
    now = 10.0
    with pytest.raises(BuildCancelled):
        throttle.pause()
    assert now < 11


def test_the_package_needs_neither_the_store_nor_grpc() -> None:
    code = (
        "import sys, memsvc.segments.build, memsvc.segments.costs\n"
        "bad = {'lmdb', 'grpc', 'memsvc.store', 'memsvc.text'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_graph_is_measured_before_it_serves(tmp_path: Path) -> None:
    vectors = [None if i % 7 == 0 else v for i, v in enumerate(units(800, 32))]
    segment = Segment.open(tmp_path, build(tmp_path, vectors))
    recall = graph_recall(segment, GENERATION)
    assert recall is not None and recall > 0.98
    assert graph_recall(segment, 2) is None


def test_recall_of_equal_vectors_is_one_whichever_are_found(tmp_path: Path) -> None:
    segment = Segment.open(tmp_path, build(tmp_path, [units(1, 16)[0]] * 300))
    assert graph_recall(segment, GENERATION) == 1.0
