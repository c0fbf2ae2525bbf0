"""A primary with two replicas: reads at every node beside a steady stream of writes.

Open loop at each node and for the writes. Lag is measured from outside: the primary is asked for
its position, and a replica for an answer at that position; the time until it answers, a whole
query among it, counts. What the replicas tell of themselves stands beside it.
At the end the records of the three are compared to the byte, and their answers one by one. Seven
processes (three nodes, three readers, a writer) and the builders share the machine's cores.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, load
from benchmarks.asking import query_request
from benchmarks.data import Dataset, Texts
from benchmarks.difficulty import difficulty
from benchmarks.load import Job, Running
from benchmarks.report import PERCENTILES, Report, percentiles
from benchmarks.serving import Server, free_port
from benchmarks.session import Session
from benchmarks.workspace import NAMESPACE, fill, settings_of
from memsvc.store import feed
from memsvc.store.store import Store
from memsvc.v1 import memory_service_pb2 as pb

LEAD_S: Final = 6.0
LOOK_S: Final = 0.05
ASKED: Final = 1_000
BATCH: Final = 20
LAG_MS: Final = 250.0
OVERLAP: Final = 0.99


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--rows", type=int, help="memories before the load begins")
    parser.add_argument("--seconds", type=float, help="of load")
    parser.add_argument("--write-rate", type=float, help="items a second")
    parser.add_argument("--read-rate", type=float, help="reads a second at each node")


def run(session: Session) -> None:
    """Measures, and writes the report."""
    report = session.report("replicas", "A primary and two replicas under load")
    dataset = data.clustered(
        session.size("rows", 1_000, 5_000, 5_000),
        session.size("dimension", 64, 128, 128),
        ASKED,
        0,
    )
    queries = session.workspace.root / "replicas-queries.npy"
    np.save(queries, dataset.queries)
    with _group(session, dataset) as servers:
        fill(servers[0].client, dataset, 0, len(dataset.vectors))
        _level(servers)
        lags = [_Lags(servers[0], replica, dataset) for replica in servers[1:]]
        for lag in lags:
            lag.start()
        reads, written = _load(session, report, servers, queries, dataset)
        for lag in lags:
            lag.stop()
        _tell_load(report, dataset, reads, written, lags)
        report.say("waiting until all are level")
        _level(servers)
        for server in servers:
            server.settle()
        _compare_answers(report, dataset, servers)
    _compare_records(report, [server.data_dir for server in servers])
    for server in servers:
        session.workspace.drop(server.data_dir)
    report.save()


@contextlib.contextmanager
def _group(session: Session, dataset: Dataset) -> Iterator[list[Server]]:
    root = session.workspace.root
    listen = f"127.0.0.1:{free_port()}"
    settings = settings_of(dataset, "i8")
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                Server(
                    root / "replicas-primary",
                    {**settings, "node.role": "primary", "replication.listen": listen},
                )
            )
        ]
        for name in ("replicas-one", "replicas-two"):
            more = {**settings, "node.role": "replica", "replication.primary": listen}
            servers.append(stack.enter_context(Server(root / name, more)))
        yield servers


def _level(servers: list[Server]) -> None:
    while len({server.client.health().position for server in servers}) > 1:
        for server in servers:
            server.check()
        time.sleep(0.1)


class _Lags(threading.Thread):
    """Measures the lag of a replica, again and again: seconds, and what it tells itself, in ms."""

    def __init__(self, primary: Server, replica: Server, dataset: Dataset) -> None:
        super().__init__(daemon=True)
        self._primary = primary
        self._replica = replica
        self._vector = dataset.queries[0]
        self._end = threading.Event()
        self.measured: list[float] = []
        self.told: list[int] = []

    def run(self) -> None:
        while not self._end.wait(LOOK_S):
            position = self._primary.stub.Health(pb.HealthRequest(), timeout=10).position
            request = query_request(NAMESPACE, self._vector, k=1)
            request.min_position = position
            began = time.perf_counter()
            self._replica.stub.Query(request, timeout=30)
            self.measured.append(time.perf_counter() - began)
            self.told.append(self._replica.stub.Health(pb.HealthRequest(), timeout=10).lag_ms)

    def stop(self) -> None:
        """Ends it."""
        self._end.set()
        self.join()


def _load(
    session: Session, report: Report, servers: list[Server], queries: Path, dataset: Dataset
) -> tuple[list[dict[str, NDArray[Any]]], dict[str, NDArray[Any]]]:
    seconds = session.size("seconds", 5.0, 30.0, 180.0)
    items = session.size("write_rate", 200.0, 1_000.0, 1_000.0)
    rate = session.size("read_rate", 20.0, 200.0, 200.0)
    report.say(f"{seconds:.0f} s of {items:.0f} items/s and {rate:.0f} reads/s at each node")
    start = time.time() + LEAD_S

    def job(kind: str, server: Server, number: int, at: float, **more: Any) -> Running:
        out = str(session.workspace.root / f"replicas-load-{number}.npz")
        return Running(
            Job(kind, server.address, NAMESPACE, out, at, seconds, start_at=start, **more)
        )

    reading = [
        job("reads", server, number, rate, queries=str(queries), seed=number)
        for number, server in enumerate(servers)
    ]
    writing = job(
        "writes",
        servers[0],
        len(servers),
        items / BATCH,
        arrivals="fixed",
        batch=BATCH,
        dimension=dataset.dimension,
        first=len(dataset.vectors),
    )
    written = writing.result()
    return [running.result() for running in reading], written


def _tell_load(
    report: Report,
    dataset: Dataset,
    reads: list[dict[str, NDArray[Any]]],
    written: dict[str, NDArray[Any]],
    lags: list[_Lags],
) -> None:
    names = ("primary", "replica one", "replica two")
    rows: list[tuple[object, ...]] = []
    failed = 0
    for name, found in zip(names, reads, strict=True):
        spent = percentiles(found["spent"][found["codes"] != load.FAILED])
        lost = int(np.count_nonzero(found["codes"] == load.FAILED))
        failed += lost
        rows.append((name, *spent.cells(), np.count_nonzero(found["codes"] == load.DEGRADED), lost))
        report.facts[f"reads, {name}"] = spent
    report.table(
        f"Reads, open loop; {difficulty(dataset.vectors, dataset.queries)}",
        ("node", *PERCENTILES, "degraded", "failed"),
        rows,
    )
    spent = percentiles(written["spent"][written["codes"] == load.ANSWERED])
    checked, missing, skipped = map(int, written["checks"])
    report.table(
        f"Writes of {BATCH} items",
        (*PERCENTILES, "failed", "asked for at once", "not found", "not asked for"),
        [
            (
                *spent.cells(),
                np.count_nonzero(written["codes"] != load.ANSWERED),
                checked,
                missing,
                skipped,
            )
        ],
    )
    measured = [percentiles(lag.measured) for lag in lags]
    report.table(
        "Lag",
        ("node", *PERCENTILES, "most told, ms"),
        [
            (name, *spent.cells(), max(lag.told))
            for name, spent, lag in zip(names[1:], measured, lags, strict=True)
        ],
    )
    report.facts.update(lag=measured, writes=spent)
    report.verdict("failed reads", failed, 0)
    report.verdict("lag p99, ms", max(lag.p99 for lag in measured), LAG_MS)
    report.verdict("acknowledged and not found", missing, 0)


def _compare_answers(report: Report, dataset: Dataset, servers: list[Server]) -> None:
    texts = Texts()
    kinds = {
        "vectors": [query_request(NAMESPACE, q, k=10) for q in dataset.queries],
        "vectors among 1 %, exact": [
            query_request(NAMESPACE, q, k=10, filters={"seq": {"lt": 1_000}})
            for q in dataset.queries
        ],
        "keywords": [
            query_request(NAMESPACE, text=texts.cut(20, n), mode=pb.MODE_KEYWORD, k=10)
            for n in range(ASKED)
        ],
    }
    rows = []
    for kind, requests in kinds.items():
        ids = [
            [[hit.id for hit in server.stub.Query(q, timeout=60).items] for q in requests]
            for server in servers
        ]
        for name, found in zip(("replica one", "replica two"), ids[1:], strict=True):
            same = sum(a == b for a, b in zip(ids[0], found, strict=True))
            overlap = float(
                np.mean(
                    [
                        len(set(a) & set(b)) / max(1, len(a))
                        for a, b in zip(ids[0], found, strict=True)
                    ]
                )
            )
            rows.append((kind, name, len(requests), same, f"{overlap:.4f}"))
            if kind == "vectors":
                report.verdict(f"overlap@10, {name}", overlap, OVERLAP, least=True)
            else:
                report.verdict(
                    f"identical answers, {kind}, {name}", same, len(requests), least=True
                )
    report.table(
        "The same questions to all: replicas against the primary",
        ("questions", "node", "asked", "identical", "overlap@10"),
        rows,
    )


def _compare_records(report: Report, folders: list[Path]) -> None:
    digests = set()
    for folder in folders:
        store = Store(folder, readonly=True)
        with store.read() as snapshot:
            found = feed.standing(snapshot)
            digests.add((found.position, found.digest))
            report.say(f"{folder.name}: position {found.position}, {snapshot.memories} memories")
        store.close()
    report.verdict("different logs at the end", len(digests) - 1, 0)
