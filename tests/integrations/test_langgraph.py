"""The store against a real node, by what LangGraph documents of a store."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph.store.base.batch import AsyncBatchedBaseStore
from langgraph.store.memory import InMemoryStore

from memsvc.client import ClientError, HashingEmbedder, MemoryClient, Timeouts
from memsvc.integrations.langgraph import MemsvcStore, StoreIncomplete
from tests.scenarios.conftest import MakeNode
from tests.scenarios.harness import Node
from tests.waiting import until

DIMENSION = 64
PATIENT = Timeouts(connect=5, read=15, write=15)
MakeStore = Callable[..., MemsvcStore]


def letters(texts: Sequence[str]) -> list[list[float]]:
    """Texts with the same letters are near each other."""
    rows = np.zeros((len(texts), DIMENSION))
    for row, text in zip(rows, texts, strict=True):
        for letter in text.lower():
            row[ord(letter) % DIMENSION] += 1
        row[0] += 0.01
    return [[float(number) for number in row] for row in rows]


async def letters_later(texts: Sequence[str]) -> list[list[float]]:
    await asyncio.sleep(0)
    return letters(texts)


LETTERS: IndexConfig = {"dims": DIMENSION, "embed": letters}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("langgraph"), index__dimension=DIMENSION)
    yield node.start()
    node.close()


@pytest.fixture
def make_store(node: Node, request: pytest.FixtureRequest) -> Iterator[MakeStore]:
    """Stores over one namespace, which is the test's own."""
    clients = []

    def make(index: IndexConfig | None = None, **more: Any) -> MemsvcStore:
        client = MemoryClient(f"127.0.0.1:{node.port}", timeouts=PATIENT)
        clients.append(client)
        return MemsvcStore(client, f"graphs/{request.node.name}", index=index, **more)

    yield make
    for client in clients:
        client.close()


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


# -- search --------------------------------------------------------------------------------


def test_a_search_covers_what_is_below_its_prefix_newest_first_in_pages(
    make_store: MakeStore,
) -> None:
    store = make_store()
    for number in range(25):
        store.put(("docs", "sub" if number % 2 else "other"), f"k{number}", {"n": number})
    store.put(("docs2",), "near", {"n": -1})
    found = store.search(("docs",), limit=100)
    assert [item.value["n"] for item in found] == list(range(24, -1, -1))
    assert {item.score for item in found} == {None}
    pages = [store.search(("docs",), limit=10, offset=start) for start in (0, 10, 20)]
    assert [item.key for page in pages for item in page] == [item.key for item in found]
    assert len(store.search(("docs", "sub"), limit=100)) == 12
    assert len(store.search((), limit=100)) == 26
    assert store.search(("nowhere",)) == []


FILTERS: list[dict[str, Any]] = [
    {},
    {"color": "red"},
    {"color": "red", "score": {"$gte": 4.0}},
    {"score": {"$gt": 3.0, "$lt": 4.5}},
    {"score": {"$lte": 3}},
    {"score": {"$eq": 3}},
    {"color": {"$ne": "red"}},
    {"missing": {"$ne": 1}},
    {"missing": None},
    {"none": None},
    {"tags": ["a", "b"]},
    {"tags": "a"},
    {"tags": []},
    {"in": {"city": "Lyon"}},
    {"in": {"city": "Lyon", "zip": {"$gt": 69_000}}},
    {"in": {"city": {"$ne": "Lyon"}}},
    {"in": {}},
    {"in": "Lyon"},
    {"odd key!": "here"},
    {"long": "y" * 2_000},
    {"huge": 2**80},
    {"many29": 29},
    {"empty": ""},
    {f"many{number}": number for number in range(30)},
]


def test_filters_select_what_the_reference_store_selects(make_store: MakeStore) -> None:
    store, reference = make_store(), InMemoryStore()
    values: list[dict[str, Any]] = [
        {"color": "red", "score": 4.5, "tags": ["a", "b"], "in": {"city": "Lyon", "zip": 69_001}},
        {"color": "red", "score": 3, "tags": [], "in": {"city": "Nice"}, "none": None},
        {"color": "green", "score": 4.0, "in": {}, "odd key!": "here", "empty": ""},
        {"color": "blue", "score": 3.5, "long": "y" * 2_000, "huge": 2**80, "in": "Lyon"},
        {f"many{number}": number for number in range(40)} | {"score": 1, "color": "red"},
    ]
    for number, value in enumerate(values):
        for one in (store, reference):
            one.put(("f",), f"k{number}", value)
    for wanted in FILTERS:
        found = {item.key for item in store.search(("f",), filter=wanted)}
        assert found == {item.key for item in reference.search(("f",), filter=wanted)}, wanted
    with pytest.raises(ValueError, match=r"\$regex"):
        store.search(("f",), filter={"color": {"$regex": "r.*"}})
    # Where JSON and Python differ, and where types do, this store goes by JSON.
    store.put(("json",), "k", {"flag": True, "text": "b"})
    assert store.search(("json",), filter={"flag": 1}) == []
    assert len(store.search(("json",), filter={"flag": True, "text": {"$gt": "a"}})) == 1
    assert store.search(("json",), filter={"text": {"$gt": 1}}) == []


