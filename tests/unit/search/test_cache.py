"""Kept answers that would be given to the wrong question, at the wrong time, or without end."""

from __future__ import annotations

import threading
import tracemalloc
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from memsvc.domain import filters as f
from memsvc.domain.hits import NO_HITS, Hits
from memsvc.domain.log import Generation
from memsvc.domain.records import STATE_DTYPE
from memsvc.domain.types import (
    Degraded,
    DegradedLevel,
    Include,
    Mode,
    Namespace,
    QueryRequest,
    RankOptions,
)
from memsvc.service.search.cache import LARGEST_SHARE, Kept, ResultCache, Stamp, key_of
from memsvc.service.search.mutable import NEVER
from memsvc.service.search.plan import CacheBounds, Plan
from memsvc.service.search.ranking import Chosen
from memsvc.service.search.scope import Reader
from tests.switching import switching_every

STAMP = Stamp("ab" * 16, 1, 1, 10, 2)
BOUNDS = CacheBounds(10.0, 100, 1_000_000)
ONE, OTHER = np.array([1, 0], np.float32), np.array([0, 1], np.float32)
REQUEST = QueryRequest(Namespace("acme", "a", "s1"), vectors=(ONE,), text="tea")
PLAN = Plan(
    request=REQUEST,
    reader=Reader(None, 1_000, False),
    mode=Mode.HYBRID,
    generation=Generation(1, "model", 2, 0),
    top_k=10,
    min_score=0.5,
    ef=64,
    terms=("tea",),
    degraded=Degraded(),
)

OF_REQUEST: dict[str, Any] = {
    "vectors": (OTHER,),
    "many": True,
    "rank": RankOptions(),
    "include": Include(content=True),
}
"""What of a request the answer depends on, with another value."""
SETTLED = {"text", "top_k", "min_score", "filters", "mode", "ef_search", "embedding", "as_of"}
"""What of it the plan has in a settled form."""
NO_MATTER: dict[str, Any] = {"min_position": "p"}
"""What of it does not change what is found; a position is waited for before."""
NOT_KEPT: dict[str, Any] = {"ids": ("x",), "page_token": "t", "fallback": True}
OF_PLAN: dict[str, Any] = {
    "mode": Mode.VECTOR,
    "generation": Generation(2, "other", 2, 0),
    "top_k": 11,
    "min_score": 0.25,
    "ef": 65,
    "terms": ("tea", "cup"),
}
OF_READER: dict[str, Any] = {
    "filters": f.Condition("topic", f.Equals("food")),
    "may_review": True,
    "as_of": 500,
    "all_statuses": True,
}


def of_request(**changes: Any) -> Plan:
    return replace(PLAN, request=replace(REQUEST, **changes))


def of_reader(**changes: Any) -> Plan:
    return replace(PLAN, reader=replace(PLAN.reader, **changes))


OTHERS = {
    **{f"request.{n}": of_request(**{n: value}) for n, value in OF_REQUEST.items()},
    **{f"plan.{n}": replace(PLAN, **{n: value}) for n, value in OF_PLAN.items()},
    **{f"reader.{n}": of_reader(**{n: value}) for n, value in OF_READER.items()},
    "tenant": of_request(namespace=Namespace("acme-corp", "a")),
    "agent": of_request(namespace=Namespace("acme", "b")),
    "include.vector": of_request(include=Include(vector=True)),
    "rank.keep": of_request(rank=RankOptions(keep=3)),
    "no vector": of_request(vectors=()),
    "two vectors": of_request(vectors=(ONE, OTHER)),
    "two vectors, the other way": of_request(vectors=(OTHER, ONE)),
    "one vector of their numbers": of_request(vectors=(np.concatenate((ONE, OTHER)),)),
    "double precision": of_request(vectors=(ONE.astype(np.float64),)),
}


def test_no_two_questions_share_an_answer() -> None:
    keys = {name: key_of(plan) for name, plan in {"": PLAN, **OTHERS}.items()}
    assert None not in keys.values()
    assert len(set(keys.values())) == len(keys)


@pytest.mark.parametrize(
    "pair", [(1, True), (1, 1.0), (0, False), ("1", 1), (("a",), "a"), (0.0, -0.0)], ids=repr
)
def test_values_that_python_holds_for_equal_are_different_filters(pair: tuple[Any, Any]) -> None:
    first, second = (
        key_of(of_reader(filters=f.Condition("attributes.x", f.Equals(value)))) for value in pair
    )
    assert first != second


