"""Load generators, each a process of its own.

    python -m benchmarks.load FILE

FILE is JSON: what to do (``reads``, ``capacity`` or ``writes``) and how; results go to the
file it names. Times in results are seconds of time.time(), so that they fit other processes'.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
from numpy.typing import NDArray

from benchmarks.asking import query_request
from benchmarks.data import Clustered, Texts, write_item
from benchmarks.schedule import arrivals, keep_to
from benchmarks.serving import connect, open_stub
from memsvc.client.messages import namespace_message
from memsvc.v1 import memory_service_pb2 as pb

ANSWERED, DEGRADED, FAILED = 0, 1, 2
QUEUED_CHECKS: Final = 1_000
CHANNELS: Final = 4
DRAIN_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """``kind``: reads, capacity (closed loop) or writes. ``rate`` in requests a second (of
    ``batch`` items for writes); ``queries`` a .npy file; ``first`` row number of writes."""

    kind: str
    address: str
    namespace: str
    out: str
    rate: float
    seconds: float
    arrivals: str = "poisson"
    seed: int = 1
    queries: str = ""
    workers: int = 4
    batch: int = 10
    dimension: int = 0
    first: int = 0
    start_at: float = 0.0


class Running:
    """A generator at work. ``result`` waits for its end."""

    def __init__(self, job: Job) -> None:
        self._job = job
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
            json.dump(asdict(job), file)
        self._file = Path(file.name)
        self._process = subprocess.Popen([sys.executable, "-m", "benchmarks.load", file.name])

    def result(self) -> dict[str, NDArray[Any]]:
        """What it measured. Raises RuntimeError when it failed."""
        status = self._process.wait()
        self._file.unlink()
        if status:
            raise RuntimeError(f"the load generator ended with status {status}")
        out = Path(self._job.out)
        with np.load(out) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        out.unlink()
        return found


class Calls:
    """Calls in flight and what became of them. ``statuses`` counts the names of the codes."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._flying = 0
        self.due: list[float] = []
        self.spent: list[float] = []
        self.late: list[float] = []
        self.codes: list[int] = []
        self.statuses: Counter[str] = Counter()

    def send(self, method: Any, request: Any, due: float, done: Any = None) -> None:
        """Starts a call; latency counts from ``due`` (perf_counter seconds)."""
        with self._lock:
            self._flying += 1
        sent = time.perf_counter()
        future = method.future(request, timeout=DRAIN_S)

        def finished(answered: Any) -> None:
            ended = time.perf_counter()
            code = FAILED
            if answered.code() is grpc.StatusCode.OK:
                answer = answered.result()
                code = DEGRADED if _is_degraded(answer) else ANSWERED
                if done is not None:
                    done(answer)
            with self._lock:
                self.statuses[answered.code().name] += 1
                self.due.append(due)
                self.spent.append(ended - due)
                self.late.append(sent - due)
                self.codes.append(code)
                self._flying -= 1
                self._lock.notify_all()

        future.add_done_callback(finished)

    def wait(self) -> None:
        """Until none is in flight."""
        with self._lock:
            self._lock.wait_for(lambda: not self._flying, DRAIN_S)

    def arrays(self, offset: float = 0.0) -> dict[str, NDArray[Any]]:
        """For the results; ``offset`` turns perf_counter seconds into those of time()."""
        with self._lock:
            return {
                "due": np.array(self.due) + offset,
                "spent": np.array(self.spent),
                "late": np.array(self.late),
                "codes": np.array(self.codes, np.int64),
            }


def _is_degraded(answer: Any) -> bool:
    return isinstance(answer, pb.QueryResponse) and answer.degraded.level > 0


def _wait_for_start(job: Job) -> tuple[float, float]:
    """perf_counter of the start, and what to add to get time()."""
    time.sleep(max(0.0, job.start_at - time.time()))
    now = time.perf_counter()
    return now, time.time() - now


def reads(job: Job) -> dict[str, NDArray[Any]]:
    """Open loop."""
    requests = [query_request(job.namespace, q) for q in np.load(job.queries)]
    opened = [open_stub(job.address) for _ in range(CHANNELS)]
    for channel, _ in opened:
        connect(channel)
    calls = Calls()
    due_times = arrivals(job.rate, job.seconds, job.arrivals, job.seed)
    start, offset = _wait_for_start(job)

    def send(number: int, due: float) -> None:
        _, stub = opened[number % CHANNELS]
        calls.send(stub.Query, requests[number % len(requests)], due)

    keep_to(due_times, start, send)
    calls.wait()
    return calls.arrays(offset)


