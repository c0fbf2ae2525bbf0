"""A node in a folder with a clock that tests turn, and short ways to call it."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from memsvc.config import Settings, load
from memsvc.domain.errors import MemsvcError
from memsvc.domain.types import Caller
from memsvc.embedded import Embedded
from memsvc.service import builder_process
from memsvc.service.builder import Builder
from memsvc.service.node import Node
from memsvc.store.store import Store

START = 1_700_000_000_000
HOUR = 3_600_000
DAY = 24 * HOUR
DIMENSION = 8
NS = ("acme", "helper", "s1")
REVIEWER = Caller("reviewer", may_review=True, may_admin=False)
READER = Caller("reader", may_review=False, may_admin=False)


class Clock:
    """UTC ms that only move when a test says so."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def turn(self, milliseconds: int) -> None:
        self.now += milliseconds


class _SharedStore(builder_process.Builder):
    """The builder's work on the store that this process has open already: LMDB must not
    open a file twice in one process."""

    def __init__(self, data_dir: Path, store: Store) -> None:
        super().__init__(data_dir, io.StringIO())
        self._store = store

    @contextmanager
    def opened(self) -> Iterator[Store]:
        yield self._store


class InlineBuilder(Builder):
    """Builds in this process: a segment takes milliseconds instead of a process start."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.store: Store | None = None
        self.opened = threading.Event()
        self.before_job: Callable[[dict[str, Any]], None] = lambda _job: None
        """Called with each job before it is carried out; may raise BuilderFailed."""
        self.after_job: Callable[[dict[str, Any]], None] = lambda _job: None

    def run(
        self,
        job: dict[str, Any],
        progress: Callable[[float], None] = lambda _share: None,
        *,
        idle: bool = False,
    ) -> Any:
        self.opened.wait()
        assert self.store is not None
        self.before_job(job)
        done = _SharedStore(self._data_dir, self.store).run(job)
        self.after_job(job)
        return done

    def stop(self) -> None:
        self.opened.set()


def make_settings(folder: Path, **changes: object) -> Settings:
    """Settings of a small store; keys with ``__`` for the dot, as storage__seal_rows=20."""
    values: dict[str, object] = {
        "storage.data_dir": str(folder),
        "index.dimension": DIMENSION,
        "index.attributes": ["city", "level"],
        # So that filters on others are judged on the records.
        "index.attribute_columns": 2,
        "query.timeout_ms": 60_000,
        "storage.reserve_bytes": 0,
        "storage.snapshot_interval_min": 0,
    }
    values.update({key.replace("__", "."): value for key, value in changes.items()})
    return load(None, {}, values).settings


class World:
    """A node that can be stopped and opened again on the same folder and clock."""

    def __init__(
        self,
        folder: Path,
        clock: Clock | None = None,
        *,
        inline: bool = True,
        random: Callable[[int], bytes] = os.urandom,
        **changes: object,
    ) -> None:
        self.folder = folder
        self.clock = clock or Clock()
        self.inline = inline
        self.random = random
        self.changes = changes
        self.builders: list[InlineBuilder] = []
        self.open()

    def open(self) -> None:
        """Opens the node."""
        self.builders = []

        def builders(data_dir: Path) -> Builder:
            if not self.inline:
                return Builder(data_dir)
            self.builders.append(InlineBuilder(data_dir))
            return self.builders[-1]

        settings = make_settings(self.folder, **self.changes)
        self.node = Node(
            settings, clock=self.clock, random=self.random, upkeep=False, builders=builders
        )
        for builder in self.builders:
            builder.store = self.node.store
            builder.opened.set()
        self.memory = Embedded(self.node)
        self.admin = self.memory.admin

    def restart(self) -> None:
        """Stops and opens again, a moment later: names of segments hold the time."""
        self.close()
        self.clock.turn(1)
        self.open()

    def close(self) -> None:
        """Stops the node."""
        self.node.stop()

    # -- short ways to call ------------------------------------------------------------

    def write(self, *items: Mapping[str, Any], ns: Iterable[str] = NS, **fields: Any) -> list[Any]:
        """Results of a Write."""
        results: list[Any] = self.memory.write(list(ns), list(items), **fields)["results"]
        return results

    def put(self, ns: Iterable[str] = NS, **item: Any) -> str:
        """Writes one memory and returns its id."""
        item.setdefault("summary", "a memory")
        (result,) = self.write(item, ns=ns)
        assert result["outcome"] == "CREATED"
        found: str = result["id"]
        return found

    def query(self, ns: Iterable[str] = NS, **fields: Any) -> dict[str, Any]:
        """A whole answer of Query."""
        return self.memory.query(list(ns), **fields)

    def ids(self, ns: Iterable[str] = NS, **fields: Any) -> list[str]:
        """Ids that a Query finds, in order."""
        return [item["id"] for item in self.query(ns, **fields)["items"]]

    def get(self, id_text: str, ns: Iterable[str] = NS, **fields: Any) -> dict[str, Any] | None:
        """One memory by id, None when it is not visible."""
        items = self.query(ns, ids=[id_text], **fields)["items"]
        return items[0] if items else None

    def all(self, ns: Iterable[str] = NS, **fields: Any) -> list[str]:
        """Ids of all visible memories, newest first."""
        return self.ids(ns, mode="BROWSE", top_k=200, **fields)

    def forget(self, ns: Iterable[str] = NS, **fields: Any) -> dict[str, Any]:
        """A whole answer of Forget."""
        return self.memory.forget(list(ns), **fields)

    def seal(self) -> None:
        """Puts every tail into a segment."""
        assert self.admin.maintain(1, False, False, 60)[1]

    def merge(self) -> None:
        """Puts every partition into one segment."""
        assert self.admin.maintain(1, True, False, 60)[1]

    def purge(self) -> None:
        """Merges, erases from files what was erased from records, compacts the database."""
        assert self.admin.maintain(1, True, True, 60)[1]

    def segments(self, ns: Iterable[str] = NS) -> list[dict[str, Any]]:
        """Segments of a partition."""
        tenant, agent, *_ = ns
        facts: Any = self.admin.inspect(tenant, agent, False, 0, "")["partition"]
        found: list[dict[str, Any]] = facts["segments"]
        return found


def vector(*numbers: float) -> list[float]:
    """A vector with these first numbers, the rest zero."""
    return [*numbers, *([0.0] * (DIMENSION - len(numbers)))]


def towards(cosine: float) -> list[float]:
    """A vector with this cosine to ``vector(1)``."""
    return vector(cosine, float(np.sqrt(1 - cosine * cosine)))


def error_of(call: Callable[[], object]) -> MemsvcError:
    """The error that a call raises."""
    try:
        call()
    except MemsvcError as error:
        return error
    raise AssertionError("no error was raised")
