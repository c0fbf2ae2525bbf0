"""Latency of one query against what its parts cost bare: a usearch search plus a gRPC echo.

One client, k 40, summaries and metadata returned, vectors as raw bytes (and, beside it, as
repeated float). Service, bare search and echo take turns, query by query, so that all see
the same machine. The bound: p50 <= 1.5 x (bare search p50 + echo p50).
"""

from __future__ import annotations

import argparse
from typing import Final

from benchmarks import data
from benchmarks.asking import plan_text, plans, query_request, timed
from benchmarks.difficulty import difficulty
from benchmarks.echo import EchoServer
from benchmarks.report import PERCENTILES, percentiles, ratio
from benchmarks.serving import Server, free_port
from benchmarks.session import Session
from benchmarks.workspace import NAMESPACE, settings_of
from memsvc.v1 import memory_service_pb2 as pb

BOUND: Final = 1.5
K: Final = 40
WARM: Final = 100
PARTS: Final = ("service", "bare search", "bare echo")
FLOATS: Final = ("service, floats", "bare echo, floats")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--rows", type=int, help="in sealed segments")
    parser.add_argument("--tail", type=int, help="rows beside them")
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--queries", type=int, help="all different")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--ef", type=int, default=64)
    parser.add_argument("--layout", choices=("merged", "natural"), default="merged")


def run(session: Session) -> None:
    """Measures, and writes the report."""
    report = session.report("query", "One query against its parts")
    dtype = getattr(session.args, "dtype", "bf16")
    ef = getattr(session.args, "ef", 64)
    layout = getattr(session.args, "layout", "merged")
    queries = session.size("queries", 200, 1_000, 2_000)
    dataset = data.clustered(
        session.size("rows", 10_000, 25_000, 100_000),
        session.size("dimension", 64, 1536, 1536),
        queries + WARM,
        session.size("tail", 2_000, 2_000, 2_000),
    )
    hard = difficulty(dataset.vectors, dataset.queries)
    store = session.workspace.store(dataset, dtype, report.say, layout=layout)
    index = session.workspace.bare(dataset, dtype, report.say)
    prepared = index.prepare(dataset.queries)
    spent: dict[str, list[float]] = {name: [] for name in (*PARTS, *FLOATS)}
    with Server(store, settings_of(dataset, dtype)) as server:
        requests = [query_request(NAMESPACE, q, k=K, ef=ef) for q in dataset.queries]
        floats = [query_request(NAMESPACE, q, k=K, ef=ef, numbers=True) for q in dataset.queries]
        # The first ones may run out of time while the files are read from a cold disk.
        answers = (timed(server.stub, request)[0] for request in requests)
        answer = next(found for found in answers if not _lacking(found))
        size = answer.ByteSize()
        report.say(f"answers of {len(answer.items)} hits and {size:,} bytes")
        with EchoServer(f"127.0.0.1:{free_port()}", answer) as echo:
            degraded = 0
            for i in range(len(requests)):
                # Another order each time: who comes second finds warmer caches.
                for name in (PARTS * 2)[i % 3 : i % 3 + 3]:
                    if name == "bare search":
                        _, seconds = index.search(prepared[i], K, ef)
                    else:
                        stub = server.stub if name == "service" else echo.stub
                        found, seconds = timed(stub, requests[i])
                        degraded += name == "service" and _lacking(found)
                    if i >= WARM:
                        spent[name].append(seconds)
            for i in range(WARM, min(len(floats), WARM + 500)):
                spent[FLOATS[0]].append(timed(server.stub, floats[i])[1])
                spent[FLOATS[1]].append(timed(echo.stub, floats[i])[1])
        sample = [
            server.stub.Query(query_request(NAMESPACE, q, k=K, ef=ef, explain=True))
            for q in dataset.queries[:20]
        ]
    figures = {name: percentiles(seconds) for name, seconds in spent.items()}
    partition = session.workspace.facts(store)["partition"]
    report.table(
        f"{layout}: {len(partition['segments'])} segment(s), tail {partition['tail_rows']} rows, "
        f"{dtype}, ef {ef}, k {K}; {hard}",
        ("what", *PERCENTILES),
        [(name, *found.cells()) for name, found in figures.items()],
    )
    parts: dict[str, list[int]] = {}
    for one in sample:
        for part in one.explain:
            parts.setdefault("tail" if part.part == "tail" else "segments", []).append(
                part.elapsed_us
            )
    inside = ", ".join(f"{name} {sum(us) / len(sample):.0f} us" for name, us in parts.items())
    report.note(
        f"Inside the service, on average of {len(sample)}: {inside}; plans: "
        f"{plan_text(plans(sample))}. Degraded or short answers: {degraded}."
    )
    limit = figures["bare search"].p50 + figures["bare echo"].p50
    report.note(
        f"p50 / (bare search p50 + bare echo p50) = {figures['service'].p50:.2f} / "
        f"({figures['bare search'].p50:.2f} + {figures['bare echo'].p50:.2f}) = "
        f"{ratio(figures['service'].p50, limit)}"
    )
    report.verdict("service p50 ms, bound 1.5 x the parts", figures["service"].p50, BOUND * limit)
    report.facts.update(
        difficulty=hard,
        layout=layout,
        partition=partition,
        figures=figures,
        limit_ms=limit,
        answer_bytes=size,
        degraded=degraded,
        inside_us=parts,
    )
    report.save()


def _lacking(answer: pb.QueryResponse) -> bool:
    return answer.degraded.level > 0 or len(answer.items) < K
