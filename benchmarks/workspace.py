"""Stores and bare indexes, made once for all benchmarks of a run (or, with --keep, of many)."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks import bare
from benchmarks.data import Dataset, Texts, write_item
from benchmarks.serving import Server
from memsvc.client import MemoryClient

TENANT: Final = "bench"
AGENT: Final = "agent"
NAMESPACE: Final = f"{TENANT}/{AGENT}"
BATCH: Final = 500
NEVER: Final = 1_000_000
"""storage.seal_rows while filling: everything is sealed at the end, in one piece."""


def settings_of(dataset: Dataset, dtype: str, **more: object) -> dict[str, object]:
    """Settings of every server over this data."""
    return {
        "index.dimension": dataset.dimension,
        "index.dtype": dtype,
        **more,
    }


def fill(
    client: MemoryClient, dataset: Dataset, low: int, high: int, namespace: str = NAMESPACE
) -> None:
    """Writes rows [low, high), two batches at a time."""
    texts = Texts()
    gate = threading.Semaphore(4)

    def items(start: int) -> list[Any]:
        return [
            write_item(
                texts,
                row,
                dataset.vectors[row],
                cluster=int(dataset.labels[row]) if len(dataset.labels) else None,
                share=float(dataset.shares[row]) if len(dataset.shares) else None,
            )
            for row in range(start, min(start + BATCH, high))
        ]

    def send(start: int) -> None:
        try:
            client.write(namespace, items(start), timeout=60.0)
        finally:
            gate.release()

    with ThreadPoolExecutor(2) as pool:
        futures = []
        for start in range(low, high, BATCH):
            gate.acquire()
            futures.append(pool.submit(send, start))
        for future in futures:
            future.result()


class Workspace:
    """A folder for stores; what is in it is used again. Removed at the end unless kept.

    ``say`` tells what is going on.
    """

    def __init__(self, root: Path, *, keep: bool) -> None:
        self.root = root
        self._keep = keep
        root.mkdir(parents=True, exist_ok=True)

    def store(
        self,
        dataset: Dataset,
        dtype: str,
        say: Callable[[str], None],
        *,
        layout: str = "merged",
    ) -> Path:
        """Data directory with the dataset sealed, but for its tail.

        ``layout``: "merged" into one segment, or "natural", as default settings left it.
        ``facts`` tells how long it took.
        """
        target = self.root / f"{dataset.name}-{dtype}-{layout}"
        if self._done(target).exists():
            return target
        shutil.rmtree(target, ignore_errors=True)
        rows = len(dataset.vectors) - dataset.tail
        facts: dict[str, Any] = {}
        if layout == "merged":
            unsealed = self._unsealed(dataset, rows, say)
            shutil.copytree(unsealed, target)
            settings = settings_of(dataset, dtype)
        else:
            settings = settings_of(dataset, dtype)
            say(f"writing {rows:,} rows of {dataset.dimension}-d, sealed on the way")
            with Server(target, settings) as server:
                fill(server.client, dataset, 0, rows)
        say(f"sealing {rows:,} rows, {dtype}, {layout}")
        with Server(target, settings) as server:
            facts["seal_seconds"] = server.settle(merge=layout == "merged")
            if dataset.tail:
                fill(server.client, dataset, rows, rows + dataset.tail)
            facts["partition"] = server.client.admin.inspect(TENANT, AGENT)["partition"]
        self._done(target).write_text(json.dumps(facts))
        segments = facts["partition"]["segments"]
        say(f"{len(segments)} segment(s), tail {facts['partition']['tail_rows']} rows")
        return target

    def facts(self, store: Path) -> dict[str, Any]:
        """What was noted when a store was made."""
        found: dict[str, Any] = json.loads(self._done(store).read_text())
        return found

    def _done(self, store: Path) -> Path:
        return self.root / f"{store.name}.done.json"

    def _unsealed(self, dataset: Dataset, rows: int, say: Callable[[str], None]) -> Path:
        """All rows in the tail: copied for each dtype, then sealed."""
        target = self.root / f"{dataset.name}-unsealed"
        if self._done(target).exists():
            return target
        shutil.rmtree(target, ignore_errors=True)
        say(f"writing {rows:,} rows of {dataset.dimension}-d")
        settings = settings_of(dataset, "bf16", **{"storage.seal_rows": NEVER})
        with Server(target, settings) as server:
            fill(server.client, dataset, 0, rows)
        self._done(target).write_text("{}")
        return target

    def copy(self, store: Path, name: str) -> Path:
        """A copy that may be changed."""
        target = self.root / name
        shutil.rmtree(target, ignore_errors=True)
        # A server that was killed leaves the lock file as a link to nothing.
        shutil.copytree(store, target, ignore=shutil.ignore_patterns("lock.mdb"))
        return target

    def fresh(self, name: str) -> Path:
        """An empty data directory."""
        target = self.root / name
        shutil.rmtree(target, ignore_errors=True)
        return target

    def bare(self, dataset: Dataset, dtype: str, say: Callable[[str], None]) -> bare.BareIndex:
        """A bare usearch index of the sealed rows, with the service's m and ef_construction."""
        rows = len(dataset.vectors) - dataset.tail
        path = self.bare_path(dataset, dtype)
        if not path.exists():
            seconds = bare.build(dataset.vectors[:rows], path, dtype)
            say(f"bare index built at {rows / seconds:,.0f} rows/s with two threads")
        return bare.BareIndex(path, dataset.dimension, dtype)

    def bare_path(self, dataset: Dataset, dtype: str) -> Path:
        """Its file."""
        return self.root / f"{dataset.name}-{dtype}.usearch"

    def drop(self, path: Path) -> None:
        """Removes a store that only one benchmark needs, unless all are kept."""
        if not self._keep:
            self._done(path).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Removes everything unless it is to be kept."""
        if not self._keep:
            shutil.rmtree(self.root, ignore_errors=True)


def drop_caches(folder: Path) -> None:
    """Lets the kernel forget the pages of all files in a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rows_found(items: Any) -> list[int]:
    """Rows of a list of hits."""
    return [hit.metadata.seq for hit in items]