def test_every_field_of_a_query_was_thought_of() -> None:
    """A new one has to be put in the key, or among those that do not matter."""
    known = {*OF_REQUEST, *SETTLED, *NO_MATTER, *NOT_KEPT, "namespace"}
    assert {field.name for field in fields(QueryRequest)} == known
    assert {field.name for field in fields(Plan)} == {*OF_PLAN, "request", "reader", "degraded"}
    # The time is what the answer is brought up to.
    assert {field.name for field in fields(Reader)} == {*OF_READER, "now"}
    assert {field.name for field in fields(Include)} == {"content", "vector", "explain"}


def test_what_does_not_matter_shares_an_answer() -> None:
    same = [of_request(**{name: value}) for name, value in NO_MATTER.items()]
    # Sessions never filter by themselves.
    same.append(of_request(namespace=Namespace("acme", "a", "s2")))
    same.append(of_request(text="Tea!"))
    same.append(of_reader(now=2_000))
    assert {key_of(plan) for plan in same} == {key_of(PLAN)}


def test_an_answer_that_is_not_to_be_kept_has_no_key() -> None:
    assert key_of(of_request(ids=("x",))) is None
    assert key_of(of_request(page_token="t")) is None
    assert key_of(of_request(include=Include(explain=True))) is None
    for level in DegradedLevel:
        key = key_of(replace(PLAN, degraded=Degraded(level, "WHY")))
        assert (key is None) == (level is not DegradedLevel.NONE)


# -- how long an answer holds -----------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def hits(count: int, content: bool = False) -> Hits:
    column = np.zeros(count, np.float32)
    found = Hits(
        rows=np.arange(count),
        heads=[bytes(100 + i % 3) for i in range(count)],
        states=np.zeros(count, STATE_DTYPE),
        scores=column,
        similarities=column,
        words=column,
        importance=column,
        now=0,
    )
    if not content:
        return found
    vectors: list[Any] = [np.frombuffer(bytes(256), np.float32) for _ in range(count)]
    return replace(found, contents=[f"{i:500}" for i in range(count)], vectors=vectors)


def kept(count: int = 1, stamp: Stamp = STAMP, until: int = NEVER) -> Kept:
    chosen = Chosen(hits(count), np.zeros(count, np.float32))
    return Kept(stamp, until, (chosen,))


def test_an_answer_ends_with_any_change_of_what_it_was_made_from() -> None:
    others = [
        STAMP._replace(store_id="cd" * 16),
        STAMP._replace(epoch=2),
        STAMP._replace(partition=2),
        STAMP._replace(position=11),
        STAMP._replace(position=9),
        STAMP._replace(manifest=3),
    ]
    cache = ResultCache()
    for other in others:
        cache.put(b"k", kept(), BOUNDS)
        assert cache.find(b"k", STAMP, 0, BOUNDS) is not None
        assert cache.find(b"k", other, 0, BOUNDS) is None
        assert len(cache) == 0, "what no longer holds takes no room"


def test_an_answer_ends_when_a_memory_expires() -> None:
    cache = ResultCache()
    cache.put(b"k", kept(until=5_000), BOUNDS)
    assert cache.find(b"k", STAMP, 4_999, BOUNDS) is not None
    assert cache.find(b"k", STAMP, 5_000, BOUNDS) is None


def test_an_answer_ends_after_its_time() -> None:
    clock = Clock()
    cache = ResultCache(clock)
    cache.put(b"k", kept(), BOUNDS)
    clock.now += 9.999
    assert cache.find(b"k", STAMP, 0, BOUNDS) is not None
    clock.now = 110.0
    assert cache.find(b"k", STAMP, 0, BOUNDS) is None


def test_an_answer_ends_with_the_settings_it_was_made_under() -> None:
    cache = ResultCache()
    cache.put(b"k", kept(), BOUNDS)
    assert cache.find(b"k", STAMP, 0, replace(BOUNDS)) is None


def test_upkeep_drops_what_is_past_its_time_and_nothing_else() -> None:
    clock = Clock()
    cache = ResultCache(clock)
    cache.put(b"long", kept(), CacheBounds(60.0, 100, 1_000_000))
    cache.put(b"old", kept(), BOUNDS)
    clock.now += 5
    cache.put(b"new", kept(), BOUNDS)
    clock.now += 5
    cache.drop_old()
    assert len(cache) == 2
    assert cache.find(b"new", STAMP, 0, BOUNDS) is not None
    assert cache.nbytes == 2 * kept().nbytes


