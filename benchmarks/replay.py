"""Recorded requests at their own times, alone and with extreme ones among them.

A recording is JSON lines, in order of time:

    {"at_ms": 0, "call": "Query", "request": {...}}

``call`` is Query, Write or Forget; ``request`` the message in the JSON form of protobuf (bytes in
base64). Each request starts when it did then, whether earlier ones were answered or not, so
their own concurrency comes back. Without --file a recording is made up: bursts of a few agents
that recall and then write. With --address it is sent to a service that runs already, otherwise
to a server of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from google.protobuf import json_format
from numpy.typing import NDArray

from benchmarks import data
from benchmarks.asking import query_request
from benchmarks.data import Dataset, Texts, write_item
from benchmarks.difficulty import difficulty
from benchmarks.load import DEGRADED, Calls
from benchmarks.report import PERCENTILES, Percentiles, Report, percentiles, ratio
from benchmarks.schedule import keep_to
from benchmarks.serving import Server, open_stub
from benchmarks.session import Session
from benchmarks.workspace import NAMESPACE, settings_of
from memsvc.client.messages import namespace_message
from memsvc.v1 import memory_service_pb2 as pb

REQUESTS: Final[Mapping[str, Any]] = {
    "Query": pb.QueryRequest,
    "Write": pb.WriteRequest,
    "Forget": pb.ForgetRequest,
}
ALL_TIME: Final = {"ts": {"gte": 0, "lte": 253_402_300_799_999}}
MAX_TOP_K: Final = 200


@dataclass(frozen=True, slots=True)
class Recorded:
    """A request: seconds after the first, its call, and what kind of request it is.
    ``refused``: the answer should be INVALID_ARGUMENT."""

    at: float
    call: str
    request: Any
    kind: str
    refused: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--file", type=Path, help="a recording")
    parser.add_argument("--address", help="host:port of a running service")
    parser.add_argument("--speed", type=float, default=1.0, help="2 = twice as fast")
    parser.add_argument("--save-recording", type=Path, help="write the made-up recording there")
    parser.add_argument("--seconds", type=float, help="length of the made-up recording")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--dimension", type=int)
    parser.add_argument("--extreme-every", type=float, help="seconds between extreme requests")


def read(path: Path) -> list[Recorded]:
    """A recording. ValueError names the line that is not one."""
    found = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                entry = json.loads(line)
                call = entry["call"]
                request = json_format.ParseDict(entry["request"], REQUESTS[call]())
                found.append(Recorded(float(entry["at_ms"]) / 1e3, call, request, call))
            except (ValueError, KeyError, TypeError, json_format.ParseError) as error:
                raise ValueError(f"{path}:{number}: not a recorded request: {error!r}") from error
    return found


def save(path: Path, recording: Iterable[Recorded]) -> None:
    """Writes a recording."""
    with path.open("w", encoding="utf-8") as file:
        for one in recording:
            request = json_format.MessageToDict(one.request, preserving_proto_field_name=True)
            entry = {"at_ms": round(one.at * 1e3, 3), "call": one.call, "request": request}
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")


def made_up(dataset: Dataset, seconds: float, seed: int = 21) -> list[Recorded]:
    """Turns of conversations: a recall, then one to eight memories; some 20 turns a second,
    coming in bursts."""
    rng = np.random.default_rng(seed)
    texts = Texts()
    found = []
    row = len(dataset.vectors)
    at = 0.0
    for number in itertools.count():
        at += float(rng.exponential(0.2))
        if at >= seconds:
            break
        for turn in range(int(rng.integers(1, 8))):
            when = at + turn * 0.003
            query = dataset.queries[(number + turn) % len(dataset.queries)]
            text = texts.cut(40, number) if turn % 2 else ""
            asked = query_request(NAMESPACE, query, text=text)
            found.append(Recorded(when, "Query", asked, "Query"))
            write = pb.WriteRequest(namespace=namespace_message(NAMESPACE))
            for _ in range(int(rng.integers(1, 9))):
                vector = dataset.vectors[row % len(dataset.vectors)]
                write.items.append(write_item(texts, row, vector, dedup_key=f"replay:{row}"))
                row += 1
            found.append(Recorded(when + 0.05, "Write", write, "Write"))
    return sorted(found, key=lambda one: one.at)


def extremes(dataset: Dataset) -> Iterator[Recorded]:
    """One of each, over and over; times are set by ``with_extremes``."""
    texts = Texts()
    for number in itertools.count():
        query = dataset.queries[number % len(dataset.queries)]
        largest = query_request(NAMESPACE, query, k=MAX_TOP_K)
        whole = query_request(NAMESPACE, query, k=MAX_TOP_K)
        whole.include.content = whole.include.vector = True
        too_many = query_request(NAMESPACE, query, k=1_000_000)
        nothing = query_request(NAMESPACE, query)
        nothing.filters.all_of.SetInParent()
        many = query_request(NAMESPACE, None)
        for other in dataset.queries[:64]:
            many.vectors.add(data=other.tobytes())
        yield from (
            Recorded(0, "Query", one, kind, refused)
            for kind, one, refused in (
                ("top_k 200", largest, False),
                ("top_k 200, contents and vectors", whole, False),
                ("top_k 1,000,000", too_many, True),
                (
                    "all of time, top_k 200",
                    query_request(NAMESPACE, query, k=MAX_TOP_K, filters=ALL_TIME),
                    False,
                ),
                (
                    "no filter at all, by time",
                    query_request(NAMESPACE, k=MAX_TOP_K, mode=pb.MODE_BROWSE),
                    False,
                ),
                ("empty filter", nothing, True),
                ("ef 4,096", query_request(NAMESPACE, query, ef=4_096), False),
                ("64 vectors", many, False),
                (
                    "8 KB of text",
                    query_request(NAMESPACE, query, text=texts.cut(8_000, number)),
                    False,
                ),
            )
        )
        empty = pb.ForgetRequest(namespace=namespace_message(NAMESPACE))
        yield Recorded(0, "Forget", empty, "forget without a selection", True)


def with_extremes(
    recording: list[Recorded], dataset: Dataset, every: float, seconds: float
) -> list[Recorded]:
    """The recording with an extreme request every so often."""
    more = [
        Recorded(number * every, one.call, one.request, one.kind, one.refused)
        for number, one in zip(range(int(seconds / every)), extremes(dataset), strict=False)
    ]
    return sorted([*recording, *more], key=lambda one: one.at)


def most_at_once(due: NDArray[np.float64], spent: NDArray[np.float64]) -> int:
    """Most requests that were open at the same time."""
    if not len(due):
        return 0
    edges = np.concatenate((due, due + spent))
    steps = np.concatenate((np.ones(len(due), np.int64), -np.ones(len(due), np.int64)))
    order = np.lexsort((steps, edges))  # an end before a start at the same moment
    return int(np.cumsum(steps[order]).max())


@dataclass(slots=True)
class Outcome:
    """What became of the requests of one kind. ``unexpected``: neither answered nor refused
    as they should be."""

    spent: Percentiles
    statuses: Counter[str]
    degraded: int
    unexpected: int


@dataclass(slots=True)
class Played:
    """One replay."""

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    at_once: int = 0
    late: Percentiles = field(default_factory=lambda: percentiles([]))


def play(address: str, recording: list[Recorded], speed: float) -> Played:
    """Sends every request at its time."""
    channel, stub = open_stub(address)
    kinds: dict[str, Calls] = {one.kind: Calls() for one in recording}
    refused = {one.kind: one.refused for one in recording}
    offsets = np.array([one.at for one in recording]) / speed

    def send(number: int, due: float) -> None:
        one = recording[number]
        kinds[one.kind].send(getattr(stub, one.call), one.request, due)

    keep_to(offsets, time.perf_counter() + 0.2, send)
    for calls in kinds.values():
        calls.wait()
    channel.close()
    found = Played()
    arrays = {kind: calls.arrays() for kind, calls in kinds.items()}
    for kind, calls in kinds.items():
        wanted = "INVALID_ARGUMENT" if refused[kind] else "OK"
        found.outcomes[kind] = Outcome(
            percentiles(arrays[kind]["spent"]),
            calls.statuses,
            int(np.count_nonzero(arrays[kind]["codes"] == DEGRADED)),
            sum(calls.statuses.values()) - calls.statuses[wanted],
        )
    due, spent, late = (
        np.concatenate([a[name] for a in arrays.values()]) for name in ("due", "spent", "late")
    )
    found.at_once = most_at_once(due, spent)
    found.late = percentiles(late)
    return found


def run(session: Session) -> None:
    """Measures, and writes the report."""
    report = session.report("replay", "Replay and extremes")
    seconds = session.size("seconds", 4.0, 15.0, 60.0)
    dataset = data.clustered(
        session.size("rows", 10_000, 25_000, 100_000),
        session.size("dimension", 64, 1536, 1536),
        200,
        2_000,
    )
    file: Path | None = getattr(session.args, "file", None)
    recording = read(file) if file else made_up(dataset, seconds)
    wanted = getattr(session.args, "save_recording", None)
    if wanted:
        save(wanted, recording)
    if file and recording:
        seconds = recording[-1].at
    mixed = with_extremes(recording, dataset, session.size("extreme_every", 0.2, 0.5, 0.5), seconds)
    report.note(
        f"{len(recording)} requests in {seconds:.0f} s"
        + (f" from {file.name}" if file else ", made up")
        + f"; {len(mixed) - len(recording)} extreme ones among them in the second replay. "
        f"Store: {dataset.name}; {difficulty(dataset.vectors, dataset.queries)}."
    )
    address = getattr(session.args, "address", None)
    speed = getattr(session.args, "speed", 1.0)
    if address:
        alone, both = play(address, recording, speed), play(address, mixed, speed)
    else:
        alone = _own(session, report, dataset, recording, speed)
        both = _own(session, report, dataset, mixed, speed)
    _tell(report, alone, both)
    report.save()


def _own(
    session: Session, report: Report, dataset: Dataset, recording: list[Recorded], speed: float
) -> Played:
    """On a fresh copy of the store, so that both replays find the same."""
    made = session.workspace.store(dataset, "bf16", report.say)
    store = session.workspace.copy(made, "replay")
    with Server(store, settings_of(dataset, "bf16")) as server:
        for query in dataset.queries:
            server.stub.Query(query_request(NAMESPACE, query), timeout=60.0)
        report.say(f"replaying {len(recording)} requests")
        found = play(server.address, recording, speed)
    session.workspace.drop(store)
    return found


def _tell(report: Report, alone: Played, both: Played) -> None:
    for title, played in (("Recorded requests alone", alone), ("With extreme ones", both)):
        report.table(
            f"{title}: at most {played.at_once} at once, sent late p99 {played.late.p99:.2f} ms",
            ("request", *PERCENTILES, "worst ms", "answers", "degraded"),
            [
                (
                    kind,
                    *o.spent.cells(),
                    f"{o.spent.worst:.1f}",
                    ", ".join(f"{name} {n}" for name, n in o.statuses.items()),
                    o.degraded,
                )
                for kind, o in played.outcomes.items()
            ],
        )
    for kind, before in alone.outcomes.items():
        after = both.outcomes[kind]
        report.note(
            f"{kind}: p99 {before.spent.p99:.2f} ms alone, {after.spent.p99:.2f} ms among extreme "
            f"ones, {ratio(after.spent.p99, before.spent.p99)}."
        )
    unexpected = sum(o.unexpected for played in (alone, both) for o in played.outcomes.values())
    report.verdict("answers other than expected", unexpected, 0)
    report.facts.update(alone=alone, with_extremes=both)
