"""Addresses of object stores: what they say, and that no secret can stand in one."""

from __future__ import annotations

import pytest

from memsvc.config.object_url import ObjectUrl, parse_object_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://b", ObjectUrl("b", "")),
        ("s3://b/", ObjectUrl("b", "")),
        ("s3://b/one//two/", ObjectUrl("b", "one/two")),
        (
            "s3://b/p?endpoint=http://127.0.0.1:8333&region=eu-1",
            ObjectUrl("b", "p", "http://127.0.0.1:8333", "eu-1"),
        ),
    ],
)
def test_an_address_is_read_and_told_again(text: str, expected: ObjectUrl) -> None:
    assert parse_object_url(text) == expected
    assert parse_object_url(str(expected)) == expected


def test_a_folder_below_keeps_endpoint_and_region() -> None:
    url = parse_object_url("s3://b?endpoint=https://e&region=r")
    assert str(url.below("x").below("y")) == "s3://b/x/y?endpoint=https://e&region=r"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3://key:secret@b/p", "credentials do not belong"),
        ("s3:///p", "expected s3://BUCKET/PREFIX"),
        ("s3://b/a/../c", "has . or .. in it"),
        ("s3://b?secret=x", "'secret' is neither endpoint nor region"),
        ("s3://b?endpoint=127.0.0.1:1", "does not begin with http"),
    ],
)
def test_what_is_no_address_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_object_url(text)
