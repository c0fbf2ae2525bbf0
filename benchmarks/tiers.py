"""Hot and cold tiers: a node inside a fraction of the memory that it takes all hot.

Most memories are older than lifecycle.cold_archive_after_days. The same store all hot gives
the memory that is needed with every segment file in memory, and the answers and times to
compare with. The tiered one answers the same queries with warm pages and no limit, and then
inside a control group that holds the process and its page cache to a fraction of that memory,
beginning with nothing in memory. Queries are as likely to be about old memories as there are
old ones, which is the worst case: most real ones are about the last days.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks import data, truth
from benchmarks.asking import query_request, timed
from benchmarks.data import Dataset
from benchmarks.difficulty import difficulty
from benchmarks.limits import MemoryGroup, NoLimits
from benchmarks.report import PERCENTILES, Percentiles, Report, percentiles, ratio
from benchmarks.serving import Server
from benchmarks.session import Session
from benchmarks.workspace import (
    AGENT,
    NAMESPACE,
    NEVER,
    TENANT,
    Workspace,
    drop_caches,
    fill,
    rows_found,
    settings_of,
)

K: Final = 10
OLD_DAYS: Final = 200
COLD_SHARE: Final = 0.8
LIMIT_SHARE: Final = 0.4
OWN_LEAST: Final = 1.25
"""A limit is at least so many times the memory of the process that is of no file."""
WARM_RATIO: Final = 1.5
DTYPE: Final = "i8"
MIB: Final = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--rows", type=int)
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--queries", type=int)
    parser.add_argument("--build-only", action="store_true", help="make the stores (with --keep)")


@dataclass(slots=True)
class Figures:
    """Of one node: times of its answers, their recall, and memory of its group in MB."""

    name: str
    spent: Percentiles
    recall: float
    degraded: int
    used_mb: float
    limit_mb: float | None = None


def run(session: Session) -> None:
    """Measures, and writes the report."""
    report = session.report("tiers", "Hot and cold tiers")
    dataset = data.clustered(
        session.size("rows", 10_000, 25_000, 100_000),
        session.size("dimension", 384, 1536, 1536),
        session.size("queries", 200, 500, 1_000),
    )
    hot, tiered = stores(session.workspace, dataset, report)
    if getattr(session.args, "build_only", False):
        return
    kth = truth.kth_similarity(dataset.vectors, dataset.queries, K)
    found = []
    with _group(report) as group:
        if group is None:
            return
        need, own, figures = _all_hot(dataset, hot, group, kth)
        found.append(figures)
        limit = max(int(LIMIT_SHARE * need), int(OWN_LEAST * own))
        drop_caches(hot)
        found.append(_warm(dataset, tiered, group, kth, need))
        found.append(_limited("tiered", dataset, tiered, group, kth, limit))
        drop_caches(tiered)
        found.append(_limited("all hot", dataset, hot, group, kth, limit))
    _tell(report, dataset, found, need)


@contextmanager
def _group(report: Report) -> Iterator[MemoryGroup | None]:
    """None where no limit can be set, which is said."""
    try:
        group = MemoryGroup("memsvc-tiers")
    except NoLimits as error:
        report.say(f"nothing is measured: no control group can be made: {error}")
        yield None
        return
    with group:
        yield group


def stores(workspace: Workspace, dataset: Dataset, report: Report) -> tuple[Path, Path]:
    """The data directories, all hot and tiered; made when they are not there yet."""
    rows = len(dataset.vectors)
    old = int(COLD_SHARE * rows)
    hot, tiered = (workspace.root / f"{dataset.name}-tiers-{name}" for name in ("hot", "cold"))
    done = workspace.root / f"{dataset.name}-tiers.done"
    if done.exists():
        return hot, tiered
    shutil.rmtree(hot, ignore_errors=True)
    shutil.rmtree(tiered, ignore_errors=True)
    report.say(f"writing {old:,} old and {rows - old:,} new rows of {dataset.dimension}-d")
    unsealed = {**_settings(dataset, cold=False), "storage.seal_rows": NEVER}
    with Server(hot, unsealed, program=("-m", "benchmarks.aged", str(OLD_DAYS))) as server:
        fill(server.client, dataset, 0, old)
    with Server(hot, unsealed) as server:
        fill(server.client, dataset, old, rows)
        report.say("sealing")
        server.settle(merge=True)
    shutil.copytree(hot, tiered)
    with Server(tiered, _settings(dataset, cold=True)) as server:
        report.say(f"moved in {server.settle(merge=True):.0f} s")
        segments = server.client.admin.inspect(TENANT, AGENT)["partition"]["segments"]
        report.say(", ".join(f"{s['tier']} {s['count']} rows" for s in segments))
    done.write_text("")
    return hot, tiered


def _settings(dataset: Dataset, *, cold: bool, **more: object) -> dict[str, object]:
    return settings_of(
        dataset,
        DTYPE,
        **{
            "lifecycle.cold_archive_after_days": 120 if cold else 0,
            "lifecycle.default_ttl_days": 0,
            "lifecycle.compact_cron": "",
            "query.timeout_ms": 60_000,
            **more,
        },
    )


def _all_hot(
    dataset: Dataset, store: Path, group: MemoryGroup, kth: Any
) -> tuple[int, int, Figures]:
    """Bytes of the group with everything in memory, those that are of no file, and figures with
    warm pages."""
    drop_caches(store)
    with Server(store, _settings(dataset, cold=False), within=group) as server:
        server.client.admin.inspect(verify=True)  # reads every segment file
        _asked(server, dataset)
        figures = _figures("all hot, warm", server, dataset, kth, group)
        return group.usage, server.anonymous_bytes(), figures


def _warm(dataset: Dataset, store: Path, group: MemoryGroup, kth: Any, room: int) -> Figures:
    drop_caches(store)
    settings = _settings(dataset, cold=True, **{"storage.cold_budget_bytes": room})
    with Server(store, settings, within=group) as server:
        server.client.admin.inspect(verify=True)
        _asked(server, dataset)
        return _figures("tiered, warm", server, dataset, kth, group)


def _limited(
    name: str, dataset: Dataset, store: Path, group: MemoryGroup, kth: Any, limit: int
) -> Figures:
    """With the limit, from cold files."""
    drop_caches(store)
    group.limit(limit)
    # What is left beside the process, its hot segments and the records it reads.
    budget = max(MIB, limit // 3)
    settings = _settings(dataset, cold=name == "tiered", **{"storage.cold_budget_bytes": budget})
    try:
        with Server(store, settings, within=group) as server:
            figures = _figures(f"{name}, limited", server, dataset, kth, group)
    finally:
        group.limit(None)
    figures.limit_mb = limit / 1e6
    return figures


def _asked(server: Server, dataset: Dataset) -> None:
    for query in dataset.queries:
        server.stub.Query(query_request(NAMESPACE, query, k=K), timeout=60.0)


def _figures(name: str, server: Server, dataset: Dataset, kth: Any, group: MemoryGroup) -> Figures:
    spent, right, degraded = [], 0.0, 0
    rows = len(dataset.vectors)
    for i, query in enumerate(dataset.queries):
        answer, seconds = timed(server.stub, query_request(NAMESPACE, query, k=K))
        spent.append(seconds)
        degraded += answer.degraded.level > 0
        found = rows_found(answer.items)
        right += truth.recall(dataset.vectors, query, found, float(kth[i]), K, rows)
    recall = right / len(dataset.queries)
    return Figures(name, percentiles(spent), recall, degraded, group.usage / 1e6)


def _tell(report: Report, dataset: Dataset, found: list[Figures], need: int) -> None:
    hot, warm, limited, _ = found
    hard = difficulty(dataset.vectors, dataset.queries)
    report.table(
        f"{dataset.name}, {DTYPE}, {COLD_SHARE:.0%} of it cold, k {K}; {hard}",
        ("node", *PERCENTILES, "recall@10", "limit MB", "in use MB", "p50 / all hot"),
        [
            (
                f.name,
                *f.spent.cells(),
                f"{f.recall:.4f}",
                "none" if f.limit_mb is None else f"{f.limit_mb:.0f}",
                f"{f.used_mb:.0f}",
                ratio(f.spent.p50, hot.spent.p50),
            )
            for f in found
        ],
    )
    report.note(
        f"All hot, and every segment file in memory, the control group takes {need / 1e6:.0f} MB: "
        f"process, mapped files and the pages of the database that were read. Limited: "
        f"{limited.limit_mb or 0:.0f} MB, beginning with nothing in memory."
    )
    report.verdict("recall@10, tiered and limited", limited.recall, hot.recall - 0.002, least=True)
    report.verdict("degraded answers, tiered", warm.degraded + limited.degraded, 0)
    report.verdict("warm p50, times all hot", warm.spent.p50 / hot.spent.p50, WARM_RATIO)
    report.facts.update(difficulty=hard, figures=found, need_mb=need / 1e6)
    report.save()
