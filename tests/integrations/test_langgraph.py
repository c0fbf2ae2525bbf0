"""The store against a real node, by what LangGraph documents of a store."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.base.batch import AsyncBatchedBaseStore
from langgraph.store.memory import InMemoryStore

from memsvc.client import ClientError, MemoryClient, Timeouts
from memsvc.integrations.langgraph import MemsvcStore, StoreIncomplete
from tests.integrations.langgraph_live import (
    DIMENSION,
    LETTERS,
    PATIENT,
    MakeStore,
    expires_at,
    letters_later,
)
from tests.scenarios.conftest import MakeNode
from tests.scenarios.harness import Node
from tests.waiting import until

# -- put, get, delete ----------------------------------------------------------------------


def test_an_item_is_put_replaced_and_deleted_by_its_key(make_store: MakeStore) -> None:
    store, space = make_store(), ("users", "123")
    value = {"title": "Café 茶", "n": 3, "x": 1.5, "ok": True, "no": None, "in": {"a": [1, {}]}}
    store.put(space, "doc/1", value)
    item = store.get(space, "doc/1")
    assert item is not None
    assert (item.value, item.key, item.namespace) == (value, "doc/1", space)
    assert item.created_at.tzinfo is not None and item.created_at <= item.updated_at

    store.put(space, "doc/1", {"title": "new"})
    again = store.get(space, "doc/1")
    assert again is not None and again.value == {"title": "new"}
    assert again.updated_at > item.updated_at and again.created_at == item.created_at
    assert store.search(space, filter={"n": 3}) == [], "nothing of the old value is left"

    assert store.get(("users", "124"), "doc/1") is None
    assert store.get(("users",), "doc/1") is None
    store.delete(space, "doc/1")
    store.delete(space, "never there")
    assert store.get(space, "doc/1") is None and store.search(()) == []
    for round_ in range(60):
        store.put(space, "doc/1", {"round": round_})
        made = store.get(space, "doc/1")
        assert made is not None and made.value == {"round": round_}
        store.delete(space, "doc/1")
    other = make_store()
    other.put(space, "doc/1", {"by": "another"})
    assert len(store.search(space)) == 1


def test_namespaces_are_checked_as_langgraph_says(make_store: MakeStore) -> None:
    store = make_store()
    for bad in ((), ("the", "thing.about"), ("some", ""), ("langgraph", "x"), ("a", "b\x00")):
        with pytest.raises(InvalidNamespaceError):
            store.put(bad, "key", {})
        with pytest.raises(InvalidNamespaceError):
            asyncio.run(store.aput(bad, "key", {}))
    for op in (
        PutOp((), "k", {}),
        GetOp(("a.b",), "k"),
        SearchOp(("a.b",)),
        ListNamespacesOp((MatchCondition("prefix", ("a.b",)),)),
    ):
        with pytest.raises(InvalidNamespaceError):
            store.batch([op])
    store.put(("fine", "langgraph"), "k", {"a": 1})
    store.batch([PutOp(("langgraph",), "k", {"b": 2})])
    assert [item.value for item in store.search(("langgraph",))] == [{"b": 2}]


def test_what_does_not_fit_is_refused_with_its_bound_and_what_just_fits_is_kept(
    make_store: MakeStore,
) -> None:
    store = make_store()
    room = 65_536 - len('{"namespace":["big"],"key":"k","value":{"t":""}}')
    store.put(("big",), "k", {"t": "x" * room})
    kept = store.get(("big",), "k")
    assert kept is not None and kept.value == {"t": "x" * room}
    with pytest.raises(ValueError, match="65,536"):
        store.put(("big",), "k", {"t": "x" * (room + 1)})
    with pytest.raises(ValueError, match="JSON compliant"):
        store.put(("a",), "k", {"t": float("nan")})
    with pytest.raises(TypeError):
        store.put(("a",), "k", {"t": object()})
    deep = tuple(f"l{i}" for i in range(64))
    store.put(deep, "k", {})
    assert store.list_namespaces(prefix=deep) == [deep]
    with pytest.raises(ValueError, match="64"):
        store.put((*deep, "l64"), "k", {})
    store.put(("x" * 1_024,), "k", {})
    with pytest.raises(ValueError, match="1,024"):
        store.put(("x" * 1_025,), "k", {})
    for bad in (0, -1, float("nan"), float("inf"), 52_596_001):
        with pytest.raises(ValueError, match="ttl"):
            store.put(("a",), "k", {}, ttl=bad)
    with pytest.raises(ValueError, match="limit"):
        store.search((), limit=-1)
    assert store.search(("big",), limit=0) == []


# -- namespaces ----------------------------------------------------------------------------


def test_namespaces_are_listed_by_prefix_suffix_wildcard_and_depth(make_store: MakeStore) -> None:
    store, reference = make_store(), InMemoryStore()
    names = [
        ("a", "b", "c"), ("a", "b", "d", "e"), ("a", "b", "d", "i"), ("a", "b", "f"),
        ("a", "c", "f"), ("b", "a", "f"), ("users", "123"), ("users", "456", "settings"),
        ("admin", "users", "789"),
    ]  # fmt: skip
    assert store.list_namespaces() == []
    for number, name in enumerate(names):
        for one in (store, reference):
            one.put(name, f"id{number}", {"n": number})
            one.put(name, "second", {"n": number})
    asked: list[dict[str, Any]] = [
        {},
        {"prefix": ("a", "b")},
        {"suffix": ("f",)},
        {"prefix": ("a",), "suffix": ("f",)},
        {"prefix": ("a", "b"), "max_depth": 3},
        {"prefix": ("a", "b"), "limit": 2},
        {"prefix": ("a", "b"), "offset": 2},
        {"prefix": ("a", "*", "f")},
        {"suffix": ("*", "f")},
        {"prefix": ("*", "users")},
        {"prefix": ("nonexistent",)},
        {"prefix": ("users", "123")},
        {"max_depth": 1, "limit": 3},
        {"max_depth": 2, "offset": 1, "limit": 2},
    ]
    for one in asked:
        assert store.list_namespaces(**one) == reference.list_namespaces(**one), one


# -- batches -------------------------------------------------------------------------------


def test_a_batch_answers_in_order_and_reads_what_was_there_before(make_store: MakeStore) -> None:
    store = make_store()
    store.put(("t", "foo"), "key1", {"data": "value1"})
    results = store.batch(
        [
            GetOp(("t", "foo"), "key1"),
            PutOp(("t", "bar"), "key2", {"data": "first"}),
            SearchOp(("t",), {"data": "value1"}, 10, 0),
            PutOp(("t", "bar"), "key2", {"data": "last"}),
            ListNamespacesOp(None, None, 10, 0),
            GetOp(("t", "bar"), "key2"),
            GetOp(("t", "foo"), "key1"),
            PutOp(("t", "foo"), "gone", None),
        ]
    )
    first, put, found, _, names, absent, again, deleted = results
    assert first == again and first.value == {"data": "value1"}  # type: ignore[union-attr]
    assert put is None and deleted is None and absent is None
    assert [item.key for item in found] == ["key1"]  # type: ignore[union-attr]
    assert names == [("t", "foo")]
    last = store.get(("t", "bar"), "key2")
    assert last is not None and last.value == {"data": "last"}
    store.batch([PutOp(("t",), f"k{n}", {"n": n}) for n in range(250)])
    everything = store.batch([GetOp(("t",), f"k{n}") for n in range(250)])
    assert [item.value["n"] for item in everything] == list(range(250))  # type: ignore[union-attr]
    store.batch([PutOp(("t",), f"k{n}", None) for n in range(250)])
    assert len(store.search(("t",), limit=300)) == 2
    assert store.batch([]) == []


def test_coroutines_are_answered_together_also_with_an_asynchronous_embedder(
    make_store: MakeStore,
) -> None:
    store = make_store({"dims": DIMENSION, "embed": letters_later, "fields": ["text"]})

    async def use(one: BaseStore) -> None:
        texts = [f"{color} {thing}" for color in ("red", "blue") for thing in ("apple", "car")]
        await asyncio.gather(
            *(one.aput(("a",), text, {"text": text, "n": n}) for n, text in enumerate(texts))
        )
        answers = await asyncio.gather(*(one.asearch(("a",), query=text) for text in texts))
        assert [found[0].key for found in answers] == texts
        found = await one.asearch(("a",), query="apple", filter={"n": {"$gte": 2}})
        assert {item.value["n"] for item in found} == {2, 3}
        await one.adelete(("a",), texts[0])
        assert await one.aget(("a",), texts[0]) is None
        assert await one.alist_namespaces() == [("a",)]

    asyncio.run(use(store))

    class Batched(AsyncBatchedBaseStore):
        """LangGraph's own collector of concurrent calls, over this store."""

        def batch(self, ops: Any) -> Any:
            return store.batch(ops)

        async def abatch(self, ops: Any) -> Any:
            return await store.abatch(ops)

    async def collected() -> None:
        await use(Batched())

    asyncio.run(collected())


