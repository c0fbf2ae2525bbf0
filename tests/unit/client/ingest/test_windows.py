"""Windows of turns: every turn in one, the same ones however the turns come."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsvc.client.ingest.chunks import Turn
from memsvc.client.ingest.settings import IngestSettings, Windowing
from memsvc.client.ingest.windows import Windows

SIZES = st.tuples(st.integers(1, 6), st.integers(1, 6)).map(
    lambda pair: Windowing(turns=max(pair), stride=min(pair))
)


def turn(number: int) -> Turn:
    return Turn(f"t{number}")


def numbers(windows: Sequence[Sequence[tuple[int, Turn]]]) -> list[list[int]]:
    return [[seq for seq, _ in window] for window in windows]


def test_windows_of_three_with_a_stride_of_two() -> None:
    windows = Windows(Windowing(turns=3, stride=2))
    given_out = [numbers(windows.add(n, turn(n))) for n in range(6)]
    assert given_out == [[], [], [[0, 1, 2]], [], [[2, 3, 4]], []]
    assert numbers(windows.rest()) == [[4, 5]]
    assert windows.rest() == []
    assert numbers(windows.add(6, turn(6))) == [[4, 5, 6]]


def test_a_last_turn_that_a_window_holds_already_makes_none() -> None:
    windows = Windows(Windowing(turns=3, stride=2))
    for n in range(5):
        windows.add(n, turn(n))
    assert windows.rest() == []


def stored(given_out: list[list[tuple[int, Turn]]]) -> set[tuple[int, ...]]:
    """Of windows that begin alike the longest stays, as in the service."""
    longest: dict[int, tuple[int, ...]] = {}
    for window in numbers(given_out):
        longest[window[0]] = max(longest.get(window[0], ()), tuple(window), key=len)
    return set(longest.values())


def expected(count: int, size: Windowing) -> set[tuple[int, ...]]:
    windows = Windows(size)
    found = [window for n in range(count) for window in windows.add(n, turn(n))]
    return stored(found + windows.rest())


@given(SIZES, st.integers(1, 40))
def test_every_turn_is_in_a_window_and_windows_are_no_longer_than_they_may(
    size: Windowing, count: int
) -> None:
    found = expected(count, size)
    assert {n for window in found for n in window} == set(range(count))
    assert all(len(window) <= size.turns for window in found)
    assert not any(set(a) < set(b) for a in found for b in found)


@given(SIZES, st.integers(1, 30), st.data())
def test_flushed_killed_and_given_again_the_windows_are_the_same(
    size: Windowing, count: int, data: st.DataObject
) -> None:
    given_out = []
    windows = Windows(size)
    number = 0
    while number < count:
        given_out += windows.add(number, turn(number))
        number += 1
        event = data.draw(st.sampled_from(["go on", "flush", "restart", "again", "repeat"]))
        if event == "flush":
            given_out += windows.rest()
        elif event == "restart":
            windows = Windows(size, windows.open)
        elif event == "again":  # from the beginning, as a program does that was killed
            windows = Windows(size, windows.open)
            for before in range(number):
                given_out += windows.add(before, turn(before))
        elif event == "repeat":
            given_out += windows.add(number - 1, turn(number - 1))
    given_out += windows.rest()
    assert stored(given_out) == expected(count, size)


@given(SIZES, st.lists(st.integers(0, 30), min_size=1, max_size=30))
def test_whatever_the_order_no_turn_is_lost(size: Windowing, order: list[int]) -> None:
    windows = Windows(size)
    found = [window for n in order for window in windows.add(n, turn(n))]
    found += windows.rest()
    assert {n for window in numbers(found) for n in window} == set(order)


def test_two_turns_with_one_number_are_both_kept() -> None:
    windows = Windows(Windowing(turns=2, stride=2))
    windows.add(0, Turn("asked"))
    windows.add(0, Turn("answered"))
    first = windows.add(1, Turn("asked again"))
    second = windows.add(1, Turn("answered again"))
    assert [len(window) for window in first + second] == [3, 4]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"turns": 0}, "turns: expected 1 to 20"),
        ({"turns": 21}, "turns: expected 1 to 20"),
        ({"stride": 0}, "stride: expected 1 to turns"),
        ({"stride": 4}, "stride: expected 1 to turns"),
        ({"most": 99}, "most: expected 100 to 8,000"),
    ],
)
def test_windows_that_would_lose_turns_are_refused(wrong: dict[str, int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Windowing(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"write_batch": 65},
        {"write_batch": 0},
        {"max_pending": 0},
        {"retries": 21},
        {"when_full": "explode"},
        {"duplicate_similarity": 0.4},
        {"summary_characters": 39},
    ],
)
def test_settings_out_of_bounds_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: expected"):
        IngestSettings(**wrong)  # type: ignore[arg-type]
