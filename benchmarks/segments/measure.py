"""Measurements behind memsvc/segments/DESIGN.md. Prints Markdown tables.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.segments.measure [graph|scan|checks|columns]...

Every timing is the fastest of several runs, because other work on a machine only adds to it.
Data are clustered: 200 centres and noise in 128 directions of falling strength, plus a little
in all, unit length, which is about as hard for a graph as real sentence vectors.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from usearch.compiled import MetricKind
from usearch.index import Index as UsearchIndex

from memsvc.domain.filters import ATTRIBUTE_PREFIX, Condition, Equals, In, Range
from memsvc.domain.manifest import SegmentMeta
from memsvc.domain.records import RowRecord, State
from memsvc.segments.build import BuildSpec, build_segment
from memsvc.segments.files import checksum_of, map_file
from memsvc.segments.graph import DTYPES
from memsvc.segments.quantise import quantise
from memsvc.segments.segment import Segment
from memsvc.segments.segment import verify as verify_segment
from memsvc.v1 import memory_service_pb2

Floats = NDArray[np.float32]


class Words:
    """An inversion of documents without words."""

    def __init__(self, docs: Iterable[Sequence[str]]) -> None:
        self.terms: list[str] = []
        self.offsets = np.zeros(1, np.int64)
        self.docs = np.zeros(0, np.int32)
        self.tfs = np.zeros(0, np.int32)
        self.lengths = np.array([len(doc) for doc in docs], np.int32)


def clustered(count: int, dimension: int, seed: int) -> Floats:
    """Unit vectors, float32 (count, dimension)."""
    shape = np.random.default_rng(7)
    scale = (1 / np.sqrt(1 + np.arange(128))).astype(np.float32)
    directions = shape.standard_normal((128, dimension), dtype=np.float32)
    centres = shape.standard_normal((200, 128), dtype=np.float32) * scale
    rng = np.random.default_rng(seed)
    out = np.empty((count, dimension), np.float32)
    for low in range(0, count, 5000):
        n = min(5000, count - low)
        inner = centres[rng.integers(0, 200, n)]
        inner = inner + 0.6 * rng.standard_normal((n, 128), dtype=np.float32) * scale
        rows = inner @ directions + 0.3 * rng.standard_normal((n, dimension), dtype=np.float32)
        out[low : low + n] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return out


def fastest(work: Callable[[], object], repeats: int = 9) -> float:
    """Seconds of the fastest run."""
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a Markdown table."""
    print(f"\n### {title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |", flush=True)


def rows_of(vectors: Floats) -> Iterator[RowRecord]:
    """Rows as the builder gets them, with a handful of different metadata."""
    for i, vector in enumerate(vectors):
        hit = memory_service_pb2.Hit(session=f"session {i // 20}")
        hit.metadata.seq = i
        hit.metadata.role = ("user", "assistant")[i % 2]
        hit.metadata.attributes["city"].string_value = f"city {i % 97}"
        state = State(i.to_bytes(16, "big"), 1, 1, 1, 0, 0, 0, i, 0, 0, 0.5, 0, 0)
        yield RowRecord(i + 1, state, hit.SerializeToString(), "", {1: vector})


def built(root: Path, vectors: Floats, **more: Any) -> SegmentMeta:
    """A segment over vectors, without a graph unless asked for."""
    count, dimension = vectors.shape
    options: dict[str, Any] = {"graph_min_rows": 1 << 60, "attributes": ("city",), **more}
    spec = BuildSpec("bench", 1, 1, count + 1, count, ((1, dimension),), **options)
    return build_segment(spec, rows_of(vectors), root, lambda _: (), Words)


def graphs(count: int, dimension: int) -> None:
    """Number formats and metrics of the graph."""
    vectors, queries = clustered(count, dimension, 1), clustered(300, dimension, 2)
    truth = np.argsort(-(queries @ vectors.T), axis=1)[:, :10]
    levels, _ = quantise(vectors)
    asked8, _ = quantise(queries)

    def rows() -> Iterator[Sequence[object]]:
        for name, dtype, metric, data, asked in (
            ("i8, scale per row", "i8", MetricKind.Cos, levels, asked8),
            ("i8, cast by usearch", "i8", MetricKind.Cos, vectors, queries),
            ("bf16", "bf16", MetricKind.Cos, vectors, queries),
            ("bf16, metric ip", "bf16", MetricKind.IP, vectors, queries),
            ("f16", "f16", MetricKind.Cos, vectors, queries),
            ("f32", "f32", MetricKind.Cos, vectors, queries),
        ):
            yield (name, *graph_figures(dtype, metric, data, asked, (vectors, queries, truth)))

    table(
        f"Graph of {count} x {dimension}, m 16, ef_construction 200, count 40",
        (
            "dtype",
            "build/s (2 threads)",
            "file MB",
            "recall@10 ef 64",
            "re-scored ef 32 / 64 / 128",
            "p50 ms ef 32 / 64 / 128",
            "distances ef 64",
        ),
        rows(),
    )