def test_queries_rank_by_cosine_and_combine_with_filters_and_pages(make_store: MakeStore) -> None:
    store = make_store({**LETTERS, "fields": ["text"]})
    docs = {
        "doc1": {"text": "red apple", "color": "red", "score": 4.5},
        "doc2": {"text": "red car", "color": "red", "score": 3.0},
        "doc3": {"text": "green apple", "color": "green", "score": 4.0},
        "doc4": {"text": "blue car", "color": "blue", "score": 3.5},
    }
    for key, value in docs.items():
        store.put(("test",), key, value)
    results = store.search(("test",), query="apple", filter={"color": "red"})
    assert [item.key for item in results] == ["doc1", "doc2"]
    results = store.search(("test",), query="bbbbluuu", filter={"score": {"$gt": 3.2}})
    assert len(results) == 3 and results[0].key == "doc4"
    query, found = np.array(letters(["red car"])[0]), store.search(("test",), query="red car")
    for item in found:
        row = np.array(letters([item.value["text"]])[0])
        cosine = query @ row / np.linalg.norm(query) / np.linalg.norm(row)
        assert item.score == pytest.approx(cosine, abs=1e-5)
    assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)
    pages = [store.search(("test",), query="red car", limit=2, offset=start) for start in (0, 2)]
    assert [item.key for page in pages for item in page] == [item.key for item in found]
    for odd in ("", None, "test " * 100, "!@#$%^&*()"):
        assert len(store.search(("test",), query=odd)) == 4

    before = store.search(("test",), query="green apple")[0]
    store.put(("test",), "doc3", {"text": "zzzz"})
    after = {item.key: item.score for item in store.search(("test",), query="green apple")}
    assert before.key == "doc3" and (after["doc3"] or 0) < (before.score or 0)


def test_the_index_argument_says_what_queries_find(make_store: MakeStore) -> None:
    store = make_store({**LETTERS, "fields": ["key17"]})
    store.put(("test",), "default", {"text": "aaa"})
    store.put(("test",), "named", {"text": "aaa", "in": [{"t": "bbb"}]}, index=["in[*].t"])
    store.put(("test",), "never", {"text": "bbb"}, index=False)
    assert [item.key for item in store.search(("test",), query="bbb")] == ["named"]
    assert {item.key for item in store.search(("test",))} == {"default", "named", "never"}
    words = make_store()
    words.put(("words",), "found", {"text": "the cellar"})
    words.put(("words",), "never", {"text": "the cellar"}, index=False)
    assert [item.key for item in words.search(("words",), query="cellar")] == ["found"]
    assert words.search(("words",), query="attic") == []
    with pytest.raises(ValueError, match="200"):
        words.search(("words",), query="cellar", limit=1, offset=200)


