"""Positions of which the wrong one would be taken for the later."""

from __future__ import annotations

import pytest

from memsvc.domain.positions import Position, later, pack_position, unpack_position

STORE = b"12345678"


def at(epoch: int, number: int, store: bytes = STORE) -> str:
    return pack_position(Position(store, epoch, number))


@pytest.mark.parametrize(
    ("one", "other"),
    [(at(1, 1), at(1, 2)), (at(1, 255), at(1, 256)), (at(1, 900), at(2, 7))],
    ids=["next", "over a byte", "epoch first"],
)
def test_the_later_of_two_is_found_in_either_order(one: str, other: str) -> None:
    assert later(one, other) == later(other, one) == other
    assert later(one, one) == one


@pytest.mark.parametrize("one", ["", "p1", at(9, 9, b"87654321"), "é", at(9, 9)[:-2]])
def test_what_cannot_be_compared_gives_way_to_the_newer(one: str) -> None:
    assert later(one, at(1, 1)) == at(1, 1)


def test_a_position_comes_back_as_it_was() -> None:
    for position in (Position(STORE, 0, 0), Position(bytes(8), 2**64 - 1, 2**64 - 1)):
        assert unpack_position(pack_position(position)) == position


@pytest.mark.parametrize("text", ["", "p1", "é", at(1, 1)[:-2], at(1, 1) + "AAAA", "a" * 34])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a position"):
        unpack_position(text)