def graph_figures(
    dtype: str,
    metric: MetricKind,
    data: NDArray[Any],
    asked: NDArray[Any],
    reference: tuple[Floats, Floats, NDArray[np.int64]],
) -> Sequence[object]:
    """One row of the table of graphs."""
    vectors, queries, truth = reference
    index = UsearchIndex(
        ndim=data.shape[1], metric=metric, dtype=DTYPES[dtype], connectivity=16, expansion_add=200
    )
    began = time.perf_counter()
    index.add(np.arange(len(data), dtype=np.uint64), data, threads=2)
    rate = len(data) / (time.perf_counter() - began)
    with tempfile.NamedTemporaryFile(suffix=".usearch") as file:
        index.save(file.name)
        view = UsearchIndex(
            ndim=data.shape[1], metric=metric, dtype=DTYPES[dtype], enable_key_lookups=False
        )
        view.view(file.name)
        raw: list[float] = []
        rescored: list[float] = []
        times: list[float] = []
        met = 0
        for ef in (32, 64, 128):
            view.expansion_search = ef  # type: ignore[misc]  # has a setter
            plain = better = 0
            spent = []
            for i, query in enumerate(asked):
                spent.append(fastest(partial(view.search, query, 40, threads=1), 4))
                found = view.search(query, 40, threads=1)
                met += found.computed_distances if ef == 64 else 0
                keys = found.keys.astype(np.int64)
                true = set(truth[i].tolist())
                plain += len(true & set(keys[:10].tolist()))
                order = np.argsort(-(vectors[keys] @ queries[i]))[:10]
                better += len(true & set(keys[order].tolist()))
            raw.append(plain / truth.size)
            rescored.append(better / truth.size)
            times.append(float(np.median(spent)) * 1e3)
        megabytes = Path(file.name).stat().st_size / 1e6
    return (
        f"{rate:.0f}",
        f"{megabytes:.0f}",
        f"{raw[1]:.3f}",
        " / ".join(f"{r:.3f}" for r in rescored),
        " / ".join(f"{t:.2f}" for t in times),
        met // len(asked),
    )