def test_each_field_and_each_element_has_a_vector_and_the_best_counts(
    node: Node, make_store: MakeStore, request: pytest.FixtureRequest
) -> None:
    store = make_store({**LETTERS, "fields": ["key0", "key1", "key3"]})
    doc2 = {"key0": "uuu", "key1": "vvv", "key2": "www", "key3": "xxx"}
    store.put(("test",), "doc1", {"key1": "xxx", "key2": "yyy", "key3": "zzz"})
    store.put(("test",), "doc2", doc2)
    both = store.search(("test",), query="xxx")
    assert {item.key for item in both} == {"doc1", "doc2"}
    assert both[0].score == pytest.approx(both[1].score, abs=1e-5)
    best = both[0].score
    for query, key in (("uuu", "doc2"), ("zzz", "doc1")):
        first, second = store.search(("test",), query=query)
        assert first.key == key and first.score == pytest.approx(best, abs=1e-5)
        assert (second.score or 0) < (first.score or 0)
        assert [item.key for item in store.search(("test",), query=query, limit=1)] == [key]
    assert all((item.score or 0) < 0.9 for item in store.search(("test",), query="www"))
    assert {item.key for item in store.search((), query="vvv", filter={"key2": "www"})} == {"doc2"}
    assert len(store.search(("test",))) == 2 and store.list_namespaces() == [("test",)]

    # Fewer texts, more, and none: nothing of the old ones is found.
    def stored() -> int:
        with MemoryClient(f"127.0.0.1:{node.port}", timeouts=PATIENT) as client:
            return len(list(client.browse(f"graphs/{request.node.name}")))

    assert stored() == 2 + 2 + 3
    store.put(("test",), "doc2", {"key0": "uuu", "key1": "aaa"})
    assert stored() == 2 + 2 + 2
    scores = {item.key: item.score or 0 for item in store.search(("test",), query="vvv")}
    assert scores["doc2"] < 0.9
    many = {"of": [{"t": letter * 3} for letter in "abcdefgh"]}
    store.put(("test",), "doc2", many, index=["of[*].t"])
    assert stored() == 2 + 2 + 8
    found = store.search(("test",), query="hhh", limit=1)[0]
    assert found.value == many and found.score == pytest.approx(best, abs=1e-5)
    store.put(("test",), "doc2", {"key0": "uuu"})
    assert stored() == 2 + 2
    store.put(("test",), "doc2", many, index=["of[*].t"], ttl=60)
    assert 0 not in expires_at(store, node, f"graphs/{request.node.name}")[:9]
    before = expires_at(store, node, f"graphs/{request.node.name}")
    time.sleep(0.005)  # the service counts in ms
    store.get(("test",), "doc2")
    after = expires_at(store, node, f"graphs/{request.node.name}")
    assert sum(new > old for old, new in zip(before, after, strict=True)) == 9
    store.put(("test",), "doc2", many, index=False)
    assert stored() == 2 + 2
    assert [item.key for item in store.search(("test",), query="hhh")] == ["doc1"]
    store.put(("test",), "doc2", many, index=["of[*].t"])
    store.delete(("test",), "doc2")
    store.delete(("test",), "doc1")
    assert stored() == 0
    store.put(("test",), "most", {"t": ["x"] * 64}, index=["t[*]"])
    with pytest.raises(ValueError, match="at most 64"):
        store.put(("test",), "most", {"t": ["x"] * 65}, index=["t[*]"])


def test_more_than_one_search_of_the_service_returns_is_found_all_the_same(
    make_store: MakeStore,
) -> None:
    store = make_store({**LETTERS, "fields": ["text"]})
    store.batch(
        [
            PutOp(("many",), f"k{n}", {"text": "ab" * (n + 1) + "c", "tag": [n % 2]})
            for n in range(230)
        ]
    )
    whole = store.search(("many",), query="ab", limit=300)
    assert len(whole) == 230 == len({item.key for item in whole})
    part = store.search(("many",), query="ab", limit=10, offset=195)
    assert [item.key for item in part] == [item.key for item in whole[195:205]]
    # A list cannot be checked by the service: what it returns first does not match.
    odd = store.search(("many",), query="ab", filter={"tag": [1]}, limit=110)
    assert [item.key for item in odd] == [i.key for i in whole if i.value["tag"] == [1]][:110]


def test_an_embedder_of_memsvc_names_its_model_and_another_is_refused(
    node: Node, make_store: MakeStore
) -> None:
    embedder = HashingEmbedder(DIMENSION)
    store = make_store({"embed": embedder})
    store.put(("h",), "a", {"text": "the bicycle is in the cellar"})
    store.put(("h",), "b", {"text": "my passport runs out"})
    assert store.search(("h",), query="where is the bicycle")[0].key == "a"
    other = make_store({"embed": HashingEmbedder(128)})
    with pytest.raises(RuntimeError, match="memsvc generation create"):
        other.put(("h",), "c", {"text": "x"})
    for index in ({"embed": letters}, {"dims": 0, "embed": letters}, {"dims": 8}):
        with pytest.raises(ValueError, match=r"dims|embed"):
            make_store(index)
    wrong = make_store({"dims": 8, "embed": letters})
    with pytest.raises(ValueError, match="8 numbers"):
        wrong.put(("h",), "c", {"text": "x"})


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


def expires_at(store: MemsvcStore, node: Node, space: str) -> list[int]:
    """When the items of a store end, as the service knows it: UTC ms, 0 = never."""
    with MemoryClient(f"127.0.0.1:{node.port}", timeouts=PATIENT) as client:
        return [hit.expires_at for hit in client.browse(space)]


def test_lifetimes_begin_anew_with_reads_and_writes_as_asked(
    node: Node, make_store: MakeStore, request: pytest.FixtureRequest
) -> None:
    space = f"graphs/{request.node.name}"
    store = make_store(ttl={"default_ttl": 60.0})
    store.put(("t",), "default", {"a": 1})
    (first,) = expires_at(store, node, space)
    assert abs(first - (time.time() * 1_000 + 3_600_000)) < 600_000

    def moved(read: Callable[[], object]) -> bool:
        (before,) = expires_at(store, node, space)
        time.sleep(0.005)  # the service counts in ms
        read()
        (after,) = expires_at(store, node, space)
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
    assert expires_at(store, node, space) == [0]
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
