"""Filters of every selectivity, independent of the query and opposed to it.

Independent: a random number of each row is below the share. Opposed: only rows of the
clusters farthest from the query match, so a graph search from the query never meets them.
Answers must be full while enough rows match, and right; the limit is the unfiltered query,
asked in turn with the filtered one.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, truth
from benchmarks.asking import plan_text, plans, query_request, timed
from benchmarks.data import CLUSTERS, Dataset
from benchmarks.difficulty import difficulty
from benchmarks.report import PERCENTILES, Percentiles, Report, percentiles, ratio
from benchmarks.serving import Server
from benchmarks.session import Session
from benchmarks.workspace import NAMESPACE, rows_found, settings_of

SHARES: Final = (0.5, 0.1, 0.05, 0.03, 0.01, 0.001)
K: Final = 40
RATIOS: Final = {"independent": 3.0, "opposed": 6.0}
"""Kinds of filter, and how many times slower than the unfiltered query each may be."""
Mask = NDArray[np.bool_]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--rows", type=int)
    parser.add_argument("--tail", type=int)
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--queries", type=int, help="for each kind and share")
    parser.add_argument("--dtype", default="bf16")


@dataclass(slots=True)
class Figures:
    """Of one kind of filter and share. ``matches``: median number of matching rows;
    ``underfilled``: answers shorter than min(k, matches); ``wrong``: hits that do not match."""

    kind: str
    share: float
    matches: int
    underfilled: int
    wrong: int
    recall: float
    spent: Percentiles
    unfiltered: Percentiles
    scan: Percentiles
    plans: Counter[str]
    degraded: int


def far_clusters(dataset: Dataset) -> NDArray[np.int64]:
    """For each query all clusters, the least similar first, shape (queries, clusters)."""
    centres = np.stack(
        [dataset.vectors[dataset.labels == label].sum(axis=0) for label in range(CLUSTERS)]
    )
    norms = np.linalg.norm(centres, axis=1, keepdims=True)
    return np.argsort(dataset.queries @ (centres / np.maximum(norms, 1e-9)).T, axis=1)


def condition(
    kind: str, share: float, dataset: Dataset, farthest: NDArray[np.int64]
) -> tuple[dict[str, Any], Mask]:
    """A filter that about ``share`` of the rows pass, and which ones they are."""
    if kind == "opposed":
        count = math.ceil(share * CLUSTERS - 1e-9)
        chosen = farthest[:count]
        within = share * CLUSTERS / count
        mask = np.isin(dataset.labels, chosen)
        node: dict[str, Any] = {"attributes.cluster": {"in": chosen.tolist()}}
        if within < 1:
            mask = mask & (dataset.shares < within)
            node["attributes.share"] = {"lt": within}
        return node, mask
    return {"attributes.share": {"lt": share}}, dataset.shares < share


def run(session: Session) -> None:
    """Measures, and writes the report."""
    report = session.report("filters", "Filters")
    dtype = getattr(session.args, "dtype", "bf16")
    dataset = data.clustered(
        session.size("rows", 10_000, 25_000, 100_000),
        session.size("dimension", 64, 1536, 1536),
        session.size("queries", 20, 60, 200),
        session.size("tail", 2_000, 2_000, 2_000),
    )
    hard = difficulty(dataset.vectors, dataset.queries)
    far = far_clusters(dataset)
    store = session.workspace.store(dataset, dtype, report.say)
    found = []
    with Server(store, settings_of(dataset, dtype)) as server:
        for query in dataset.queries:
            timed(server.stub, query_request(NAMESPACE, query, k=K))
        for kind in RATIOS:
            for share in SHARES:
                found.append(_figures(server, dataset, kind, share, far))
                report.say(f"{kind}, {share:.1%}: p50 {found[-1].spent.p50:.2f} ms")
    _tell(report, dataset, str(hard), found)
    report.facts.update(difficulty=hard, figures=found)
    report.save()


def _tell(report: Report, dataset: Dataset, hard: str, found: list[Figures]) -> None:
    report.table(
        f"Filters over {dataset.name}, k {K}; {hard}",
        (
            "filter",
            "share",
            "matches",
            "under-filled",
            "recall@10",
            *PERCENTILES,
            "unfiltered p50 ms",
            "ratio",
            "numpy scan p50 ms",
            "plans",
        ),
        [
            (
                f.kind,
                f"{f.share:.1%}",
                f.matches,
                f.underfilled,
                f"{f.recall:.4f}",
                *f.spent.cells(),
                f"{f.unfiltered.p50:.2f}",
                ratio(f.spent.p50, f.unfiltered.p50),
                f"{f.scan.p50:.2f}",
                plan_text(f.plans),
            )
            for f in found
        ],
    )
    report.note(
        "Matches: median. Under-filled: answers with fewer than min(k, matching rows) hits. "
        "Numpy scan: float32 products with the matching rows, gathered, one thread, in the "
        "client's process, of a sample. Plans: for the sealed segment, of a sample."
    )
    report.verdict("under-filled answers", sum(f.underfilled for f in found), 0)
    report.verdict("hits that do not match", sum(f.wrong for f in found), 0)
    report.verdict("degraded answers", sum(f.degraded for f in found), 0)
    report.verdict("least recall@10", min(f.recall for f in found), 0.99, least=True)
    for kind, bound in RATIOS.items():
        slowest = max(f.spent.p50 / f.unfiltered.p50 for f in found if f.kind == kind)
        report.verdict(f"{kind}: slowest p50, times the unfiltered one", slowest, bound)
    rarest = [f for f in found if f.share == min(SHARES)]
    for f in rarest:
        part = f.spent.p50 / f.unfiltered.p50
        report.verdict(f"{f.kind}, {f.share:.1%}: p50, times the unfiltered one", part, 1.0)


def _figures(
    server: Server,
    dataset: Dataset,
    kind: str,
    share: float,
    far: NDArray[np.int64],
) -> Figures:
    queries = dataset.queries
    chosen = [condition(kind, share, dataset, far[i]) for i in range(len(queries))]
    masks = [mask for _, mask in chosen]
    kth = truth.kth_similarity(dataset.vectors, queries, 10, masks)
    spent, unfiltered, scan = [], [], []
    underfilled = wrong = degraded = 0
    recalls = 0.0
    for i, query in enumerate(queries):
        node, mask = chosen[i]
        answer, seconds = timed(server.stub, query_request(NAMESPACE, query, k=K, filters=node))
        _, plain = timed(server.stub, query_request(NAMESPACE, query, k=K))
        spent.append(seconds)
        unfiltered.append(plain)
        matches = int(np.count_nonzero(mask))
        rows = rows_found(answer.items)
        underfilled += len(set(rows)) < min(K, matches)
        wrong += sum(not mask[row] for row in rows)
        degraded += answer.degraded.level > 0
        recalls += truth.recall(dataset.vectors, query, rows, float(kth[i]), 10, matches)
        if i < 20:
            scan.append(_numpy_scan(dataset, query, mask))
    sample = [
        server.stub.Query(query_request(NAMESPACE, query, k=K, filters=chosen[i][0], explain=True))
        for i, query in enumerate(queries[:20])
    ]
    return Figures(
        kind,
        share,
        int(np.median([np.count_nonzero(mask) for mask in masks])),
        underfilled,
        wrong,
        recalls / len(queries),
        percentiles(spent),
        percentiles(unfiltered),
        percentiles(scan),
        plans(sample),
        degraded,
    )


def _numpy_scan(dataset: Dataset, query: NDArray[np.float32], mask: Mask) -> float:
    """Seconds to score the matching rows and take the best, without any service."""
    began = time.perf_counter()
    rows = np.flatnonzero(mask)
    sims = dataset.vectors[rows] @ query
    if len(rows) > K:
        np.argpartition(sims, len(sims) - K)
    return time.perf_counter() - began
