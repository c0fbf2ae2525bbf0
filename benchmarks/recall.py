"""Recall and latency against ef_search, for each number format, beside bare usearch.

Clustered vectors and (with --data) those of real conversations, sealed into one segment of a
running server. Truth is an exact float32 search. The bare index has the same m,
ef_construction and dtype, and is asked the same queries in turn with the service.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, plots, truth
from benchmarks.asking import plan_text, plans, query_request, timed
from benchmarks.bare import BareIndex
from benchmarks.data import Dataset
from benchmarks.difficulty import difficulty
from benchmarks.report import PERCENTILES, Percentiles, Report, percentiles, ratio
from benchmarks.serving import Server
from benchmarks.session import Session
from benchmarks.workspace import NAMESPACE, rows_found, settings_of

DTYPES: Final = ("f32", "bf16", "f16", "i8")
EFS: Final = (16, 32, 64, 128, 256, 512)
CUTS: Final = (10, 40)
HEAD: Final = (
    "dtype",
    "ef",
    "recall@10",
    "recall@40",
    *PERCENTILES,
    "bare recall@10",
    "bare recall@40",
    "bare p50 ms",
    "bare p99 ms",
    "p50 / bare p50",
    "plans",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--rows", type=int, action="append", help="may be given several times")
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--queries", type=int)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES)
    parser.add_argument("--no-texts", action="store_true", help="clustered vectors only")


@dataclass(slots=True)
class Point:
    """Figures at one ef: recall@10 and @40, latencies, plans."""

    ef: int
    recall: tuple[float, float]
    spent: Percentiles
    bare_recall: tuple[float, float]
    bare_spent: Percentiles
    plans: Counter[str]
    degraded: int

    def cells(self, dtype: str) -> tuple[object, ...]:
        """A row of the table."""
        return (
            dtype,
            self.ef,
            *(f"{r:.4f}" for r in self.recall),
            *self.spent.cells(),
            *(f"{r:.4f}" for r in self.bare_recall),
            f"{self.bare_spent.p50:.2f}",
            f"{self.bare_spent.p99:.2f}",
            ratio(self.spent.p50, self.bare_spent.p50),
            plan_text(self.plans),
        )


def run(session: Session) -> None:
    """Measures, and writes the report."""
    report = session.report("recall", "Recall and latency against ef_search")
    queries = session.size("queries", 50, 200, 500)
    dimension = session.size("dimension", 64, 1536, 1536)
    rows = session.size("rows", [10_000], [10_000], [10_000, 100_000])
    dtypes = session.size("dtypes", DTYPES, DTYPES, DTYPES)
    report.note(
        "p50, p95, p99: one client, time of a whole call. Bare: usearch in the client's process, "
        "one thread, search alone, its results as they are. k = 40; recall@10 is of the first "
        "ten. Plans: how the service's planner searched the segment, in a sample of 20 "
        '("exact" has recall 1 whatever ef is).'
    )
    for count in rows:
        _dataset(session, report, data.clustered(count, dimension, queries), dtypes)
    if session.data is None:
        report.note("Real texts are left out: no --data and no MEMSVC_DATA.")
    elif not getattr(session.args, "no_texts", False):
        texts = data.conversations(session.data)
        asked = texts.queries[np.random.default_rng(4).permutation(len(texts.queries))[:queries]]
        _dataset(session, report, Dataset(texts.name, texts.vectors, asked), dtypes)
    report.save()


def _dataset(session: Session, report: Report, dataset: Dataset, dtypes: Any) -> None:
    hard = difficulty(dataset.vectors, dataset.queries)
    report.say(f"exact neighbours of {len(dataset.queries)} queries in {dataset.name}")
    kth = np.stack(
        [truth.kth_similarity(dataset.vectors, dataset.queries, k) for k in CUTS], axis=1
    )
    found: dict[str, list[Point]] = {}
    for dtype in dtypes:
        found[dtype] = _dtype(session, report, dataset, dtype, kth)
    report.table(
        f"{dataset.name}: {hard}",
        HEAD,
        [point.cells(dtype) for dtype, points in found.items() for point in points],
    )
    degraded = sum(point.degraded for points in found.values() for point in points)
    if degraded:
        report.note(f"{degraded} answers were degraded and count as they came.")
    report.facts[dataset.name] = {"difficulty": hard, "points": found}
    panels = {
        f"recall@{cut}": [
            plots.Curve(
                dtype,
                bare,
                [
                    (p.ef, (p.bare_recall if bare else p.recall)[i], spent.p50)
                    for p in points
                    for spent in [p.bare_spent if bare else p.spent]
                ],
            )
            for dtype, points in found.items()
            for bare in (False, True)
        ]
        for i, cut in enumerate(CUTS)
    }
    plots.recall_curves(report.plot(f"-{dataset.name}"), f"{dataset.name}", panels)


def _dtype(
    session: Session,
    report: Report,
    dataset: Dataset,
    dtype: str,
    kth: NDArray[np.float32],
) -> list[Point]:
    store = session.workspace.store(dataset, dtype, report.say)
    index = session.workspace.bare(dataset, dtype, report.say)
    with Server(store, settings_of(dataset, dtype)) as server:
        for query in dataset.queries[-20:]:
            timed(server.stub, query_request(NAMESPACE, query))
        points = [_point(server, index, dataset, ef, kth) for ef in EFS]
    report.say(f"{dtype}: " + ", ".join(f"ef {p.ef} {p.recall[0]:.3f}" for p in points))
    session.workspace.drop(store)
    return points


def _point(
    server: Server, index: BareIndex, dataset: Dataset, ef: int, kth: NDArray[np.float32]
) -> Point:
    prepared = index.prepare(dataset.queries)
    spent, bare_spent = [], []
    recalls = np.zeros((2, len(CUTS)))
    degraded = 0
    for i, query in enumerate(dataset.queries):
        answer, seconds = timed(server.stub, query_request(NAMESPACE, query, ef=ef))
        bare_rows, bare_seconds = index.search(prepared[i], CUTS[-1], ef)
        spent.append(seconds)
        bare_spent.append(bare_seconds)
        degraded += answer.degraded.level > 0
        for side, rows in enumerate((rows_found(answer.items), bare_rows)):
            for j, cut in enumerate(CUTS):
                recalls[side, j] += truth.recall(
                    dataset.vectors, query, rows, kth[i, j], cut, len(dataset.vectors)
                )
    recalls /= len(dataset.queries)
    sample = [
        server.stub.Query(query_request(NAMESPACE, query, ef=ef, explain=True))
        for query in dataset.queries[:20]
    ]
    return Point(
        ef,
        (float(recalls[0, 0]), float(recalls[0, 1])),
        percentiles(spent),
        (float(recalls[1, 0]), float(recalls[1, 1])),
        percentiles(bare_spent),
        plans(sample),
        degraded,
    )
