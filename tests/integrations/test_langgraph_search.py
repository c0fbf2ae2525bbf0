"""What a search of the store finds, against a real node and the reference store."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

from memsvc.client import HashingEmbedder, MemoryClient
from tests.integrations.langgraph_live import (
    DIMENSION,
    LETTERS,
    PATIENT,
    MakeStore,
    expires_at,
    letters,
)
from tests.scenarios.harness import Node


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
    graph_node: Node, make_store: MakeStore, request: pytest.FixtureRequest
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
        with MemoryClient(f"127.0.0.1:{graph_node.port}", timeouts=PATIENT) as client:
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
    assert 0 not in expires_at(store, graph_node, f"graphs/{request.node.name}")[:9]
    before = expires_at(store, graph_node, f"graphs/{request.node.name}")
    time.sleep(0.005)  # the service counts in ms
    store.get(("test",), "doc2")
    after = expires_at(store, graph_node, f"graphs/{request.node.name}")
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
    graph_node: Node, make_store: MakeStore
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
