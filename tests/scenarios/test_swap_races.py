"""Segments that are built side by side, and what happens to the rows meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import memsvc
from memsvc.domain.manifest import SegmentMeta
from memsvc.embedded import Embedded

SPACE = ("acme", "bot")
PARTITION = 1


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Embedded]:
    """A store with six memories in rows 1 to 6 and no segment."""
    with memsvc.open(tmp_path / "data", dimension=4) as opened:
        opened.write(SPACE, [{"content": f"memory {n}"} for n in range(6)])
        yield opened


def _segment(name: str, low: int, high: int, position: int) -> SegmentMeta:
    return SegmentMeta(name, PARTITION, low, high, position, high - low, ())


def _position(store: Embedded) -> int:
    with store.node.store.read() as snapshot:
        return snapshot.position


def _swap(store: Embedded, segment: SegmentMeta, *replaces: str) -> bool:
    return store.node.writer.run(lambda txn: txn.swap_segments(PARTITION, replaces, segment))


def _forget_row(store: Embedded, row: int) -> None:
    with store.node.store.read() as snapshot:
        state = snapshot.state(PARTITION, row)
    assert state is not None
    found = store.query(SPACE, mode="BROWSE")["items"]
    one = next(i["id"] for i in found if i["summary"] == f"memory {row - 1}")
    assert store.forget(SPACE, ids=[one], mode="HARD")["changed"] == 1


def test_a_segment_that_missed_dropped_changes_is_refused(store: Embedded) -> None:
    """Otherwise it answers with states from before those changes for ever."""
    assert _swap(store, _segment("a", 1, 4, _position(store)))
    read_at = _position(store)  # the builder of "b" reads here
    _forget_row(store, 5)
    # Meanwhile "a" is rewritten at a later position, which drops the change of row 5.
    assert _swap(store, _segment("a2", 1, 4, _position(store)), "a")
    assert not _swap(store, _segment("b", 4, 7, read_at))
    assert _swap(store, _segment("b2", 4, 7, _position(store)))


def test_what_is_erased_while_a_segment_is_built_is_noted_for_erasure(store: Embedded) -> None:
    """Otherwise its bytes stay in the segment although nothing remembers them."""
    read_at = _position(store)
    _forget_row(store, 2)
    assert _swap(store, _segment("a", 1, 7, read_at))
    with store.node.store.read() as snapshot:
        assert [row for _, row, _, _ in snapshot.erasures_of(PARTITION)] == [2]
    # A segment that was read later is rid of it.
    assert _swap(store, _segment("b", 1, 7, _position(store)), "a")
    with store.node.store.read() as snapshot:
        assert not list(snapshot.erasures_of(PARTITION))