# -- how much is kept -------------------------------------------------------------------------


def test_there_are_never_more_answers_than_the_bound_and_the_oldest_goes() -> None:
    cache = ResultCache()
    for number in range(BOUNDS.entries + 1):
        cache.put(str(number).encode(), kept(), BOUNDS)
        assert len(cache) == min(number + 1, BOUNDS.entries)
    assert cache.find(b"0", STAMP, 0, BOUNDS) is None
    assert cache.find(b"1", STAMP, 0, BOUNDS) is not None


def test_there_are_never_more_bytes_than_the_bound() -> None:
    one = kept().nbytes
    exact = CacheBounds(10.0, 1_000, 20 * one)
    cache = ResultCache()
    for number in range(20):
        cache.put(str(number).encode(), kept(), exact)
    assert (len(cache), cache.nbytes) == (20, 20 * one)
    cache.put(b"more", kept(), exact)
    assert (len(cache), cache.nbytes) == (20, 20 * one)
    assert cache.find(b"0", STAMP, 0, exact) is None


def test_an_answer_that_would_drive_out_many_is_not_kept() -> None:
    size = kept(50).nbytes
    cache = ResultCache()
    cache.put(b"k", kept(50), CacheBounds(10.0, 10, LARGEST_SHARE * size - 1))
    assert len(cache) == 0
    cache.put(b"k", kept(50), CacheBounds(10.0, 10, LARGEST_SHARE * size))
    assert len(cache) == 1


def test_an_answer_put_again_counts_once() -> None:
    cache = ResultCache()
    cache.put(b"k", kept(5), BOUNDS)
    cache.put(b"k", kept(3), BOUNDS)
    assert (len(cache), cache.nbytes) == (1, kept(3).nbytes)


@pytest.mark.parametrize("count", [0, 1, 40, 200])
@pytest.mark.parametrize("content", [False, True])
def test_the_bytes_counted_are_those_taken(count: int, content: bool) -> None:
    def make() -> Kept:
        chosen = Chosen(hits(count, content), np.zeros(count, np.float32)).owned()
        return Kept(STAMP, NEVER, (chosen,), "token")

    bounds = CacheBounds(10.0, 1_000, 1 << 30)
    cache = ResultCache()
    tracemalloc.start()
    try:
        for number in range(50):
            cache.put(number.to_bytes(32, "big"), make(), bounds)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 0.8 * taken <= cache.nbytes <= 1.5 * taken


def test_an_answer_holds_no_more_than_its_own_rows() -> None:
    """Of a filter that is judged on the records, candidates are all rows of the partition."""
    wide = hits(10_000)
    view = replace(
        wide,
        rows=wide.rows[:3],
        heads=wide.heads[:3],
        states=wide.states[:3],
        scores=wide.scores[:3],
        similarities=wide.similarities[:3],
        words=wide.words[:3],
        importance=wide.importance[:3],
    )
    own = Chosen(view, np.zeros(10_000)[:3]).owned()
    for field in fields(Hits):
        column = getattr(own.hits, field.name)
        assert not isinstance(column, np.ndarray) or column.base is None, field.name
    assert own.stand_ins.base is None
    assert Chosen(NO_HITS, np.empty(0)).owned().hits.heads == []


def test_threads_that_put_find_and_drop_keep_the_count() -> None:
    clock = Clock()
    cache = ResultCache(clock)
    bounds = CacheBounds(0.5, 20, 20 * kept().nbytes)
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(2_000):
                key = str(rng.integers(40)).encode()
                match rng.integers(4):
                    case 0:
                        cache.put(key, kept(int(rng.integers(3))), bounds)
                    case 1:
                        cache.drop_old()
                        clock.now += 0.01
                    case _:
                        found = cache.find(key, STAMP, 0, bounds)
                        assert found is None or found.stamp == STAMP
        except BaseException as error:
            failures.append(error)

    with switching_every(1e-6):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert len(cache) <= bounds.entries and cache.nbytes <= bounds.nbytes
    clock.now += 1.0
    cache.drop_old()
    assert (len(cache), cache.nbytes) == (0, 0)
