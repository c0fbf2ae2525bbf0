"""Reads while every segment is built anew in the shadow, against reads alone.

Open loop. Recall@10 against an exact search is asked for before, during and after. The
rebuild is throttled as ``index.rebuild_share`` says and runs to its end, so that its swap is among
what is measured; writes made meanwhile are what tests are for (tests/semantics/test_rebuild.py).
"""

from __future__ import annotations

import argparse
import time
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, load, truth
from benchmarks.asking import query_request
from benchmarks.data import Dataset
from benchmarks.difficulty import difficulty
from benchmarks.load import Job, Running
from benchmarks.report import PERCENTILES, Report, percentiles, ratio
from benchmarks.serving import Server
from benchmarks.session import Session
from benchmarks.workspace import NAMESPACE, rows_found, settings_of
from memsvc.admin.v1 import admin_service_pb2 as admin_pb

LEAD_S: Final = 4.0
SLOWDOWN: Final = 1.5
SAMPLE: Final = 500
K: Final = 10
CHUNK_S: Final = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--rows", type=int)
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--dtype", default="i8")
    parser.add_argument("--rate", type=float, help="reads a second")
    parser.add_argument("--read-seconds", type=float, help="reads alone")
    parser.add_argument("--share", type=float, help="index.rebuild_share (0.2)")


def run(session: Session) -> None:
    """Measures, and writes the report."""
    report = session.report("rebuild", "Reads beside a rebuild")
    dataset = data.clustered(
        session.size("rows", 3_000, 20_000, 100_000),
        session.size("dimension", 64, 1536, 1536),
        2_000,
        0,
    )
    dtype: str = session.args.dtype if hasattr(session.args, "dtype") else "i8"
    made = session.workspace.store(dataset, dtype, report.say)
    store = session.workspace.copy(made, "rebuild")
    share = session.size("share", 1.0, 0.2, 0.2)
    settings = settings_of(dataset, dtype, **{"index.m": 20, "index.rebuild_share": share})
    sample = dataset.queries[:SAMPLE]
    kth = truth.kth_similarity(dataset.vectors, sample, K)
    with Server(store, settings) as server:
        measure = _Measure(session, dataset, server, kth)
        measure.reads(5.0)  # warms the pages
        alone = measure.reads(session.size("read_seconds", 3.0, 20.0, 60.0))
        recalls = {"before": measure.recall()}
        began = time.monotonic()
        server.client.admin.start_rebuild(everything=True)
        chunks, during = [], []
        while (found := server.client.admin.rebuild()).state == admin_pb.Rebuild.STATE_RUNNING:
            report.say(f"rebuild at {found.progress:.0%}")
            chunks.append(measure.reads(3.0 if session.level == "quick" else CHUNK_S))
            during.append(measure.recall())
        spent = time.monotonic() - began
        if found.state != admin_pb.Rebuild.STATE_DONE or found.failures:
            raise RuntimeError(f"the rebuild ended as {found}")
        recalls |= {"during, at least": min(during), "after": measure.recall()}
        after = measure.reads(session.size("read_seconds", 3.0, 20.0, 60.0))
    session.workspace.drop(store)
    _tell(report, dataset, measure.rate, spent, alone, chunks, after)
    report.table("Recall@10", ("when", "recall"), [(k, f"{v:.4f}") for k, v in recalls.items()])
    report.facts.update(recall=recalls, seconds=spent, share=share)
    report.verdict("recall during", recalls["during, at least"], recalls["before"], least=True)
    report.verdict("recall after", recalls["after"], recalls["before"], least=True)
    report.save()


class _Measure:
    """Asks one server."""

    def __init__(
        self, session: Session, dataset: Dataset, server: Server, kth: NDArray[np.float32]
    ) -> None:
        self.rate: float = session.size("rate", 50.0, 50.0, 50.0)
        self._dataset = dataset
        self._server = server
        self._kth = kth
        self._root = session.workspace.root
        self._queries = self._root / "rebuild-queries.npy"
        np.save(self._queries, dataset.queries)
        self._count = 0

    def reads(self, seconds: float) -> dict[str, NDArray[Any]]:
        """Open loop."""
        self._count += 1
        job = Job(
            "reads",
            self._server.address,
            NAMESPACE,
            str(self._root / f"rebuild-load-{self._count}.npz"),
            self.rate,
            seconds,
            queries=str(self._queries),
            seed=self._count,
            start_at=time.time() + LEAD_S,
        )
        return Running(job).result()

    def recall(self) -> float:
        """Mean recall@10 of a sample."""
        found = []
        for query, kth in zip(self._dataset.queries[:SAMPLE], self._kth, strict=True):
            answer = self._server.stub.Query(query_request(NAMESPACE, query, k=K), timeout=60)
            rows = rows_found(answer.items)
            found.append(
                truth.recall(
                    self._dataset.vectors, query, rows, float(kth), K, len(self._dataset.vectors)
                )
            )
        return float(np.mean(found))


def _tell(
    report: Report,
    dataset: Dataset,
    rate: float,
    seconds: float,
    alone: dict[str, NDArray[Any]],
    chunks: list[dict[str, NDArray[Any]]],
    after: dict[str, NDArray[Any]],
) -> None:
    during = {
        name: np.concatenate([chunk[name] for chunk in chunks]) for name in ("spent", "codes")
    }
    base = percentiles(alone["spent"])
    rows = []
    for name, found in (("alone", alone), ("beside the rebuild", during), ("after it", after)):
        spent = percentiles(found["spent"][found["codes"] != load.FAILED])
        bad = int(np.count_nonzero(found["codes"] != load.ANSWERED))
        rows.append((name, *spent.cells(), ratio(spent.p99, base.p99), bad))
        report.facts[f"reads, {name}"] = spent
    report.table(
        f"Reads of {dataset.name} at {rate:.0f}/s, open loop, rebuilt in {seconds:.0f} s; "
        f"{difficulty(dataset.vectors, dataset.queries)}",
        ("phase", *PERCENTILES, "p99 / alone", "degraded or failed"),
        rows,
    )
    measured = percentiles(during["spent"]).p99 / base.p99
    report.verdict("read p99 beside the rebuild / alone", measured, SLOWDOWN)
