"""Requests within every documented bound that still could take a node's memory, its threads
or its time."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memsvc.domain import filters as f
from memsvc.domain.errors import Cancelled, DeadlineExceeded, InvalidArgument, PositionLost
from memsvc.domain.types import (
    ForgetRequest,
    Include,
    Metadata,
    Mode,
    Namespace,
    NewMemory,
    QueryRequest,
    WriteRequest,
)
from memsvc.service.api import Control
from tests.semantics.harness import DIMENSION, REVIEWER, World

SPACE = Namespace("acme", "bot")
LARGE = 65_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World(tmp_path / "data", server__max_message_bytes=1 << 20)
    yield opened
    opened.close()


def fill(world: World, count: int, content: str = "x") -> list[str]:
    items = tuple(
        NewMemory(content, metadata=Metadata(attributes={"colour": f"c{n}"})) for n in range(count)
    )
    answer = world.node.memory.write(REVIEWER, WriteRequest(SPACE, items), Control())
    return [result.id for result in answer.results]


def ask(world: World, control: Control | None = None, **changes: Any) -> int:
    request = QueryRequest(SPACE, **changes)
    answer = world.node.memory.query(REVIEWER, request, control or Control())
    return sum(len(hits) for hits in answer.lists)


# -- answers without bound -----------------------------------------------------------------


def test_answer_larger_than_a_message_is_refused_before_it_is_made(world: World) -> None:
    ids = tuple(fill(world, 40, "x" * LARGE))
    with pytest.raises(InvalidArgument) as caught:
        ask(world, ids=ids, include=Include(content=True))
    assert caught.value.reason == "ANSWER_TOO_LARGE"
    assert ask(world, ids=ids) == 40
    assert ask(world, ids=ids[:10], include=Include(content=True)) == 10


def test_answer_for_many_vectors_is_counted_as_one(world: World) -> None:
    fill(world, 10, "x" * LARGE)
    content = Include(content=True)
    assert ask(world, text="x" * 64, mode=Mode.KEYWORD, include=content) == 10

    vectors = tuple(np.ones(DIMENSION, np.float32) for _ in range(3))
    with pytest.raises(InvalidArgument) as caught:
        ask(world, vectors=vectors, many=True, text="x" * 64, include=content)
    assert caught.value.reason == "ANSWER_TOO_LARGE"


# -- filters as time bombs -----------------------------------------------------------------

VALUES = st.one_of(
    st.sampled_from(["a", "b", ""]),
    st.sampled_from([0, 1, 2, True, False, 0.0, 1.0, 0.5]),
    st.lists(st.sampled_from(["a", "b"]), max_size=2).map(tuple),
)


@settings(deadline=None)
@given(st.lists(VALUES, max_size=5), VALUES)
def test_lookup_of_values_finds_what_comparing_one_by_one_finds(
    wanted: list[f.FilterValue], value: f.FilterValue
) -> None:
    one_by_one = any(f.test_value(f.Equals(each), value) for each in wanted)
    assert f.test_value(f.In(tuple(wanted)), value) is one_by_one


def test_lookup_of_values_does_not_compare_with_each() -> None:
    class Counting(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Counting.compared += 1
            return super().__eq__(other)

    test = f.In(tuple(f"value {n}" for n in range(1_000)))
    assert not f.test_value(test, Counting("another"))
    assert Counting.compared < 10


def gone_after(looks: int) -> Control:
    left = [looks]

    def cancelled() -> bool:
        left[0] -= 1
        return left[0] < 0

    return Control(cancelled=cancelled)


MISSING = f.Condition("attributes.colour", f.In(tuple(f"z{n}" for n in range(1_000))))


def test_search_that_judges_record_by_record_stops_when_its_caller_is_gone(world: World) -> None:
    fill(world, 1_000)
    # A look at every 64 records: the twelfth is in the midst of them.
    with pytest.raises(Cancelled):
        ask(world, gone_after(12), filters=MISSING)


def test_forget_that_judges_record_by_record_stops_when_its_caller_is_gone(world: World) -> None:
    fill(world, 1_000)
    request = ForgetRequest(SPACE, filters=f.Or((MISSING,) * 64))
    with pytest.raises(Cancelled):
        world.node.memory.forget(REVIEWER, request, gone_after(8))


# -- positions that never come -------------------------------------------------------------


def later(position: str) -> str:
    data = bytearray(base64.urlsafe_b64decode(position + "=" * (-len(position) % 4)))
    data[-8:] = b"\x7f" + b"\xff" * 7
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def test_made_up_position_holds_no_thread_until_the_deadline(world: World) -> None:
    answer = world.node.memory.write(REVIEWER, WriteRequest(SPACE, (NewMemory("x"),)), Control())
    for_ever = Control()
    with pytest.raises(PositionLost):
        ask(world, for_ever, mode=Mode.BROWSE, min_position=later(answer.position))
    assert ask(world, for_ever, mode=Mode.BROWSE, min_position=answer.position) == 1


def test_follower_waits_for_a_position_as_long_as_it_may(world: World) -> None:
    answer = world.node.memory.write(REVIEWER, WriteRequest(SPACE, (NewMemory("x"),)), Control())
    world.node.memory._own_log_wait_s = lambda: None
    with pytest.raises(DeadlineExceeded) as caught:
        ask(
            world,
            Control(time.monotonic() + 0.2),
            mode=Mode.BROWSE,
            min_position=later(answer.position),
        )
    assert caught.value.reason == "POSITION_NOT_REACHED"
