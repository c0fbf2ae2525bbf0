"""The store of LangGraph where others write at the same time, and where values are hostile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, SearchOp

from memsvc.client import MemoryClient
from memsvc.domain.positions import Position, pack_position
from memsvc.integrations.langgraph import MemsvcStore
from memsvc.integrations.langgraph.store import StoreConflict
from memsvc.integrations.langgraph.writes import ATTEMPTS
from tests.unit.client.fake import Running, refuse


@pytest.fixture
def store(running: Running) -> Iterator[MemsvcStore]:
    with MemoryClient(running.address) as client:
        yield MemsvcStore(client, "acme/graphs")


def changed_meanwhile(call: str, request: Any, context: grpc.ServicerContext) -> None:
    if call == "Write":
        refuse(context, grpc.StatusCode.ABORTED, "another version", reason="VERSION_MISMATCH")


def test_an_item_that_others_keep_changing_is_given_up_and_told(
    running: Running, store: MemsvcStore
) -> None:
    running.service.hook = changed_meanwhile
    with pytest.raises(StoreConflict, match=f"1 item was changed by others {ATTEMPTS} times"):
        store.put(("a",), "k", {"n": 1})
    assert len(running.service.calls("Write")) == ATTEMPTS
    running.service.hook = lambda call, request, context: None
    assert store.get(("a",), "k") is None
    store.put(("a",), "k", {"n": 2})
    item = store.get(("a",), "k")
    assert item is not None and item.value == {"n": 2}


def test_the_last_attempt_is_one_that_counts(running: Running, store: MemsvcStore) -> None:
    def hook(call: str, request: Any, context: grpc.ServicerContext) -> None:
        if len(running.service.calls("Write")) < ATTEMPTS:
            changed_meanwhile(call, request, context)

    running.service.hook = hook
    store.put(("a",), "k", {"n": 1})
    item = store.get(("a",), "k")
    assert item is not None and item.value == {"n": 1}


def test_answers_in_another_order_than_the_writes_do_not_hide_the_last_one(
    running: Running, store: MemsvcStore
) -> None:
    """Reads then asked a replica for the place before the last write, and did not find it."""
    first, second = (pack_position(Position(b"8 bytes.", 1, number)) for number in (5, 6))
    for running.service.position in second, first:
        store.put(("a",), running.service.position, {"n": 1})
    store.get(("a",), "k")
    assert running.service.calls("Query")[-1].min_position == second


def test_a_place_that_is_lost_is_asked_for_once(running: Running, store: MemsvcStore) -> None:
    running.service.position = pack_position(Position(b"8 bytes.", 1, 5))
    store.put(("a",), "k", {"n": 1})

    def lost(call: str, request: Any, context: grpc.ServicerContext) -> None:
        if call == "Query" and request.min_position:
            refuse(context, grpc.StatusCode.ABORTED, "lost", reason="POSITION_LOST")

    running.service.hook = lost
    for _ in range(2):
        item = store.get(("a",), "k")
        assert item is not None and item.value == {"n": 1}
    asked = [bool(request.min_position) for request in running.service.calls("Query")]
    assert asked[-3:] == [True, False, False]


@pytest.mark.parametrize(
    ("value", "error", "told"),
    [
        ({1: "a", "1": "b"}, ValueError, "two of its names are '1' as JSON"),
        ({"a": {True: 1, "true": 2}}, ValueError, "two of its names are 'true' as JSON"),
        ({"t": "half \ud83d"}, ValueError, "half of a character"),
        ({"t": float("nan")}, ValueError, "not JSON compliant"),
        ({"t": {1, 2}}, TypeError, "set is not JSON serializable"),
        ([1], TypeError, "expected a dictionary, not list"),
        ("text", TypeError, "expected a dictionary, not str"),
    ],
)
def test_a_value_that_would_come_back_as_another_is_refused_by_its_key(
    running: Running, store: MemsvcStore, value: Any, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=f"item 'k': .*{told}"):
        store.put(("a",), "k", value, index=False)
    assert not running.service.requests


def test_half_characters_elsewhere_are_told_too(running: Running, store: MemsvcStore) -> None:
    ops: list[Any] = [
        GetOp(("a\ud800",), "k"),
        SearchOp(("a\ud800",)),
        SearchOp(("a",), filter={"t": "\ud800"}),
        SearchOp(("a",), filter={"t": {"$ne": "\ud800"}}),
        ListNamespacesOp((MatchCondition("prefix", ("\ud800",)),)),
    ]
    for op in ops:
        with pytest.raises(ValueError, match="half of a character"):
            store.batch([op])
    assert not running.service.requests
    assert store.search(("a",), query="half \ud83d") == []


def test_a_lifetime_is_a_number(store: MemsvcStore) -> None:
    with pytest.raises(TypeError, match="ttl: expected minutes as a number, not str"):
        store.put(("a",), "k", {"n": 1}, ttl="5")  # type: ignore[arg-type]
