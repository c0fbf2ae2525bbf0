"""Time from launching the process to the first correct answer, and private memory.

Warm: files are in the page cache. Cold: the kernel was told to forget them. The limits, in
the same run: starting the interpreter and importing the server, and what usearch alone takes
to load the same index into memory.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks import data
from benchmarks.asking import query_request
from benchmarks.data import Dataset
from benchmarks.difficulty import difficulty
from benchmarks.report import percentiles, ratio
from benchmarks.serving import START_SECONDS, Server, ServerFailed, open_stub
from benchmarks.session import Session
from benchmarks.workspace import NAMESPACE, drop_caches, settings_of

_LOAD = """
import sys, time, psutil
from usearch.index import Index
before = psutil.Process().memory_full_info().uss
began = time.perf_counter()
index = Index.restore(sys.argv[1])
assert len(index)
print(time.perf_counter() - began, (psutil.Process().memory_full_info().uss - before) / 1e6)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--rows", type=int)
    parser.add_argument("--tail", type=int)
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--times", type=int, help="starts of each kind")
    parser.add_argument("--queries", type=int, help="before memory is looked at again")


def run(session: Session) -> None:
    """Measures, and writes the report."""
    report = session.report("startup", "Start-up and memory")
    dtype = getattr(session.args, "dtype", "bf16")
    times = session.size("times", 2, 3, 5)
    dataset = data.clustered(
        session.size("rows", 10_000, 25_000, 100_000),
        session.size("dimension", 64, 1536, 1536),
        session.size("queries", 50, 500, 1_000),
        session.size("tail", 2_000, 2_000, 2_000),
    )
    store = session.workspace.store(dataset, dtype, report.say)
    session.workspace.bare(dataset, dtype, report.say)
    bare_path = session.workspace.bare_path(dataset, dtype)
    spent: dict[str, list[float]] = {}
    memory: dict[str, dict[str, float]] = {}
    for kind in ("warm", "cold"):
        for _ in range(times):
            if kind == "cold":
                drop_caches(store)
            _once(dataset, store, dtype, kind, spent, memory)
        report.say(f"{kind}: first correct answer after {min(spent[kind]):.2f} s at best")
    imports = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import memsvc.serving"], check=True)
        imports.append(time.perf_counter() - began)
    answer = subprocess.run(
        [sys.executable, "-c", _LOAD, str(bare_path)], check=True, capture_output=True, text=True
    )
    load_seconds, load_mb = map(float, answer.stdout.split())
    limit = percentiles(imports)
    figures = {name: percentiles(seconds) for name, seconds in spent.items()}
    hard = difficulty(dataset.vectors, dataset.queries)
    report.table(
        f"Launch to first correct answer, {dataset.name}, {dtype}; {hard}",
        ("start", "median ms", "worst ms", "n", "interpreter and imports ms", "ratio"),
        [
            (
                name,
                f"{f.p50:.0f}",
                f"{f.worst:.0f}",
                f.n,
                f"{limit.p50:.0f}",
                ratio(f.p50, limit.p50),
            )
            for name, f in figures.items()
        ],
    )
    raw_mb = dataset.vectors.nbytes / 1e6
    report.table(
        "Memory of the server and its readers",
        ("when", "private MB", "resident MB (with mapped files)", "private / float32 vectors"),
        [
            (
                when,
                f"{m['private_mb']:.0f}",
                f"{m['resident_mb']:.0f}",
                ratio(m["private_mb"], raw_mb),
            )
            for when, m in memory.items()
        ],
    )
    report.note(
        f"The float32 vectors alone are {raw_mb:.0f} MB. Bare usearch loads the same index in "
        f"{load_seconds * 1e3:.0f} ms into {load_mb:.0f} MB of private memory; the service maps "
        "it instead."
    )
    report.facts.update(
        difficulty=hard,
        start=figures,
        imports=limit,
        memory=memory,
        usearch_load={"ms": load_seconds * 1e3, "private_mb": load_mb},
        vectors_mb=raw_mb,
    )
    report.save()


def _once(
    dataset: Dataset,
    store: Path,
    dtype: str,
    kind: str,
    spent: dict[str, list[float]],
    memory: dict[str, dict[str, float]],
) -> None:
    with Server(store, settings_of(dataset, dtype), wait=False) as server:
        row = int(np.random.default_rng().integers(0, len(dataset.vectors) - dataset.tail))
        request = query_request(NAMESPACE, dataset.vectors[row], k=10)
        until = time.perf_counter() + START_SECONDS
        while not _correct(server, request, row):
            server.check()
            if time.perf_counter() > until:
                raise ServerFailed("no correct answer in time")
        spent.setdefault(kind, []).append(time.perf_counter() - server.launched)
        memory[f"{kind}, after the first answer"] = server.memory()
        for query in dataset.queries:
            server.stub.Query(query_request(NAMESPACE, query), timeout=60.0)
        memory[f"{kind}, after {len(dataset.queries)} queries"] = server.memory()


def _correct(server: Server, request: Any, row: int) -> bool:
    # Its own short-lived channel: one that failed to connect waits a second before it tries.
    channel, stub = open_stub(server.address)
    try:
        answer = stub.Query(request, timeout=30.0)
    except grpc.RpcError:
        time.sleep(0.01)
        return False
    finally:
        channel.close()
    return bool(answer.items) and answer.items[0].metadata.seq == row
