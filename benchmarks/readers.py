"""Queries a second with and without reader processes, by a compiled load generator.

    python -m benchmarks.readers --readers 0,1,2

needs ``h2load`` (Debian: nghttp2-client). A generator in Python would take as much of the cores
as the server, and halve the figures. All connections send the same query again and again, one
at a time each; the generator runs on the same cores. Which reader a connection goes to is
chance, so the best of several rounds is told beside the median.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.asking import query_request
from benchmarks.serving import Server
from memsvc.client.messages import namespace_message
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2 as types

NAMESPACE = "acme/bot"
BATCH = 200
CALL = "/memsvc.v1.MemoryService/Query"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is stored and asked. ``seconds`` of each round, after ``warm_up`` seconds."""

    rows: int
    dimension: int
    connections: int
    k: int
    seconds: int
    warm_up: int
    rounds: int


def fill(server: Server, plan: Plan) -> None:
    """Clusters of vectors around a few hundred centres, as embeddings have."""
    rng = np.random.default_rng(7)
    centres = rng.standard_normal((300, plan.dimension), np.float32)
    for start in range(0, plan.rows, BATCH):
        count = min(BATCH, plan.rows - start)
        near = centres[rng.integers(0, len(centres), count)]
        vectors = near + 0.6 * rng.standard_normal((count, plan.dimension), np.float32)
        items = [
            pb.WriteItem(
                memory=pb.Memory(
                    dedup_key=f"k{start + i}",
                    summary=f"memory number {start + i} about one thing and another",
                    vector=types.Vector(data=vector.astype("<f4").tobytes()),
                )
            )
            for i, vector in enumerate(vectors)
        ]
        request = pb.WriteRequest(namespace=namespace_message(NAMESPACE), items=items)
        server.stub.Write(request, timeout=60)


def framed(request: pb.QueryRequest) -> bytes:
    """The message as it stands in the body of a gRPC call."""
    data = request.SerializeToString()
    return b"\0" + len(data).to_bytes(4, "big") + data


def rate(server: Server, plan: Plan, body: Path, answer_bytes: int) -> float:
    """Answers a second in one round. Raises RuntimeError when not all were whole answers: the
    generator does not know the status of a gRPC call."""
    command = [
        *("h2load", "-c", str(plan.connections), "-m", "1", "-D", str(plan.seconds)),
        *("--warm-up-time", str(plan.warm_up), "-d", str(body)),
        *("-H", "content-type: application/grpc", "-H", "te: trailers"),
        f"http://{server.address}{CALL}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = re.search(r"finished in [^,]+, ([\d.]+) req/s", done.stdout)
    counts = re.search(r"requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored", done.stdout)
    data = re.search(r"traffic: .*\((\d+)\) data", done.stdout)
    if not figures or not counts or not data:
        raise RuntimeError(f"h2load said\n{done.stdout}")
    succeeded = int(counts.group(1))
    # The bytes are those of the warm-up too. A refusal has next to none.
    each = int(data.group(1)) / max(1, succeeded)
    if int(counts.group(2)) + int(counts.group(3)) or each < 0.98 * answer_bytes:
        raise RuntimeError(f"{each:.0f} bytes an answer, {answer_bytes} expected\n{done.stdout}")
    return float(figures.group(1))


def measure(data_dir: Path, plan: Plan, readers: int, body: Path) -> list[float]:
    """Rates of all rounds with so many readers. The first server fills the store."""
    settings = {
        "index.dimension": plan.dimension,
        "server.readers": readers,
        "storage.reserve_bytes": 0,
        "lifecycle.compact_cron": "",
        "log.level": "warning",
    }
    with Server(data_dir, settings) as server:
        if not server.stub.Health(pb.HealthRequest(), timeout=10).store.memories:
            fill(server, plan)
            server.settle(merge=True)
        request = pb.QueryRequest.FromString(body.read_bytes()[5:])
        answer = server.stub.Query(request, timeout=10)
        assert len(answer.items) == plan.k, f"{len(answer.items)} of {plan.k}"
        size = answer.ByteSize() + 5
        return [rate(server, plan, body, size) for _ in range(plan.rounds)]


def main() -> int:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readers", default="0,1,2", help="numbers of readers (0,1,2)")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--k", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    given = vars(parser.parse_args())
    counts = [int(text) for text in given.pop("readers").split(",")]
    plan = Plan(**given)
    if shutil.which("h2load") is None:
        print("h2load is not there (Debian: apt install nghttp2-client)", file=sys.stderr)
        return 1
    query = np.random.default_rng(8).standard_normal(plan.dimension).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        body = Path(folder) / "query.bin"
        body.write_bytes(framed(query_request(NAMESPACE, query, k=plan.k)))
        print("| readers | queries/s, median | best | all rounds |\n|---|---|---|---|")
        for readers in counts:
            rates = measure(Path(folder) / "data", plan, readers, body)
            every = ", ".join(f"{r:,.0f}" for r in rates)
            print(
                f"| {readers} | {statistics.median(rates):,.0f} | {max(rates):,.0f} | {every} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    from memsvc import pinning  # noqa: F401  (one BLAS thread, as in serving)

    sys.exit(main())
