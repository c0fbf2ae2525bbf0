"""When to seal and what to merge, over thousands of seals."""

from __future__ import annotations

import math
import random

import pytest

from memsvc.domain import merging
from memsvc.domain.merging import MAX_SEGMENTS, Job, Sealed

SEAL = 5_000


def _apply(segments: list[Sealed], job: Job) -> int:
    """Carries a job out; returns the rows written."""
    replaced = [s for s in segments if s.name in job.replaces]
    at = segments.index(replaced[0])
    count = sum(s.count - s.dead for s in replaced)
    assert replaced == segments[at : at + len(replaced)], "only neighbours are merged"
    assert (job.row_lo, job.row_hi) == (replaced[0].row_lo, replaced[-1].row_hi)
    segments[at : at + len(replaced)] = [
        Sealed(f"{job.row_lo}-{job.row_hi}-{count}-x{len(replaced)}", job.row_lo, job.row_hi, count)
    ]
    return count


def _settle(segments: list[Sealed], seal_rows: int = 0) -> int:
    written = 0
    for _ in range(100):
        job = merging.rewrite(segments) or merging.merge(segments, seal_rows=seal_rows)
        if job is None:
            return written
        written += _apply(segments, job)
    raise AssertionError("merging does not come to an end")


@pytest.mark.parametrize("sizes", ["even", "uneven"])
def test_segments_stay_few_and_a_row_is_rewritten_seldom(sizes: str) -> None:
    draw = random.Random(1)
    segments: list[Sealed] = []
    rows = written = 0
    for _ in range(5_000):
        count = SEAL if sizes == "even" else draw.randint(1, 2 * SEAL)
        segments.append(Sealed(f"s{rows}", rows, rows + count, count))
        rows += count
        written += count + _settle(segments)
        assert len(segments) <= MAX_SEGMENTS
        assert [s.row_lo for s in segments] == sorted(s.row_lo for s in segments)
        assert sum(s.count for s in segments) == rows
    assert written / rows <= math.log2(rows / SEAL)


def test_rows_that_die_make_room_and_merging_still_ends() -> None:
    draw = random.Random(2)
    segments: list[Sealed] = []
    rows = 0
    for _ in range(2_000):
        segments.append(Sealed(f"s{rows}", rows, rows + SEAL, SEAL))
        rows += SEAL
        at = draw.randrange(len(segments))
        s = segments[at]
        segments[at] = Sealed(s.name, s.row_lo, s.row_hi, s.count, draw.randint(0, s.count))
        _settle(segments)
        assert len(segments) <= MAX_SEGMENTS
        assert all(s.dead < merging.DEAD_SHARE * max(s.count, 1) or not s.count for s in segments)


def _of(*counts: int) -> list[Sealed]:
    found, row = [], 0
    for count in counts:
        found.append(Sealed(f"s{row}", row, row + count, count))
        row += count
    return found


@pytest.mark.parametrize(
    ("counts", "merged"),
    [
        ((), None),
        ((5,), None),
        ((5, 5, 5), None),
        ((5, 5, 5, 5), (0, 20)),
        ((1_000, 5, 5, 5), None),
        ((1_000, 5, 5, 5, 5), (1_000, 1_020)),
        ((5, 5, 5, 5, 1_000), (0, 20)),
        ((20, 20, 5, 5, 5, 5), (40, 60)),
        ((0, 0, 0, 0), (0, 0)),
        ((128, 64, 32, 16, 8, 4, 2, 1), None),
        ((512, 256, 128, 64, 32, 16, 8, 4, 2), (0, 1_022)),
        ((900, 300, 100, 30, 10, 5, 3, 1, 1), (1_340, 1_350)),
    ],
    ids=str,
)
def test_neighbours_of_similar_size_are_merged_and_a_large_one_is_left_alone(
    counts: tuple[int, ...], merged: tuple[int, int] | None
) -> None:
    job = merging.merge(_of(*counts))
    assert (None if job is None else (job.row_lo, job.row_hi)) == merged


@pytest.mark.parametrize("sizes", [(5,), (1, 1_000)], ids=["balanced", "not balanced"])
def test_merging_that_fell_behind_takes_no_rest(sizes: tuple[int, ...]) -> None:
    for count, calmly in ((15, True), (16, False), (17, False)):
        job = merging.merge(_of(*(sizes * 17)[:count]))
        assert job is not None and job.calmly is calmly


