"""Sizes that would have a machine run out of room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memsvc.domain import sizing
from memsvc.domain.sizing import Load, row, size
from memsvc.segments.build import GRAPH_MIN_ROWS

LOAD = Load(80_000, 1536, 180)


def test_every_memory_that_lives_at_one_time_is_counted() -> None:
    assert LOAD.memories == 80_000 * 181  # a day until the expired are erased
    assert LOAD.hot == 80_000 * 120
    assert replace(LOAD, hot_days=0).hot == 80_000 * 180
    assert replace(LOAD, ttl_days=30).hot == 80_000 * 31


def test_parts_add_up() -> None:
    found = size(LOAD)
    assert found.disk_total == sum(found.disk.values())
    assert found.memory_total == sum(found.memory.values())
    one = row(LOAD)
    assert one.database == one.texts + one.vectors + one.keys + one.log


def test_more_of_anything_never_needs_less() -> None:
    base = size(LOAD)
    for more in (
        {"per_day": 160_000}, {"dimension": 3072}, {"ttl_days": 360}, {"dtype": "f32"},
        {"content": 60_000}, {"summary": 4_000}, {"m": 64}, {"readers": 8},
    ):  # fmt: skip
        other = size(replace(LOAD, **more))
        assert other.disk_total >= base.disk_total, more
        # New words become fewer, so a row of many is a little smaller.
        assert other.memory_total >= 0.999 * base.memory_total, more


def test_agents_of_few_memories_have_no_segments() -> None:
    found = row(replace(LOAD, per_day=100, ttl_days=30, agents=10))
    assert (found.rows, found.graph, found.words, found.columns) == (0, 0, 0, 0)
    # Their rows are searched from memory instead.
    small = size(replace(LOAD, per_day=100, ttl_days=30, agents=10))
    assert small.memory["recent rows (tails)"] > 3_000 * 4 * 1536
    assert sizing.GRAPH_MIN_ROWS == GRAPH_MIN_ROWS


@pytest.mark.parametrize(
    ("entry", "bytes_"),
    [
        (88, 4096 / 40),  # a state
        (1550, 4096),  # two would fit, and the split leaves one
        (2028, 4096),  # the largest that stands in a page with others
        (2030, 4096 + 34),  # a page of its own, and its place
        (4080, 4096 + 34),
        (4081, 8192 + 34),
    ],
)
def test_entries_take_whole_pages_where_they_are_large(entry: int, bytes_: float) -> None:
    assert sizing.stored(entry) == bytes_


@pytest.mark.parametrize(
    "wrong",
    [{"per_day": 0}, {"dimension": 0}, {"dimension": 8193}, {"ttl_days": 0}, {"agents": 0},
     {"m": 1}, {"dtype": "i4"}],
)  # fmt: skip
def test_load_that_cannot_be_is_refused_by_name(wrong: dict[str, object]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        replace(LOAD, **wrong)  # type: ignore[arg-type]
