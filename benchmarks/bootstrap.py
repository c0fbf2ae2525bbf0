"""Time until a new replica is ready, beside a plain copy of the same bytes.

A primary with the store, warm; a replica process with an empty data directory, from its launch
until it is ready and answers right. The limit, in the same run: a process that does nothing but
take the files that the replica has then over a loopback socket and flush them to the same disk.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import grpc
import numpy as np

from benchmarks import data
from benchmarks.asking import query_request
from benchmarks.data import Dataset
from benchmarks.report import ratio
from benchmarks.serving import (
    START_SECONDS,
    Server,
    ServerFailed,
    connect,
    free_port,
    open_stub,
)
from benchmarks.session import Session
from benchmarks.workspace import NAMESPACE, settings_of

BOUND: Final = 2.0
BOUND_MORE_S: Final = 2.0
_PIECE: Final = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--rows", type=int)
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--dtype", default="i8")
    parser.add_argument("--times", type=int, help="replicas, one after the other")
    parser.add_argument(
        "--pace", type=int, default=300, metavar="MIB_PER_S",
        help="replication.copy_mib_per_s of the primary; 0 = no limit",
    )  # fmt: skip


def run(session: Session) -> None:
    """Measures, and writes the report."""
    report = session.report("bootstrap", "Beginning of a replica")
    dtype = getattr(session.args, "dtype", "i8")
    pace = getattr(session.args, "pace", 300)
    dataset = data.clustered(
        session.size("rows", 5_000, 25_000, 100_000),
        session.size("dimension", 64, 1536, 1536),
        0,
        2_000,
    )
    store = session.workspace.store(dataset, dtype, report.say)
    port = free_port()
    settings = {
        "node.role": "primary",
        "replication.listen": f"127.0.0.1:{port}",
        "replication.copy_mib_per_s": pace,
    }
    lines = []
    for n in range(session.size("times", 1, 2, 3)):
        target, plain = (session.workspace.fresh(f"{name}-{n}") for name in ("replica", "plain"))
        following = {
            "node.role": "replica",
            "replication.primary": f"127.0.0.1:{port}",
            "storage.snapshot_interval_min": 0,
        }
        # Started anew each time: it gives a snapshot that is not old to the next replica too.
        with Server(store, settings_of(dataset, dtype, **settings)) as primary:
            primary.settle()
            _warm(store)
            with Server(target, settings_of(dataset, dtype, **following), wait=False) as replica:
                _wait(replica)
                ready = time.perf_counter() - replica.launched
                _check(replica, dataset)
        files = [p for top in ("store", "segments") for p in (target / top).rglob("*.*")]
        files = [path for path in files if path.is_file() and path.name != "lock.mdb"]
        size = sum(path.stat().st_size for path in files)
        lines.append((size, ready, _plain_copy(files, plain)))
        report.say("{:,} bytes: ready after {:.2f} s, plain copy {:.2f} s".format(*lines[-1]))
        for made in (target, plain):
            shutil.rmtree(made)
    report.table(
        f"Launch to ready, {dataset.name}, {dtype}, at most {pace} MiB/s",
        ("MB", "replica s", "plain copy s", "ratio"),
        [(f"{s / 1e6:,.0f}", f"{r:.2f}", f"{p:.2f}", ratio(r, p)) for s, r, p in lines],
    )
    # By the run in the middle: the disk is shared with whatever else it serves.
    _, ready, copied = sorted(lines, key=lambda one: one[1] / one[2])[len(lines) // 2]
    report.verdict(
        f"seconds until ready, {BOUND:g} x plain copy + {BOUND_MORE_S:g} s",
        ready,
        BOUND * copied + BOUND_MORE_S,
    )
    report.facts.update(runs=[{"bytes": s, "ready_s": r, "plain_s": p} for s, r, p in lines])
    report.save()


def _wait(replica: Server) -> None:
    until = time.perf_counter() + START_SECONDS
    while time.perf_counter() < until:
        replica.check()
        # Its own channel: one that failed to connect waits longer and longer before it tries.
        channel, _ = open_stub(replica.address)
        try:
            if connect(channel, 0.1):
                return
        except grpc.RpcError:
            time.sleep(0.02)
        finally:
            channel.close()
    raise ServerFailed("not ready in time")


def _check(replica: Server, dataset: Dataset) -> None:
    row = int(np.random.default_rng().integers(0, len(dataset.vectors)))
    answer = replica.stub.Query(query_request(NAMESPACE, dataset.vectors[row], k=10), timeout=60.0)
    assert answer.items[0].metadata.seq == row


def _warm(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while file.read(_PIECE):
                    pass


_TAKE: Final = """
import os, socket, sys
source = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
buffer = memoryview(bytearray(1 << 20))
for n, size in enumerate(map(int, sys.argv[3:])):
    fd = os.open(f"{sys.argv[2]}/{n}", os.O_WRONLY | os.O_CREAT, 0o600)
    while size:
        count = source.recv_into(buffer, min(size, len(buffer)))
        assert count, "the other side has ended"
        os.write(fd, buffer[:count])
        size -= count
    os.fsync(fd)
    os.close(fd)
"""


def _plain_copy(files: list[Path], target: Path) -> float:
    """Seconds that a process takes to get files over a socket and to flush them."""
    target.mkdir()
    sizes = [str(path.stat().st_size) for path in files]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", _TAKE, str(listener.getsockname()[1]), str(target), *sizes]
        )
        sink, _ = listener.accept()
        with sink:
            for path in files:
                with path.open("rb") as file:
                    sink.sendfile(file)
            assert process.wait() == 0
    return time.perf_counter() - began
