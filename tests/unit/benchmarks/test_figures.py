"""A benchmark that computes its figures wrongly is worse than none."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks import data, filters, mixed, plots, replay, truth
from benchmarks.difficulty import difficulty, local_dimension
from benchmarks.evidence import evidence_recall
from benchmarks.report import Report, percentiles, ratio
from benchmarks.schedule import arrivals, keep_to


def test_percentiles_are_latencies_that_occurred() -> None:
    found = percentiles(np.arange(1, 101) / 1e3)
    assert (found.n, found.worst) == (100, 100)
    assert (found.p50, found.p95, found.p99) == (50, 95, 99)


def test_percentiles_of_few_latencies_do_not_invent_a_tail() -> None:
    found = percentiles([0.001, 0.002, 0.009])
    assert (found.p50, found.p99, found.n) == (2, 9, 3)


def test_percentiles_of_nothing() -> None:
    assert percentiles([]).n == 0
    assert np.isnan(percentiles([]).p50)


@pytest.mark.parametrize("dimension", [2, 8, 20])
def test_local_dimension_of_uniform_data_is_its_dimension(dimension: int) -> None:
    rng = np.random.default_rng(dimension)
    # In a ball around the query the k nearest distances follow u ** (1 / dimension).
    distances = np.sort(rng.random((400, 100)) ** (1 / dimension), axis=1)
    assert np.median(local_dimension(distances)) == pytest.approx(dimension, rel=0.1)


def test_local_dimension_leaves_equal_points_out() -> None:
    assert np.isnan(local_dimension(np.array([[0.0, 0.0, 1.0]]))[0])
    assert np.isnan(local_dimension(np.array([[1.0, 1.0, 1.0]]))[0])
    assert local_dimension(np.array([[0.0, 1.0, np.e]]))[0] == pytest.approx(1.0)


def test_difficulty_sees_the_dimension_inside_a_larger_space() -> None:
    rng = np.random.default_rng(1)
    inner = rng.standard_normal((5_000, 4)).astype(np.float32)
    vectors = inner @ rng.standard_normal((4, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = difficulty(vectors[100:], vectors[:100])
    assert 2 < found.lid < 5  # a sphere in four dimensions
    assert found.contrast > 3
    noise = rng.standard_normal((5_000, 64)).astype(np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    assert difficulty(noise[100:], noise[:100]).contrast < 2


def test_recall_against_brute_force() -> None:
    vectors = np.eye(6, dtype=np.float32)
    query = np.array([0.9, 0.8, 0.7, 0.1, 0.0, 0.0], np.float32)
    (kth,) = truth.kth_similarity(vectors, query[None], 3)
    assert truth.recall(vectors, query, [0, 1, 2], kth, 3, 6) == 1
    assert truth.recall(vectors, query, [2, 3, 4], kth, 3, 6) == pytest.approx(1 / 3)
    assert truth.recall(vectors, query, [], kth, 3, 6) == 0


def test_recall_counts_no_row_twice_and_takes_ties() -> None:
    vectors = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], np.float32)
    query = np.array([1, 0], np.float32)
    (kth,) = truth.kth_similarity(vectors, query[None], 1)
    assert truth.recall(vectors, query, [1], kth, 1, 4) == 1
    (kth,) = truth.kth_similarity(vectors, query[None], 2)
    assert truth.recall(vectors, query, [0, 0], kth, 2, 4) == 0.5


def test_recall_of_a_filter_wants_no_more_than_matches() -> None:
    vectors = np.eye(4, dtype=np.float32)
    query = np.array([0.9, 0.5, 0.1, 0.0], np.float32)
    mask = np.array([False, False, True, False])
    (kth,) = truth.kth_similarity(vectors, query[None], 3, [mask])
    assert truth.recall(vectors, query, [2], kth, 3, 1) == 1
    assert truth.recall(vectors, query, [], kth, 3, 0) == 1
    (kth,) = truth.kth_similarity(vectors, query[None], 1, [mask])
    assert truth.recall(vectors, query, [2], kth, 1, 1) == 1


def test_truth_is_the_same_in_one_block_and_in_many(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = data.clustered(400, 16, 8)
    whole = truth.kth_similarity(dataset.vectors, dataset.queries, 5)
    expected = np.sort(dataset.queries @ dataset.vectors.T, axis=1)[:, -5]
    np.testing.assert_allclose(whole, expected, rtol=1e-5)


def test_evidence_in_a_window_counts_once() -> None:
    found = [frozenset({"a", "b"}), frozenset({"b", "c"})]
    assert evidence_recall(found, ("b", "d")) == 0.5
    assert evidence_recall([], ("b",)) == 0


def test_fixed_arrivals_keep_the_rate() -> None:
    offsets = arrivals(4, 2.5, "fixed", 0)
    np.testing.assert_allclose(offsets, np.arange(10) / 4)
    assert not len(arrivals(0, 5, "fixed", 0))


def test_poisson_arrivals_keep_the_rate_and_cluster() -> None:
    offsets = arrivals(100, 200, "poisson", 3)
    assert len(offsets) == pytest.approx(20_000, rel=0.03)
    assert offsets[-1] < 200
    gaps = np.diff(offsets)
    assert (gaps >= 0).all()
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)
    np.testing.assert_array_equal(offsets, arrivals(100, 200, "poisson", 3))


def test_unknown_arrivals_are_refused() -> None:
    with pytest.raises(ValueError, match="poisson"):
        arrivals(1, 1, "bursty", 0)


def test_a_slow_send_delays_others_but_not_when_they_were_due() -> None:
    now = [100.0]
    sent: list[tuple[int, float, float]] = []

    def send(number: int, due: float) -> None:
        sent.append((number, due, now[0]))
        now[0] += 2.5 if number == 0 else 0.0  # the first takes as long as two others

    def sleep(seconds: float) -> None:
        now[0] += seconds

    keep_to(np.array([0.0, 1.0, 2.0, 4.0]), 100.0, send, lambda: now[0], sleep)
    assert sent == [(0, 100, 100), (1, 101, 102.5), (2, 102, 102.5), (3, 104, 104)]


def test_most_at_once() -> None:
    due = np.array([0.0, 1.0, 2.0, 10.0])
    assert replay.most_at_once(due, np.array([5.0, 5.0, 5.0, 1.0])) == 3
    assert replay.most_at_once(due, np.array([1.0, 1.0, 1.0, 1.0])) == 1
    assert replay.most_at_once(np.empty(0), np.empty(0)) == 0


def test_latencies_by_second_wherever_they_come_from() -> None:
    seconds, p50, p99 = plots.by_second(np.array([3.5, 0.1, 0.2]), np.array([0.3, 0.1, 0.2]))
    assert seconds.tolist() == [0, 3]
    np.testing.assert_allclose(p50, [100, 300])
    np.testing.assert_allclose(p99, [200, 300])


def test_seals_and_merges_are_told_apart() -> None:
    looks = [
        {"a": (1, 11)},
        {"a": (1, 11), "b": (11, 21)},
        {"m": (1, 21)},
        {"n": (1, 31)},  # sealed together with the last segment
        {"n": (1, 31), "o": (31, 41)},
        {"p": (1, 51)},  # sealed and merged between two looks
    ]
    assert mixed.changes([0.0, 1.0, 2.0, 3.0, 4.0, 5.0], looks) == (
        [1.0, 3.0, 4.0, 5.0],
        [2.0, 5.0],
    )


@pytest.mark.parametrize("share", filters.SHARES)
def test_opposed_filters_match_their_share_far_from_the_query(share: float) -> None:
    dataset = data.clustered(20_000, 32, 4)
    far = filters.far_clusters(dataset)
    for i, query in enumerate(dataset.queries):
        node, mask = filters.condition("opposed", share, dataset, far[i])
        assert mask.mean() == pytest.approx(share, rel=0.5)
        sims = dataset.vectors @ query
        assert sims[mask].mean() < sims.mean()
        assert len(node["attributes.cluster"]["in"]) <= data.CLUSTERS / 2


def test_a_recording_survives_being_saved(tmp_path: Path) -> None:
    recording = replay.made_up(data.clustered(50, 8, 5), 2.0)
    replay.save(tmp_path / "r.jsonl", recording)
    read = replay.read(tmp_path / "r.jsonl")
    assert [one.request for one in read] == [one.request for one in recording]
    assert [one.at for one in read] == pytest.approx([one.at for one in recording], abs=1e-6)
    assert [one.at for one in read] == sorted(one.at for one in read)


def test_a_broken_recording_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"at_ms": 0, "call": "Query", "request": {}}\n{"at_ms": 1, "call": "No"}\n')
    with pytest.raises(ValueError, match=r"r\.jsonl:2"):
        replay.read(path)


def test_extremes_are_all_there_and_in_time() -> None:
    dataset = data.clustered(50, 8, 5)
    kinds = Counter(one.kind for one in itertools.islice(replay.extremes(dataset), 10))
    assert set(kinds.values()) == {1}
    played = replay.with_extremes([], dataset, 0.5, 10)
    assert [one.at for one in played] == pytest.approx(np.arange(20) / 2)
    assert {one.refused for one in played if one.kind == "empty filter"} == {True}


def test_items_have_the_sizes_that_are_claimed() -> None:
    item = data.write_item(data.Texts(), 7, np.ones(4, np.float32), marker="zq7x ").memory
    assert len(item.summary) == data.SUMMARY_CHARS
    assert len(item.content) == data.CONTENT_CHARS
    assert item.summary.startswith("zq7x ")
    assert item.metadata.seq == 7


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    report = Report("tiny", "Tiny", tmp_path, "python -m benchmarks tiny")
    report.table("Some", ("a", "b"), [(1, 2)])
    report.verdict("speed", 2.0, 1.0)
    report.verdict("recall", 0.9, 0.8, least=True)
    report.facts["nested"] = {"p": percentiles([0.001]), "plans": Counter(graph=2), "x": np.ones(2)}
    report.save()
    found = json.loads((tmp_path / "tiny.json").read_text())
    assert found["results"]["nested"]["p"]["p50"] == 1
    assert found["results"]["nested"]["plans"] == {"graph": 2}
    assert [v["pass"] for v in found["verdicts"]] == [False, True]
    text = (tmp_path / "tiny.md").read_text()
    assert "| 1 | 2 |" in text and "FAIL: speed" in text and "usearch" in text


def test_ratio() -> None:
    assert ratio(3, 2) == "1.50x"
    assert ratio(3, 0) == "-"
