"""Positions, ids and page tokens as opaque strings."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable

import pytest

from memsvc.domain.errors import InvalidArgument, PositionLost
from memsvc.domain.ids import format_id, new_id, parse_id
from memsvc.service.positions import (
    format_page,
    format_position,
    parse_page,
    parse_position,
)

STORE = "00112233445566778899aabbccddeeff"


@pytest.mark.parametrize("position", [0, 1, 2**40, 2**64 - 1])
@pytest.mark.parametrize("epoch", [1, 7])
def test_a_position_comes_back(position: int, epoch: int) -> None:
    text = format_position(STORE, epoch, position)
    assert text.isascii() and len(text) <= 128
    assert parse_position(text, STORE, epoch) == position
    assert parse_position(text, STORE, epoch + 1) == position


def test_a_position_of_another_store_or_a_later_epoch_is_lost() -> None:
    text = format_position(STORE, 2, 5)
    with pytest.raises(PositionLost):
        parse_position(text, STORE, 1)
    with pytest.raises(PositionLost):
        parse_position(text, "ff" * 16, 2)


@pytest.mark.parametrize("junk", ["", "x", "=", "AAAA", "ä", "a b", "A" * 34, "!" * 34])
def test_junk_is_refused_by_every_parser(junk: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_position(junk, STORE, 1)
    with pytest.raises(InvalidArgument):
        parse_page(junk, b"request")
    assert parse_id(junk) is None


def test_a_format_of_another_version_is_refused() -> None:
    text = format_position(STORE, 1, 5)
    with pytest.raises(InvalidArgument):
        parse_position("Ag" + text[2:], STORE, 1)


def test_an_id_is_a_uuid_of_version_7_with_its_time() -> None:
    made = new_id(1_700_000_000_000, os.urandom(10))
    parsed = uuid.UUID(bytes=made)
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert int.from_bytes(made[:6], "big") == 1_700_000_000_000
    assert format_id(made) == str(parsed)
    assert parse_id(format_id(made)) == made
    assert new_id(1, bytes(10)) < new_id(2, bytes(10))


@pytest.mark.parametrize("change", [str.upper, lambda s: "{" + s[1:], lambda s: s.replace("-", "")])
def test_an_id_has_one_spelling(change: Callable[[str], str]) -> None:
    text = "018bcfe5-6800-7abc-9def-0123456789ab"
    assert parse_id(text) is not None
    assert parse_id(change(text)) is None


@pytest.mark.parametrize("ts", [0, 1_700_000_000_000, 253_402_300_799_999])
def test_a_page_token_comes_back_only_to_its_request(ts: int) -> None:
    token = format_page(b"request", ts, 77)
    assert len(token) <= 512
    assert parse_page(token, b"request") == (ts, 77)
    with pytest.raises(InvalidArgument) as caught:
        parse_page(token, b"another request")
    assert "another request" in caught.value.message
    with pytest.raises(InvalidArgument):
        parse_page(format_position(STORE, 1, 5), b"request")