def capacity(job: Job) -> dict[str, NDArray[Any]]:
    """Closed loop with a number of workers: how many answers a second there are at most."""
    requests = [query_request(job.namespace, q) for q in np.load(job.queries)]
    spent: list[float] = []
    start, _ = _wait_for_start(job)
    until = start + job.seconds

    def work(number: int) -> None:
        channel, stub = open_stub(job.address)
        at = number
        while (began := time.perf_counter()) < until:
            stub.Query(requests[at % len(requests)], timeout=DRAIN_S)
            spent.append(time.perf_counter() - began)
            at += job.workers
        channel.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(job.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"spent": np.array(spent), "seconds": np.array([time.perf_counter() - start])}


class _Checker(threading.Thread):
    """Asks for one item of each acknowledged batch: by its vector, by its keyword, in turn."""

    def __init__(self, job: Job) -> None:
        super().__init__(daemon=True)
        self.queue: queue.Queue[tuple[str, str, NDArray[np.float32]] | None] = queue.Queue(
            QUEUED_CHECKS
        )
        self._job = job
        self.checked = 0
        self.missing = 0
        self.skipped = 0

    def run(self) -> None:
        """Until None comes."""
        channel, stub = open_stub(self._job.address)
        while (item := self.queue.get()) is not None:
            wanted, word, vector = item
            if self.checked % 2:
                request = query_request(self._job.namespace, text=word, mode=pb.MODE_KEYWORD, k=1)
            else:
                request = query_request(self._job.namespace, vector, k=1)
            try:
                answer = stub.Query(request, timeout=DRAIN_S)
            except grpc.RpcError as error:
                # A node that has too much to do refuses; that is told by the other figures.
                print(f"a check was refused: {error.code().name}", file=sys.stderr)
                self.skipped += 1
                continue
            if answer.degraded.level:
                self.skipped += 1
                continue
            self.checked += 1
            if not answer.items or answer.items[0].id != wanted:
                self.missing += 1
                print(f"not found after its acknowledgement: {wanted}", file=sys.stderr)
        channel.close()


def writes(job: Job) -> dict[str, NDArray[Any]]:
    """Open loop, one item of each batch asked for after its answer."""
    texts, source = Texts(), Clustered(job.dimension)
    rng = np.random.default_rng(job.seed)
    channel, stub = open_stub(job.address)
    connect(channel)
    calls, checker = Calls(), _Checker(job)
    checker.start()
    due_times = arrivals(job.rate, job.seconds, job.arrivals, job.seed)
    namespace = namespace_message(job.namespace)

    def batch(number: int) -> tuple[pb.WriteRequest, str, NDArray[np.float32]]:
        vectors, _ = source.draw(job.batch, rng)
        first = job.first + number * job.batch
        words = [f"zq{first + i}x" for i in range(job.batch)]
        items = [
            write_item(texts, first + i, vectors[i], marker=words[i] + " ", dedup_key=words[i])
            for i in range(job.batch)
        ]
        at = number % job.batch
        request = pb.WriteRequest(namespace=namespace, items=items)
        return request, words[at], vectors[at]

    # One ahead, so that building does not delay sending.
    following = batch(0)
    start, offset = _wait_for_start(job)

    def send(number: int, due: float) -> None:
        nonlocal following
        request, word, vector = following
        at = number % job.batch

        def done(answer: pb.WriteResponse) -> None:
            try:
                checker.queue.put_nowait((answer.results[at].id, word, vector))
            except queue.Full:
                checker.skipped += 1

        calls.send(stub.Write, request, due, done)
        following = batch(number + 1)

    keep_to(due_times, start, send)
    calls.wait()
    checker.queue.put(None)
    checker.join(DRAIN_S)
    counts = np.array([checker.checked, checker.missing, checker.skipped])
    return {**calls.arrays(offset), "checks": counts}


def main() -> None:
    job = Job(**json.loads(Path(sys.argv[1]).read_text()))
    # A busy thread must not hold up the one that keeps to the schedule.
    sys.setswitchinterval(0.0005)
    work = {"reads": reads, "capacity": capacity, "writes": writes}[job.kind]
    arrays: dict[str, Any] = work(job)  # numpy counts its own option among them
    np.savez(job.out, **arrays)


if __name__ == "__main__":
    main()