def test_the_same_key_put_by_many_at_once_is_one_item(make_store: MakeStore) -> None:
    stores = [make_store({**LETTERS, "fields": ["text[*]"]}) for _ in range(4)]
    together = threading.Barrier(len(stores))
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for round_ in range(5):
                together.wait(60)
                value = {"by": number, f"only{number}": 1, "text": ["x" * number, "y"]}
                stores[number].put(("race",), f"r{round_}", value)
        except BaseException as error:
            failures.append(error)
            together.abort()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(len(stores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    found = stores[0].search(("race",), limit=100)
    assert sorted(item.key for item in found) == [f"r{n}" for n in range(5)]
    for item in found:
        by = item.value["by"]
        same = {"by": by, f"only{by}": 1, "text": ["x" * by, "y"]}
        assert item.value == same
        for other in range(len(stores)):
            hits = stores[0].search(("race",), filter={f"only{other}": 1}, limit=100)
            assert (item.key in {hit.key for hit in hits}) == (other == by)


# -- lifetimes -----------------------------------------------------------------------------


def test_lifetimes_begin_anew_with_reads_and_writes_as_asked(
    graph_node: Node, make_store: MakeStore, request: pytest.FixtureRequest
) -> None:
    space = f"graphs/{request.node.name}"
    store = make_store(ttl={"default_ttl": 60.0})
    store.put(("t",), "default", {"a": 1})
    (first,) = expires_at(store, graph_node, space)
    assert abs(first - (time.time() * 1_000 + 3_600_000)) < 600_000

    def moved(read: Callable[[], object]) -> bool:
        (before,) = expires_at(store, graph_node, space)
        time.sleep(0.005)  # the service counts in ms
        read()
        (after,) = expires_at(store, graph_node, space)
        return after > before

    before = store.get(("t",), "default", refresh_ttl=False)
    assert not moved(lambda: store.get(("t",), "default", refresh_ttl=False))
    assert not moved(lambda: store.search(("t",), refresh_ttl=False))
    assert moved(lambda: store.get(("t",), "default"))
    assert moved(lambda: store.search(("t",)))
    assert moved(lambda: store.put(("t",), "default", {"a": 1}))
    after = store.get(("t",), "default")
    assert before is not None and after is not None and after.updated_at > before.updated_at
    read = store.get(("t",), "default")
    assert read is not None and read.updated_at == after.updated_at, "a read is no update"
    store.put(("t",), "default", {"a": 1}, ttl=None)
    assert expires_at(store, graph_node, space) == [0]
    quiet = make_store(ttl={"default_ttl": 60.0, "refresh_on_read": False})
    quiet.put(("t",), "default", {"a": 1})
    assert not moved(lambda: quiet.get(("t",), "default"))
    with pytest.raises(ValueError, match="ttl"):
        make_store(ttl={"default_ttl": 0})


def test_an_item_whose_lifetime_is_over_is_gone_and_its_key_can_be_put_again(
    make_store: MakeStore,
) -> None:
    store = make_store()
    store.put(("t",), "short", {"a": 1}, ttl=0.3 / 60)
    store.put(("t",), "long", {"a": 1}, ttl=60)
    until(lambda: store.get(("t",), "short", refresh_ttl=False) is None, 30)
    assert [item.key for item in store.search(())] == ["long"]
    store.put(("t",), "short", {"a": 2})
    made = store.get(("t",), "short")
    assert made is not None and made.value == {"a": 2}


# -- when the service is not whole ---------------------------------------------------------


def test_an_answer_that_is_not_whole_is_an_error_and_not_an_absent_item(
    make_node: MakeNode,
) -> None:
    node = make_node(index__dimension=DIMENSION).start()
    quick = Timeouts(connect=0.5, read=1.0, write=1.0)
    with MemoryClient(f"127.0.0.1:{node.port}", timeouts=PATIENT) as client:
        store = MemsvcStore(client, "acme/graphs", index=LETTERS)
        store.put(("a",), "k", {"t": "x"})
        client.admin.set_degraded(4, "drill")
        for read in (
            lambda: store.get(("a",), "k"),
            lambda: store.search(("a",)),
            lambda: store.search(("a",), query="x"),
            store.list_namespaces,
        ):
            with pytest.raises(StoreIncomplete):
                read()
        client.admin.set_degraded(None)
        assert store.get(("a",), "k") is not None
    node.stop()
    with MemoryClient(f"127.0.0.1:{node.port}", timeouts=quick) as client:
        away = MemsvcStore(client, "acme/graphs", index=LETTERS)
        for call in (lambda: away.get(("a",), "k"), lambda: away.put(("a",), "k", {"t": "x"})):
            with pytest.raises(ClientError, match="no memsvc answers"):
                call()
