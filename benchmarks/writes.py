"""Items written a second, by batch size, sync mode and clients, beside bare LMDB.

Each item: a 1536-d vector, a 120-character summary, 800 characters of content, a dedup key.
Requests are built and serialised beforehand, so that the client costs little. The limit is
LMDB alone: the same bytes in the same groups, with fsync, on the same file system, in the
same run. A fresh server for each line. What was acknowledged must be found at once.
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import grpc
import numpy as np

from benchmarks import bare
from benchmarks.data import Clustered, Texts, write_item
from benchmarks.report import PERCENTILES, Percentiles, percentiles, ratio
from benchmarks.serving import CHANNEL_OPTIONS, Server, connect
from benchmarks.session import Session
from benchmarks.workspace import NAMESPACE, TENANT
from memsvc.client.messages import namespace_message
from memsvc.v1 import memory_service_pb2 as pb

BATCHES: Final = (1, 10, 100, 500)
CLIENTS: Final = (1, 8)
SYNCS: Final = ("always", "every_1000ms")
ITEMS: Final = {1: 400, 10: 4_000, 100: 12_000, 500: 16_000}
"""Items of a line at the default level, by batch size: some seconds each."""
CHECKED: Final = 64
ASKED_AT_ONCE: Final = 16
GIVE_UP: Final = 100
LATE_S: Final = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--batches", type=int, nargs="+")
    parser.add_argument("--clients", type=int, nargs="+")
    parser.add_argument("--syncs", nargs="+", choices=SYNCS)
    parser.add_argument("--scale", type=float, help="how many times the items of the default")


@dataclass(slots=True)
class Line:
    """One setting. Rates in items a second; ``refused`` requests met RESOURCE_EXHAUSTED and
    were sent again; ``missing`` of ``checked`` items were not found right after the last
    answer, and the last of those came ``late_ms`` later (NaN: never). ``out_of_time``: checks
    that were answered empty and marked because time ran out, and repeated."""

    sync: str
    batch: int
    clients: int
    items: int
    rate: float
    spent: Percentiles
    bare_rate: float
    refused: int
    checked: int
    missing: int
    late_ms: float
    out_of_time: int


class Requests:
    """Serialised requests and the vectors in them."""

    def __init__(self, dimension: int, most: int) -> None:
        self._texts = Texts()
        source = Clustered(dimension)
        self.vectors, _ = source.draw(most, np.random.default_rng(11))
        self.payloads = [
            write_item(self._texts, row, self.vectors[row], dedup_key=f"s:{row}")
            for row in range(most)
        ]

    def build(self, agent: str, batch: int, items: int) -> list[bytes]:
        """The first ``items`` in requests of ``batch``."""
        namespace = namespace_message(f"{TENANT}/{agent}")
        return [
            pb.WriteRequest(
                namespace=namespace, items=self.payloads[low : min(low + batch, items)]
            ).SerializeToString()
            for low in range(0, items, batch)
        ]


def run(session: Session) -> None:
    """Measures, and writes the report."""
    report = session.report("writes", "Writes")
    scale = session.size("scale", 0.05, 0.5, 2.0)
    dimension = session.size("dimension", 1536, 1536, 1536)
    batches = session.size("batches", BATCHES, BATCHES, BATCHES)
    clients = session.size("clients", CLIENTS, CLIENTS, CLIENTS)
    syncs = session.size("syncs", SYNCS, SYNCS, SYNCS)
    wanted = {b: max(8 * b, int(ITEMS.get(b, 20 * b) * scale) // b * b) for b in batches}
    requests = Requests(dimension, max(wanted.values()))
    bytes_each = int(np.mean([len(p.SerializeToString()) for p in requests.payloads[:100]]))
    lines = []
    for sync, batch, count in itertools.product(syncs, batches, clients):
        lines.append(_line(session, requests, sync, batch, count, wanted[batch], dimension))
        report.say(f"{sync}, batches of {batch}, {count} client(s): {lines[-1].rate:,.0f} items/s")
    report.table(
        f"Writes of {dimension}-d items, {bytes_each:,} bytes each",
        (
            "sync",
            "batch",
            "clients",
            "items/s",
            *PERCENTILES,
            "bare LMDB items/s",
            "share of it",
            "refused",
            "not found at once",
            "checks out of time",
        ),
        [
            (
                x.sync,
                x.batch,
                x.clients,
                f"{x.rate:,.0f}",
                *x.spent.cells(),
                f"{x.bare_rate:,.0f}",
                f"{x.rate / x.bare_rate:.2f}",
                x.refused,
                f"{x.missing} of {x.checked}"
                + (f" (after {x.late_ms:.0f} ms)" if x.missing else ""),
                x.out_of_time,
            )
            for x in lines
        ],
    )
    report.note(
        "Percentiles are of whole requests. Bare LMDB: groups of batch x clients items, at most "
        f"{bare.GROUP_MOST}, each with fsync; with every_1000ms groups of {bare.GROUP_MOST}. The "
        "clients are threads of one Python process on the same cores. Found: by its own vector, "
        "asked after the last answer; with every_1000ms an item becomes visible with the commit "
        "that follows within a second, so misses are expected there and their delay is told."
    )
    always = [x for x in lines if x.sync == "always"]
    if always:
        checked, missing, late = _each_acknowledged(session, requests, dimension)
        report.facts["each_acknowledged"] = {
            "checked": checked,
            "missing": missing,
            "out_of_time": late,
        }
        report.verdict(
            f"of {checked} items, each asked for right after its answer, lost", missing, 0
        )
        missing, checked = sum(x.missing for x in always), sum(x.checked for x in always)
        report.verdict(f"of {checked} acknowledged items not found (always)", missing, 0)
        best = max(always, key=lambda x: x.rate)
        report.note(
            f"Best with fsync: {best.rate:,.0f} items/s (batches of {best.batch}, {best.clients} "
            f"clients), {ratio(best.bare_rate, best.rate)} slower than bare LMDB."
        )
    report.facts.update(bytes_each=bytes_each, lines=lines)
    report.save()


def _line(
    session: Session,
    requests: Requests,
    sync: str,
    batch: int,
    clients: int,
    items: int,
    dimension: int,
) -> Line:
    space = session.workspace
    serialised = requests.build("agent", batch, items)
    folder = space.fresh("writes-bare")
    group = min(batch * clients, bare.GROUP_MOST) if sync == "always" else bare.GROUP_MOST
    payloads = [item.SerializeToString() for item in requests.payloads[:items]]
    bare_seconds = bare.group_commits(folder, payloads, group).sum()
    space.drop(folder)
    store = space.fresh("writes")
    settings = {"index.dimension": dimension, "storage.wal_sync": sync}
    with Server(store, settings) as server:
        seconds, spent, refused = send_all(server.address, serialised, clients)
        rows = np.unique(np.linspace(0, items - 1, CHECKED).astype(int))
        missing, late_ms, out_of_time = _missing(server, requests, rows)
    space.drop(store)
    return Line(
        sync,
        batch,
        clients,
        items,
        items / seconds,
        percentiles(spent),
        items / float(bare_seconds),
        refused,
        len(rows),
        missing,
        late_ms,
        out_of_time,
    )


def send_all(address: str, serialised: list[bytes], clients: int) -> tuple[float, list[float], int]:
    """Sends all requests, dealt out to the clients. Returns seconds from first to last,
    seconds of each request, and how many were refused and sent again."""
    spent: list[float] = []
    refused = itertools.count()
    failures: list[BaseException] = []
    barrier = threading.Barrier(clients + 1)

    def work(number: int) -> None:
        channel = grpc.insecure_channel(address, CHANNEL_OPTIONS)
        call: Any = channel.unary_unary("/memsvc.v1.MemoryService/Write")
        connect(channel)
        barrier.wait()
        try:
            for data in serialised[number::clients]:
                began = time.perf_counter()
                while True:
                    try:
                        call(data, timeout=60.0)
                        break
                    except grpc.RpcError as error:
                        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                            raise
                        next(refused)
                        time.sleep(0.05)
                spent.append(time.perf_counter() - began)
        except BaseException as error:
            failures.append(error)
        finally:
            channel.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    barrier.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    if failures:
        raise failures[0]
    return seconds, spent, next(refused)


def _each_acknowledged(
    session: Session, requests: Requests, dimension: int
) -> tuple[int, int, int]:
    """Writes batches one after another and asks for every item as soon as its batch was
    answered. Returns items checked, not found, and answers out of time."""
    store = session.workspace.fresh("writes-checked")
    items = min(2_000, len(requests.payloads))
    missing = late = 0
    with Server(store, {"index.dimension": dimension}) as server:
        batches = requests.build("agent", CHECKED, items)
        call: Any = server.channel.unary_unary("/memsvc.v1.MemoryService/Write")
        for number, data in enumerate(batches):
            call(data, timeout=60.0)
            low = number * CHECKED
            rows = np.arange(low, min(low + CHECKED, items))
            lost, out_of_time = _not_found(server, requests, rows)
            missing += len(lost)
            late += out_of_time
    session.workspace.drop(store)
    return items, missing, late


def _missing(server: Server, requests: Requests, rows: Any) -> tuple[int, float, int]:
    """How many of the rows are not found now, ms until the last of them is, and how many
    answers were out of time."""
    began = time.perf_counter()
    first, late = _not_found(server, requests, rows)
    left = first
    while len(left) and time.perf_counter() - began < LATE_S:
        left, _ = _not_found(server, requests, left)
    waited = (time.perf_counter() - began) * 1e3 if len(first) else 0.0
    return len(first), float("nan") if len(left) else waited, late


def _not_found(server: Server, requests: Requests, rows: Any) -> tuple[Any, int]:
    """Those of the rows that their own vector does not find; and how many answers were
    empty because time ran out, after which they were asked for again."""
    lost = []
    late = 0
    for low in range(0, len(rows), ASKED_AT_ONCE):
        some = rows[low : low + ASKED_AT_ONCE]
        request = pb.QueryRequest(namespace=namespace_message(NAMESPACE), top_k=1, min_score=0.999)
        for row in some:
            request.vectors.add(data=requests.vectors[row].tobytes())
        answer = server.stub.Query(request, timeout=60.0)
        while answer.degraded.level and late < GIVE_UP:
            late += 1
            answer = server.stub.Query(request, timeout=60.0)
        # Before the first commit there is no partition, and not even the lists.
        lists = [list(one.items) for one in answer.results] or [[]] * len(some)
        lost += [
            row
            for row, items in zip(some, lists, strict=True)
            if not items or items[0].metadata.seq != row
        ]
    return np.array(lost, np.int64), late
