"""The builder: a process of its own at low priority that makes segment files and copies.

It reads jobs as JSON lines from its standard input and answers with JSON lines on its
standard output: ``{"progress": 0..1}`` while it works, then ``{"done": ...}`` or
``{"error": "..."}``. It ends at once when its input does, also in the middle of a job, so it
never outlives the node and writes into the folders of the next. It only reads the database;
what it made takes effect when the writer says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from memsvc.domain.manifest import SegmentMeta, segment_from_json
from memsvc.domain.records import RowRecord
from memsvc.segments.build import BuildSpec, build_segment
from memsvc.segments.check import disagreement, graph_recall
from memsvc.segments.errors import SegmentDamaged
from memsvc.segments.segment import Segment
from memsvc.segments.tiers import belonging, rows_of
from memsvc.store import heads
from memsvc.store.store import Store
from memsvc.text.index import invert
from memsvc.text.tokenize import ANALYZER_VERSION, terms

NICE = 19
RECALL_SAMPLES = 50
"""Searches by which graphs are compared; each also takes an exact scan of the segment."""
PR_SET_PDEATHSIG = 1


def row_terms(record: RowRecord) -> list[str]:
    """The words of a row, as they are searched."""
    summary = heads.parse_head(record.head).summary
    return terms(heads.keyword_text(summary, record.content))


class Builder:
    """Carries out jobs on one data directory."""

    def __init__(self, data_dir: Path, out: TextIO) -> None:
        self._data_dir = data_dir
        self._out = out

    def tell(self, **message: object) -> None:
        """Sends one line to the node."""
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    def run(self, job: dict[str, Any]) -> object:
        """Carries out one job; returns what "done" carries."""
        if job["job"] == "build":
            spec, first = BuildSpec.from_json(json.dumps(job["spec"])), job.get("grown_from")
            return self._build(
                spec, Path(job["root"]), segment_from_json(json.dumps(first)) if first else None
            )
        if job["job"] == "copy":
            return self._copy(Path(job["to"]))
        if job["job"] == "check":
            old, new = (segment_from_json(json.dumps(job[key])) for key in ("old", "new"))
            return self._check(Path(job["root"]), old, new, job["others"])
        if job["job"] == "recall":
            meta = segment_from_json(json.dumps(job["segment"]))
            return _recall(Segment.open(Path(job["root"]), meta), job["generation"])
        if job["job"] == "snapshot":
            return self._snapshot(job)
        raise ValueError(f"unknown job {job['job']!r}")

    @contextlib.contextmanager
    def opened(self) -> Iterator[Store]:
        """The store, open for reading."""
        store = Store(self._data_dir, readonly=True)
        try:
            yield store
        finally:
            store.close()

    def _build(self, spec: BuildSpec, root: Path, grown_from: SegmentMeta | None) -> object:
        with contextlib.ExitStack() as reading:
            store = reading.enter_context(self.opened())
            snapshot = reading.enter_context(store.read())

            def rows() -> Iterator[RowRecord]:
                yield from snapshot.records(
                    spec.partition,
                    spec.row_lo,
                    spec.row_hi,
                    [g for g, _ in spec.generations],
                    belonging(spec, root),
                )
                # The graph is made from the rows file, and a throttled one takes long: the
                # database would grow as long as this snapshot keeps old pages.
                reading.close()

            meta = build_segment(
                # The segment is for the position it was read at, whatever was asked.
                replace(spec, position=snapshot.position),
                rows(),
                root,
                row_terms,
                invert,
                progress=lambda share: self.tell(progress=share),
                grown_from=grown_from,
            )
        return json.loads(meta.to_json())

    def _check(self, root: Path, old: SegmentMeta, new: SegmentMeta, others: list[str]) -> object:
        """Compares a segment with the one it is to replace and with the records: what is
        wrong with its rows ("" = nothing), and by generation what the graphs find of what is
        there, 0 to 1 or null without a graph."""
        before, after = Segment.open(root, old), Segment.open(root, new, analyzer=ANALYZER_VERSION)
        with self.opened() as store, store.read() as snapshot:
            live = snapshot.current_rows(old.partition, old.row_lo, old.row_hi)
        elsewhere = [rows for name in others if (rows := rows_of(root, name)) is not None]
        problem = disagreement(before, after, live, elsewhere)
        recalls = []
        if not problem:
            for generation in sorted({f.generation for f in new.files if f.kind == "graph"}):
                found = [_recall(segment, generation) for segment in (before, after)]
                recalls.append([generation, *found])
        return {"problem": problem, "recalls": recalls}

    def _snapshot(self, job: dict[str, Any]) -> object:
        """A snapshot in a folder that does not exist, taken over by the place it is for. Returns
        its manifest and where it is."""
        # Not for the other jobs: with these the whole configuration is loaded.
        from memsvc.service.snapshots.places import place_of
        from memsvc.service.snapshots.taking import take

        folder = Path(job["to"])
        with self.opened() as store:
            manifest = take(store, folder, now_ms=job["time"], keep_free=job["keep_free"])
        found = place_of(job["place"]).adopt(folder.name, folder, manifest)
        return {"manifest": json.loads(manifest.to_json()), "where": found.where}

    def _copy(self, to: Path) -> object:
        """A compacted copy of the database, flushed to disk. Returns its position."""
        with self.opened() as store:
            to.mkdir(parents=True, exist_ok=True)
            fd = os.open(to / "data.mdb", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                store.compact_copy(fd)
                os.fsync(fd)
            finally:
                os.close(fd)
            # Without it the folder may turn up empty after a loss of power.
            folder = os.open(to, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return {"bytes": (to / "data.mdb").stat().st_size}


def _recall(segment: Segment, generation: int) -> float | None:
    try:
        return graph_recall(segment, generation, samples=RECALL_SAMPLES)
    except SegmentDamaged:
        return None


def main() -> None:
    """Serves jobs until the input ends. Arguments: the data directory, and "idle" to run only
    while the processor has nothing else to do."""
    # Setting up numpy and usearch must not print into the protocol.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    if sys.argv[2:] == ["idle"]:
        with contextlib.suppress(OSError, AttributeError):  # Linux has it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _die_with_parent()
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(jobs,), daemon=True).start()
    builder = Builder(Path(sys.argv[1]), out)
    builder.tell(ready=True)
    while True:
        line = jobs.get()
        try:
            builder.tell(done=builder.run(json.loads(line)))
        except Exception as error:  # the node decides what to do about it
            builder.tell(error=f"{type(error).__name__}: {error}")


def _listen(jobs: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)


def _die_with_parent() -> None:
    """Linux kills this process the moment the node is gone, however busy the machine is;
    elsewhere the end of the input has to do."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
