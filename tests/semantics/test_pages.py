"""Browsing page by page while the store changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from memsvc.domain.errors import Code
from tests.semantics.harness import HOUR, START, World, error_of


def _pages(world: World, size: int, **fields: Any) -> Iterator[list[str]]:
    token = ""
    while True:
        answer = world.query(mode="BROWSE", top_k=size, page_token=token or None, **fields)
        yield [item["id"] for item in answer["items"]]
        token = answer.get("next_page_token", "")
        if not token:
            return


def _many(world: World, count: int = 25) -> list[str]:
    """Ids, newest first; several share a time."""
    ids = []
    for number in range(count):
        ids.append(world.put(summary=f"m {number}", metadata={"ts": START + number // 4 * HOUR}))
        if number == count // 2:
            world.seal()
    return ids[::-1]


@pytest.mark.parametrize("size", [1, 3, 4, 24, 25, 26])
def test_pages_together_are_the_whole_in_order(world: World, size: int) -> None:
    wanted = _many(world)
    pages = list(_pages(world, size))
    assert [i for page in pages for i in page] == wanted
    assert all(len(page) == size for page in pages[:-1]) and pages[-1]


@pytest.mark.parametrize(
    "filters",
    [{"importance": {"gte": 0.5}}, {"attributes.free": {"exists": False}}, {"session": "s1"}],
    ids=str,
)
def test_pages_of_a_filter_are_whole_too(world: World, filters: dict[str, Any]) -> None:
    wanted = _many(world)
    world.put(("acme", "helper", "s2"), metadata={"importance": 0.1, "attributes": {"free": "no"}})
    assert [i for page in _pages(world, 4, filters=filters) for i in page] == wanted


def test_what_is_written_between_pages_neither_shifts_nor_repeats(world: World) -> None:
    wanted = _many(world)
    found = []
    for page in _pages(world, 4):
        found += page
        world.put(metadata={"ts": START + 99 * HOUR})
    assert found == wanted


def test_the_last_of_a_page_may_be_forgotten_or_changed_before_the_next(world: World) -> None:
    changes: list[Callable[[str], object]] = [
        lambda i: world.forget(ids=[i], mode="HARD"),
        lambda i: world.write({"update": {"id": i, "summary": "new text"}}),
        lambda i: world.write({"update": {"id": i, "status": "ARCHIVED"}}),
        lambda i: world.write({"touch": {"id": i, "ts": START + 99 * HOUR}}),
        lambda _i: world.purge(),
        lambda _i: world.restart(),
    ]
    wanted = _many(world)
    found = []
    for page in _pages(world, 3):
        found += page
        if changes:
            changes.pop(0)(page[-1])
    assert changes == []
    assert found == wanted


def test_what_is_forgotten_between_pages_is_left_out(world: World) -> None:
    wanted = _many(world)
    pages = _pages(world, 5)
    found = next(pages)
    world.forget(ids=wanted[7:9], mode="HARD")
    for page in pages:
        found += page
    assert found == wanted[:7] + wanted[9:]


@pytest.mark.parametrize(
    "other",
    [{"filters": {"topic": "food"}}, {"as_of": START + 1}, {"ns": ("acme", "other")}],
    ids=str,
)
def test_a_token_of_another_request_is_refused(world: World, other: dict[str, Any]) -> None:
    _many(world)
    world.put(("acme", "other"))
    token = world.query(mode="BROWSE", top_k=3)["next_page_token"]
    error = error_of(lambda: world.query(mode="BROWSE", top_k=3, page_token=token, **other))
    assert error.code is Code.INVALID_ARGUMENT
    assert "page_token" in error.message


@pytest.mark.parametrize(
    "token", ["x", "AAAA", "ä", "A" * 600, "AXOnLOX1FHyqAAAAAAAAAAEAAAAAAAAAFA"]
)
def test_what_is_no_token_is_refused(world: World, token: str) -> None:
    world.put()
    error = error_of(lambda: world.query(mode="BROWSE", page_token=token))
    assert error.code is Code.INVALID_ARGUMENT


def test_only_browse_has_pages(world: World) -> None:
    _many(world)
    token = world.query(mode="BROWSE", top_k=3)["next_page_token"]
    for fields in ({"text": "m"}, {"vector": [1.0] * 8}, {"ids": ["x"]}):
        error = error_of(lambda fields=fields: world.query(**fields, page_token=token))
        assert "page_token" in {v.field for v in error.violations}
    assert world.query(page_token=token, top_k=3)["mode"] == "BROWSE"
