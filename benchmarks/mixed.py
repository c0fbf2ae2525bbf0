"""Reads at a steady rate, alone and beside writes, with segments sealed and merged meanwhile.

Open loop: reads come by a schedule at 30 % of the measured read capacity, whatever the
answers do, and each latency counts from when the read was due. First alone (the limit), then
beside a burst of writes, then beside a trickle. One item of each acknowledged batch is asked for
at once, by its vector or by a keyword only it has. The generators are processes of their own
but share the machine's cores with the server and its builders.
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks import data, load, plots
from benchmarks.data import Dataset
from benchmarks.difficulty import difficulty
from benchmarks.load import Job, Running
from benchmarks.report import PERCENTILES, Percentiles, Report, percentiles, ratio
from benchmarks.schedule import ARRIVALS
from benchmarks.serving import Server
from benchmarks.session import Session
from benchmarks.workspace import AGENT, NAMESPACE, TENANT, settings_of

LEAD_S: Final = 4.0
"""Time for the generators to start before the first request is due."""
CAPACITY_S: Final = 8.0
WORKERS: Final = 4
SEALS: Final = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--rows", type=int)
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--share", type=float, help="of the read capacity (0.3)")
    parser.add_argument("--rate", type=float, help="reads a second, instead of --share")
    parser.add_argument("--arrivals", choices=ARRIVALS, default="poisson")
    parser.add_argument("--read-seconds", type=float, help="reads alone")
    parser.add_argument("--burst-rate", type=float, help="items a second (500)")
    parser.add_argument("--burst-seconds", type=float)
    parser.add_argument("--trickle-rate", type=float, help="items a second (50)")
    parser.add_argument("--trickle-seconds", type=float)
    parser.add_argument("--write-batch", type=int, help="items a request in the burst (50)")
    parser.add_argument("--seal-rows", type=int, help="storage.seal_rows (default: the server's)")


@dataclass(slots=True)
class Phase:
    """What was measured in one phase; times in seconds of time.time()."""

    name: str
    start: float
    end: float
    reads: dict[str, NDArray[Any]]
    writes: dict[str, NDArray[Any]] | None = None

    @property
    def spent(self) -> NDArray[np.float64]:
        """Latencies of the reads that were answered, seconds."""
        found: NDArray[np.float64] = self.reads["spent"][self.reads["codes"] != load.FAILED]
        return found


class Watcher(threading.Thread):
    """Looks at the partition once a second."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._end = threading.Event()
        self.times: list[float] = []
        self.tails: list[int] = []
        self.segments: list[dict[str, tuple[int, int]]] = []

    def run(self) -> None:
        """Until ``stop``."""
        while not self._end.wait(1.0):
            facts = self._server.client.admin.inspect(TENANT, AGENT)["partition"]
            self.times.append(time.time())
            self.tails.append(facts["tail_rows"])
            self.segments.append({s["name"]: tuple(s["rows"]) for s in facts["segments"]})

    def stop(self) -> None:
        """Ends it."""
        self._end.set()
        self.join()

    def events(self) -> tuple[list[float], list[float]]:
        """When segments were sealed, and when merged."""
        return changes(self.times, self.segments)


def changes(
    times: list[float], segments: list[dict[str, tuple[int, int]]]
) -> tuple[list[float], list[float]]:
    """When segments appeared with rows behind all known ones (sealed), and in place of several
    others (merged). ``segments``: names to [first row, row after the last], at each time."""
    seals, merges = [], []
    for at, before, now in zip(times[1:], segments, segments[1:], strict=False):
        covered = max((high for _, high in before.values()), default=0)
        for name in now.keys() - before.keys():
            low, high = now[name]
            replaced = sum(low <= first < high for first, _ in before.values())
            if high > covered:  # perhaps together with the last segment
                seals.append(at)
            if high <= covered or replaced > 1:
                merges.append(at)
    return seals, merges