def scans(count: int, dimension: int) -> None:
    """Exact search over parts of a segment, k 40."""
    vectors = clustered(count, dimension, 1)
    query = clustered(1, dimension, 2)[0]
    rng = np.random.default_rng(3)
    random = rng.random(count)
    with tempfile.TemporaryDirectory() as folder:
        meta = built(Path(folder), vectors)
        rows = Segment.open(Path(folder), meta).rows(1)
        assert rows is not None

        def lines() -> Iterator[Sequence[object]]:
            for name, mask in (
                ("all", None),
                ("90 % at random", random < 0.9),
                ("50 % at random", random < 0.5),
                ("the 50 % farthest", opposed(vectors, query)),
                ("one half (by time)", np.arange(count) < count // 2),
                ("20 % at random", random < 0.2),
                ("5 % at random", random < 0.05),
                ("1 % at random", random < 0.01),
                ("0.1 % at random", random < 0.001),
            ):
                fast, _ = rows.scan(query, mask, 40)
                true, _ = rows.scan(query, mask, 40, full_precision=True)
                agree = len(set(fast.tolist()) & set(true.tolist())) / max(1, len(true))
                eight = fastest(partial(rows.scan, query, mask, 40)) * 1e3
                exact = partial(rows.scan, query, mask, 40, full_precision=True)
                full = fastest(exact) * 1e3
                yield name, f"{eight:.2f}", f"{full:.2f}", f"{agree:.3f}"

        table(
            f"Exact scan of {count} x {dimension}, k 40, one thread",
            ("matching", "8-bit copy, re-scored, ms", "float32 only, ms", "same rows"),
            lines(),
        )
        some = rng.integers(0, count, 1000)
        table(
            "Scoring scattered rows in float32",
            ("rows", "us"),
            [
                (n, f"{fastest(partial(rows.score, some[:n], query), 30) * 1e6:.0f}")
                for n in (10, 40, 200, 1000)
            ],
        )


def opposed(vectors: Floats, query: Floats) -> NDArray[np.bool_]:
    """The half of the rows that is farthest from the query: a graph never gets there."""
    sims = vectors @ query
    return np.asarray(sims < np.median(sims))


def checks(count: int, dimension: int) -> None:
    """Opening and verifying."""
    vectors = clustered(count, dimension, 1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        meta = built(root, vectors, graph_min_rows=0)
        files = [root / meta.name / file.name for file in meta.files]
        size = sum(path.stat().st_size for path in files) / 1e9

        def drop() -> None:
            for path in files:
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        def cold(work: Callable[[], object]) -> float:
            drop()
            began = time.perf_counter()
            work()
            return time.perf_counter() - began

        query = vectors[3]

        def first_query() -> None:
            segment = Segment.open(root, meta)
            graph, rows = segment.graph(1), segment.rows(1)
            assert graph is not None and rows is not None
            rows.score(graph.search(query, 40, 64)[0], query)

        table(
            f"Opening {count} x {dimension} ({size:.2f} GB in all)",
            ("what", "warm ms", "cold ms"),
            [
                (name, f"{fastest(work, 5) * 1e3:.1f}", f"{cold(work) * 1e3:.0f}")
                for name, work in (
                    ("Segment.open", lambda: Segment.open(root, meta)),
                    ("Segment.open, graph search, scoring 40", first_query),
                    ("Segment.open(verify=False)", lambda: Segment.open(root, meta, verify=False)),
                    ("verify: every byte", lambda: verify_segment(root, meta)),
                )
            ],
        )
        rows_file = map_file(root / meta.name / "rows-1.bin")
        whole = fastest(lambda: checksum_of(rows_file), 5)
        view = memoryview(rows_file)

        def blocks() -> None:
            for low in range(0, len(view), 1 << 16):
                xxhash.xxh3_64_intdigest(view[low : low + (1 << 16)])

        table(
            "Checksums of the rows file, warm",
            ("how", "GB/s"),
            [
                ("xxh3-128, whole", f"{len(view) / whole / 1e9:.1f}"),
                ("xxh3-64, blocks of 64 KiB", f"{len(view) / fastest(blocks, 5) / 1e9:.1f}"),
            ],
        )


def columns(count: int) -> None:
    """Masks of conditions on columns."""
    vectors = np.ones((1, 1), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        meta = built(root, np.broadcast_to(vectors, (count, 1)), scan_min_rows=1 << 60)
        opened = Segment.open(root, meta).columns
        assert opened is not None

        def time_of(field: str, test: Any) -> str:
            column = opened.column(field)
            assert column is not None
            return f"{fastest(lambda: column.mask(Condition(field, test))) * 1e6:.0f}"

        table(
            f"Masks over {count} rows, without the cache",
            ("condition", "different values", "us"),
            [
                ("role equals", 2, time_of("role", Equals("user"))),
                ("session equals", count // 20, time_of("session", Equals("session 77"))),
                (
                    "session in 100",
                    count // 20,
                    time_of("session", In(tuple(f"session {i}" for i in range(100)))),
                ),
                ("session range", count // 20, time_of("session", Range(gte="session 3"))),
                ("seq range", count, time_of("seq", Range(gt=50, lte=count // 2))),
                ("city in 3", 97, time_of(ATTRIBUTE_PREFIX + "city", In(("city 1", "x", "y")))),
            ],
        )


def main() -> None:
    """Runs the measurements that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["graph", "scan", "checks", "columns"])
    parser.add_argument("--graph-rows", type=int, default=50_000)
    parser.add_argument("--scan-rows", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=1536)
    args = parser.parse_args()
    if os.environ.get("OPENBLAS_NUM_THREADS") != "1":
        print("set OPENBLAS_NUM_THREADS=1, as in serving")
    for part in args.parts:
        if part == "graph":
            graphs(args.graph_rows, args.dimension)
        elif part == "scan":
            scans(args.scan_rows, args.dimension)
        elif part == "checks":
            checks(args.scan_rows, args.dimension)
        elif part == "columns":
            columns(args.scan_rows)
        else:
            parser.error(f"there is no part {part}")


if __name__ == "__main__":
    main()