def test_a_tail_is_sealed_when_it_is_large_enough() -> None:
    assert merging.seal(1, 1, 0, SEAL) is None
    assert merging.seal(1, 5_000, SEAL, SEAL) is None
    assert merging.seal(1, 5_001, SEAL, SEAL) == Job(1, 5_001, (), "seal 5,000 rows")
    assert merging.seal(10, 11, 1, SEAL) is not None


def test_the_last_segment_grows_until_it_is_full() -> None:
    def sealed(last: Sealed, rows: int = SEAL, seal_rows: int = SEAL) -> tuple[int, bool]:
        job = merging.seal(last.row_hi, last.row_hi + rows, rows, seal_rows, last)
        assert job is not None and job.grows is (job.replaces == (last.name,))
        assert job.row_hi == last.row_hi + rows
        return job.row_lo, job.grows

    assert sealed(Sealed("a", 0, 25_000, 25_000)) == (0, True)
    assert sealed(Sealed("a", 0, 25_001, 25_001)) == (25_001, False)
    # Small tails do not make a large segment be written over and over, nor large ones.
    assert sealed(Sealed("a", 0, 500, 500), 100, 100) == (0, True)
    assert sealed(Sealed("a", 0, 501, 501), 100, 100) == (501, False)
    assert sealed(Sealed("a", 0, 16_000, 16_000), 16_000, 16_000) == (0, True)
    assert sealed(Sealed("a", 0, 16_001, 16_001), 16_000, 16_000) == (16_001, False)


@pytest.mark.parametrize(
    "last",
    [
        Sealed("a", 0, 10, 10, dead=1),
        Sealed("a", 0, 10, 10, must=True),
        Sealed("a", 0, 10, 10, fixed=True),
    ],
    ids=["dead", "damaged", "fixed"],
)
def test_a_segment_whose_graph_cannot_be_taken_over_does_not_grow(last: Sealed) -> None:
    assert merging.seal(10, 30, 20, 20, last) == Job(10, 30, (), "seal 20 rows")


def test_merging_leaves_alone_what_still_grows() -> None:
    segments = _of(30_000, 30_000, 30_000, 30_000)
    assert merging.merge(segments, seal_rows=SEAL) is not None  # the last one is full
    segments[-1] = Sealed("last", 90_000, 110_000, 20_000)
    assert merging.merge(segments, seal_rows=SEAL) is None
    segments[-1] = Sealed("last", 90_000, 110_000, 20_000, dead=1)
    job = merging.merge(segments, seal_rows=SEAL)
    assert job is not None and job.row_hi == 110_000


@pytest.mark.parametrize("seal_rows", [100, SEAL, 100_000])
def test_growing_keeps_segments_few_and_reads_a_row_seldom(seal_rows: int) -> None:
    segments: list[Sealed] = []
    rows = written = 0
    for _ in range(3_000):
        last = segments[-1] if segments else None
        job = merging.seal(rows, rows + seal_rows, seal_rows, seal_rows, last)
        assert job is not None
        if job.grows:
            segments.pop()
        rows += seal_rows
        count = rows - job.row_lo
        segments.append(Sealed(f"{job.row_lo}-{rows}", job.row_lo, rows, count))
        written += count + _settle(segments, seal_rows)
        assert len(segments) <= MAX_SEGMENTS
        assert sum(s.count for s in segments) == rows
    assert written / rows <= math.log2(rows / seal_rows)


def test_damage_and_erasure_come_before_anything_else() -> None:
    segments = [Sealed("a", 0, 10, 10), Sealed("b", 10, 20, 10, must=True)]
    assert merging.rewrite(segments) == Job(10, 20, ("b",), "rewrite")
    assert merging.rewrite([Sealed("a", 0, 10, 10, dead=4)]) == Job(0, 10, ("a",), "compact")
    assert merging.rewrite([Sealed("a", 0, 10, 10, dead=3)]) is None
    assert merging.rewrite([Sealed("a", 0, 10, 0)]) is None


def test_everything_becomes_one_and_one_stays() -> None:
    a, b = Sealed("a", 0, 10, 10), Sealed("b", 10, 30, 20)
    assert merging.merge_all([a, b]) == Job(0, 30, ("a", "b"), "merge all")
    assert merging.merge_all([a]) is merging.merge_all([]) is None
    assert merging.merge([]) is None