@dataclass(slots=True)
class Plan:
    """Sizes of the run."""

    rate: float
    arrivals: str
    dimension: int
    rows: int
    queries: Path
    address: str
    out: Path
    numbers: Any = field(default_factory=itertools.count)

    def job(self, kind: str, rate: float, seconds: float, **more: Any) -> Job:
        """A job with a result file of its own."""
        number = next(self.numbers)
        return Job(
            kind,
            self.address,
            NAMESPACE,
            str(self.out / f"load-{number}.npz"),
            rate,
            seconds,
            queries=str(self.queries),
            seed=100 + number,
            **more,
        )


def run(session: Session) -> None:
    """Measures, and writes the report."""
    report = session.report("mixed", "Reads beside writes")
    dataset = data.clustered(
        session.size("rows", 10_000, 25_000, 100_000),
        session.size("dimension", 64, 1536, 1536),
        2_000,
        2_000,
    )
    dtype = getattr(session.args, "dtype", "bf16")
    made = session.workspace.store(dataset, dtype, report.say)
    store = session.workspace.copy(made, "mixed")
    more: dict[str, object] = {}
    seal_rows = session.size("seal_rows", 1_000, None, None)
    if seal_rows:
        more["storage.seal_rows"] = seal_rows
    queries = session.workspace.root / "mixed-queries.npy"
    np.save(queries, dataset.queries)
    with Server(store, settings_of(dataset, dtype, **more)) as server:
        plan = Plan(
            0.0,
            getattr(session.args, "arrivals", "poisson"),
            dataset.dimension,
            len(dataset.vectors),
            queries,
            server.address,
            session.workspace.root,
        )
        plan.rate = _rate(session, report, plan)
        watcher = Watcher(server)
        watcher.start()
        phases = _phases(session, report, plan)
        watcher.stop()
    session.workspace.drop(store)
    _tell(report, dataset, plan, phases, watcher)
    report.save()


def _rate(session: Session, report: Report, plan: Plan) -> float:
    # The first run warms the pages.
    for seconds in (2.0, CAPACITY_S if session.level != "quick" else 2.0):
        job = plan.job("capacity", 0.0, seconds, workers=WORKERS, start_at=time.time() + LEAD_S)
        found = Running(job).result()
    capacity = len(found["spent"]) / float(found["seconds"][0])
    rate = session.size("rate", None, None, None)
    share = session.size("share", 0.3, 0.3, 0.3)
    chosen: float = rate or share * capacity
    report.facts["capacity"] = {
        "reads_per_second": capacity,
        "clients": WORKERS,
        "spent": percentiles(found["spent"]),
    }
    report.note(
        f"Read capacity: {capacity:,.0f}/s with {WORKERS} clients in a closed loop, a Python "
        f"generator on the same cores. Reads come at {chosen:,.0f}/s ({plan.arrivals})."
    )
    return chosen


