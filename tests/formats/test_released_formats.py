"""Stores written by every released version must still be readable, and right."""

import tarfile
from pathlib import Path

import pytest

from memsvc.embedded import open as open_store
from tests.formats.make_fixture import DIMENSION, NAMESPACE, vector

FIXTURES = sorted(Path(__file__).parent.glob("store-*.tar.gz"))


@pytest.fixture(params=FIXTURES, ids=lambda p: p.name.removesuffix(".tar.gz"))
def memory(request, tmp_path: Path):
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    settings = {"query.min_score": -1.0, "storage.reserve_bytes": 0}
    with open_store(tmp_path, dimension=DIMENSION, settings=settings) as opened:
        yield opened


def test_there_is_a_fixture_of_every_release():
    assert FIXTURES


def test_an_old_store_is_read_as_it_was_written(memory):
    assert memory.health()["store"]["memories"] == 50
    assert memory.health()["store"]["segments"] == 1
    items = memory.query(NAMESPACE, mode="BROWSE", top_k=100)["items"]
    assert len(items) == 50
    by_seq = {i["metadata"].get("seq"): i for i in items}
    assert 5 not in by_seq
    assert by_seq[3]["summary"] == "summary was changed"
    assert by_seq[3]["version"] == 2
    assert by_seq[4]["recall_count"] == 1
    assert by_seq[7]["metadata"]["attributes"] == {"city": "Bern", "n": 7, "tags": ["a", "b"]}


def test_an_old_segment_and_tail_answer_by_vector_words_and_filter(memory):
    for number in (7, 45):
        (best, *_) = memory.query(NAMESPACE, vector=vector(number), top_k=3)["items"]
        assert best["metadata"]["seq"] == number
        assert best["similarity"] == pytest.approx(1.0, abs=1e-6)
        (best, *_) = memory.query(NAMESPACE, text=f"number{number}", top_k=3)["items"]
        assert best["metadata"]["seq"] == number
    found = memory.query(NAMESPACE, filters={"topic": "t1", "seq": {"gte": 38}})["items"]
    assert sorted(i["metadata"]["seq"] for i in found) == [40, 43, 46, 49]
    assert memory.query(NAMESPACE, text="摘要", top_k=200)["items"]


def test_an_old_store_goes_on(memory):
    again = memory.write(
        NAMESPACE,
        [
            {"dedup_key": "k7", "content": "x"},
            {"dedup_key": "k5", "content": "x"},
            {"dedup_key": "new", "summary": "something new"},
        ],
    )
    assert [(r["outcome"], r["status"]) for r in again["results"]] == [
        ("EXISTS", "ACTIVE"),
        ("EXISTS", "FORGOTTEN"),
        ("CREATED", "ACTIVE"),
    ]
    assert memory.admin.maintain(1, True, True, 60)[1]
    assert memory.query(NAMESPACE, text="something new")["items"]
    assert memory.health()["store"]["memories"] == 51