def _phases(session: Session, report: Report, plan: Plan) -> list[Phase]:
    batch = session.size("write_batch", 50, 50, 50)
    steps = [
        ("reads alone", session.size("read_seconds", 5.0, 20.0, 60.0), 0.0, 1),
        (
            "burst of writes",
            session.size("burst_seconds", 8.0, 36.0, 60.0),
            session.size("burst_rate", 500.0, 500.0, 500.0),
            batch,
        ),
        (
            "trickle of writes",
            session.size("trickle_seconds", 5.0, 20.0, 300.0),
            session.size("trickle_rate", 50.0, 50.0, 50.0),
            max(1, batch // 10),
        ),
    ]
    phases = []
    first = plan.rows
    for name, seconds, items, size in steps:
        report.say(f"{name}: {seconds:.0f} s, {items:.0f} items/s")
        start = time.time() + LEAD_S
        reading = Running(
            plan.job("reads", plan.rate, seconds, arrivals=plan.arrivals, start_at=start)
        )
        written = None
        if items:
            rate = items / size
            writing = Running(
                plan.job(
                    "writes",
                    rate,
                    seconds,
                    arrivals="fixed",
                    batch=size,
                    dimension=plan.dimension,
                    first=first,
                    start_at=start,
                )
            )
            first += int(rate * seconds + 2) * size
            written = writing.result()
        phases.append(Phase(name, start, start + seconds, reading.result(), written))
    return phases


def _tell(
    report: Report, dataset: Dataset, plan: Plan, phases: list[Phase], watcher: Watcher
) -> None:
    base = percentiles(phases[0].spent)
    found = [(phase, percentiles(phase.spent)) for phase in phases]
    report.table(
        f"Reads of {dataset.name}, open loop at {plan.rate:,.0f}/s; "
        f"{difficulty(dataset.vectors, dataset.queries)}",
        ("phase", *PERCENTILES, "p99 / alone", "degraded", "failed", "sent late p99 ms"),
        [
            (
                phase.name,
                *spent.cells(),
                ratio(spent.p99, base.p99),
                np.count_nonzero(phase.reads["codes"] == load.DEGRADED),
                np.count_nonzero(phase.reads["codes"] == load.FAILED),
                f"{percentiles(phase.reads['late']).p99:.2f}",
            )
            for phase, spent in found
        ],
    )
    _tell_writes(report, phases)
    seals, merges = watcher.events()
    origin = phases[0].start
    report.note(
        f"Sealed {len(seals)} times, merged {len(merges)} times; the tail had at most "
        f"{max(watcher.tails)} rows, the partition at most "
        f'{max(map(len, watcher.segments))} segments. "Sent late" is what the generator itself '
        "adds to a latency: it shares the cores."
    )
    report.verdict("seals during the run", len(seals), SEALS, least=True)
    worst = max(percentiles(p.spent).p99 for p in phases[1:])
    report.note(
        f"Read p99 beside writes at worst {worst:.2f} ms, alone {base.p99:.2f} ms: "
        f"{ratio(worst, base.p99)}."
    )
    line = plots.Timeline(
        (
            np.concatenate([p.reads["due"] for p in phases]) - origin,
            np.concatenate([p.reads["spent"] for p in phases]),
        ),
        (
            np.array(watcher.times) - origin,
            np.array(watcher.tails, np.float64),
            np.array([len(s) for s in watcher.segments], np.float64),
        ),
        [(p.start - origin, p.end - origin, p.name) for p in phases],
        [at - origin for at in seals],
        [at - origin for at in merges],
    )
    plots.timeline(report.plot(), f"{dataset.name}, reads at {plan.rate:,.0f}/s", line)
    seconds, p50, p99 = plots.by_second(*line.reads)
    report.facts.update(
        rate=plan.rate,
        phases={phase.name: spent for phase, spent in found},
        seals=line.seals,
        merges=line.merges,
        tail={"seconds": line.tails[0], "rows": line.tails[1], "segments": line.tails[2]},
        by_second={"second": seconds, "p50_ms": p50, "p99_ms": p99},
    )


def _tell_writes(report: Report, phases: list[Phase]) -> None:
    rows: list[tuple[object, ...]] = []
    checked = missing = failed = 0
    facts: dict[str, Percentiles] = {}
    for phase in phases:
        if phase.writes is None:
            continue
        ok = phase.writes["codes"] == load.ANSWERED
        spent = percentiles(phase.writes["spent"][ok])
        facts[phase.name] = spent
        seen, lost, skipped = map(int, phase.writes["checks"])
        checked, missing = checked + seen, missing + lost
        failed += int(np.count_nonzero(~ok))
        rows.append((phase.name, *spent.cells(), seen, lost, skipped))
    report.table(
        "Writes, from when each batch was due",
        ("phase", *PERCENTILES, "items asked for", "not found", "not checked"),
        rows,
    )
    report.facts["writes"] = facts
    report.verdict("writes that failed", failed, 0)
    report.verdict(f"of {checked} items, asked for after their acknowledgement, lost", missing, 0)
