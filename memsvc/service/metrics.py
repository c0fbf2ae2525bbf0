"""Prometheus metrics of a node: what alerts look at, and what explains it.

No label ever holds a namespace, a token or anything else a caller chooses: their number is
unbounded, and metrics are read by people who may not read memories.
"""

from __future__ import annotations

import collections
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from memsvc.domain.errors import MemsvcError
from memsvc.domain.types import (
    Degraded,
    ForgetAnswer,
    ForgetRequest,
    Mode,
    NewMemory,
    Outcome,
    QueryAnswer,
    QueryRequest,
    WriteAnswer,
    WriteRequest,
)
from memsvc.service.control_group import memory_limit_bytes
from memsvc.service.metrics_sum import Sample, Summed, samples_of
from memsvc.service.readings import NodeCollector, NodeReadings

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
DIMENSION_REASON: Final = "DIMENSION_MISMATCH"
"""``reason`` of the error that counts as a dimension mismatch."""

# Both alert limits (0.4 and 0.8 s) and the budget of a search (0.08 s) are bounds themselves,
# so that a quantile near one of them is not smeared by interpolation.
CALL_BUCKETS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.18),
    *(0.25, 0.32, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0, 2.0, 5.0, 10.0),
)
COMMIT_BUCKETS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
GROUP_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
PEER_WINDOW_SECONDS: Final = 60.0

_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,39}\Z")
_MAX_REASONS = 60
_MEDIAN_WINDOW = 10_000
_MEDIAN_CHECK_EVERY = 1_000
INFLATED_MEDIAN: Final = 0.6
"""A median importance above it is warned of."""

_log = logging.getLogger(__name__)


class Peers:
    """Connections that made a call within the last minute.

    Python's gRPC does not tell how many connections are open; this comes close, and idle
    connections are closed anyway.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, float] = {}

    def saw(self, peer: str) -> None:
        """Notes a call of a connection."""
        self._seen[peer] = self._clock()
        if len(self._seen) > 20_000:
            self.count()

    def count(self) -> int:
        """How many there are; forgets the others."""
        with self._lock:
            since = self._clock() - PEER_WINDOW_SECONDS
            # A list of keys is made in one step, one of pairs is not; calls are noted meanwhile.
            for peer in list(self._seen):
                if self._seen.get(peer, since) < since:
                    self._seen.pop(peer, None)
            return len(self._seen)


class RunningMedian:
    """Median of about the last 10,000 values from 0 to 1, to one hundredth."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bins = [0.0] * 101
        self._total = 0.0

    def add(self, value: float) -> None:
        """Takes one; older ones fade once the window is full."""
        index = min(100, max(0, round(value * 100)))
        with self._lock:
            self._bins[index] += 1.0
            self._total += 1.0
            if self._total >= 2 * _MEDIAN_WINDOW:
                self._bins = [count / 2 for count in self._bins]
                self._total /= 2

    def value(self) -> float:
        """The median; NaN before the first value."""
        with self._lock:
            if not self._total:
                return float("nan")
            seen = 0.0
            for index, count in enumerate(self._bins):
                seen += count
                if seen >= self._total / 2:
                    return index / 100
            return 1.0


class Metrics:
    """All metrics of one node, in a registry of its own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry(auto_describe=False)
        self.peers = Peers()
        self._median = RunningMedian()
        self._inflated = False
        self._until_check = _MEDIAN_CHECK_EVERY
        self._reasons: set[str] = set()
        self._node = NodeCollector()
        self.others: Callable[[], Iterable[Sample]] = tuple
        """What other processes of the node have counted (``Metrics.samples`` of each), asked
        at each scrape."""
        self.registry.register(self._node)
        ProcessCollector(namespace="memsvc", registry=self.registry)
        self._calls = self._histogram(
            "memsvc_call_duration_seconds",
            "Time from arrival to answer, by call and status code",
            CALL_BUCKETS,
            ("call", "code"),
        )
        self._errors = self._counter(
            "memsvc_errors", "Calls refused or failed, by code and reason", ("code", "reason")
        )
        self._recalls = self._counter(
            "memsvc_recalls", "Queries that searched by vector or text", ("mode",)
        )
        self._empty = self._counter("memsvc_empty_recalls", "Recalls that found nothing", ("mode",))
        self._degraded = self._counter(
            "memsvc_degraded_answers", "Answers below the full service", ("level", "reason")
        )
        self._moves = self._counter(
            "memsvc_degraded_moves", "Levels of the node that came into force", ("level", "reason")
        )
        self.dimension_mismatches = self._counter(
            "memsvc_dimension_mismatches", "Vectors of another dimension than the embedding"
        )
        self._items = self._counter(
            "memsvc_write_items", "Items written, by what became of them", ("outcome",)
        )
        self._forgotten = self._counter(
            "memsvc_forgotten_memories", "Memories changed by Forget", ("mode",)
        )
        self._tiers = self._histogram(
            "memsvc_tier_search_duration_seconds",
            "Time that a search by vector spent in the segments of a tier",
            CALL_BUCKETS,
            ("tier",),
        )
        self._cache = self._counter(
            "memsvc_query_cache",
            "Queries looked for among the kept answers, by result: hit, miss",
            ("result",),
        )
        self._importance = self._histogram(
            "memsvc_importance",
            "Importance of new memories",
            tuple(step / 10 for step in range(1, 11)),
        )
        self._commit = self._histogram(
            "memsvc_commit_duration_seconds", "Time of one commit with fsync", COMMIT_BUCKETS
        )
        self._group = self._histogram("memsvc_commit_items", "Items in one commit", GROUP_BUCKETS)
        self._jobs = self._counter(
            "memsvc_builder_jobs", "Builder jobs that ended, by result", ("result",)
        )
        self._snapshots = self._counter(
            "memsvc_snapshots", "Snapshots taken or failed, by result", ("result",)
        )
        self._snapshot_duration = Gauge(
            "memsvc_snapshot_duration_seconds",
            "Time that the last snapshot took",
            registry=self.registry,
        )
        self._gauge(
            "memsvc_importance_median",
            "Median importance of about the last 10,000 new memories",
            self._median.value,
        )
        self._gauge(
            "memsvc_connections",
            "Connections that made a call within the last minute",
            self.peers.count,
        )
        self.active_calls = Gauge(
            "memsvc_active_calls", "Calls being served", registry=self.registry
        )

        self.readers = Gauge(
            "memsvc_readers", "Reader processes that serve", registry=self.registry
        )
        self.reader_deaths = self._counter(
            "memsvc_reader_deaths", "Reader processes that ended without being told to"
        )
        self._gauge(
            "memsvc_memory_limit_bytes",
            "Memory that this process may use: of its control group, or of the machine",
            lambda: float(memory_limit_bytes()),
        )

    def bind(self, read: Callable[[], NodeReadings]) -> None:
        """Where the gauges of the node come from; called at each scrape, must be quick."""
        self._node.read = read

    def exposition(self) -> bytes:
        """The text a scraper reads (CONTENT_TYPE)."""
        return generate_latest(Summed(self.registry, self.others()))

    def samples(self) -> list[Sample]:
        """What this process adds to the metrics of its node, for its ``others``."""
        return samples_of(self.registry)

    def call(self, call: str, code: str, seconds: float) -> None:
        """One finished call; ``call`` and ``code`` come from fixed sets."""
        self._calls.labels(call, code).observe(seconds)

    def error(self, error: MemsvcError) -> None:
        """A call that was refused or failed."""
        self._errors.labels(error.code.value, self._bounded(error.reason)).inc()
        if error.reason == DIMENSION_REASON:
            self.dimension_mismatches.inc()

    def incident(self) -> None:
        """A call that ended by a bug."""
        self._errors.labels("INTERNAL", "INTERNAL").inc()

    def wrote(self, request: WriteRequest, answer: WriteAnswer) -> None:
        """An answered Write. Answers remembered by request_id count only once."""
        if answer.replayed:
            return
        for outcome, count in collections.Counter(
            result.outcome for result in answer.results
        ).items():
            self._items.labels(outcome.name).inc(count)
        for item, result in zip(request.items, answer.results, strict=True):
            if isinstance(item, NewMemory) and result.outcome is Outcome.CREATED:
                importance = item.metadata.importance
                self._weighed(0.5 if importance is None else importance)

    def _weighed(self, importance: float) -> None:
        self._importance.observe(importance)
        self._median.add(importance)
        self._until_check -= 1
        if self._until_check > 0:
            return
        self._until_check = _MEDIAN_CHECK_EVERY
        median = self._median.value()
        if median > INFLATED_MEDIAN and not self._inflated:
            _log.warning(
                "the median importance of new memories is %.2f: when most are important, "
                "importance tells nothing; revise the rules of the clients",
                median,
            )
        self._inflated = median > INFLATED_MEDIAN

    def queried(self, request: QueryRequest, answer: QueryAnswer) -> None:
        """An answered Query. Reads by id or time are no recalls."""
        if answer.degraded.level:
            reason = self._bounded(answer.degraded.reason)
            self._degraded.labels(str(int(answer.degraded.level)), reason).inc()
        if request.ids or not (request.vectors or request.text) or answer.mode is Mode.BROWSE:
            return
        for hits in answer.lists:
            self._recalls.labels(answer.mode.name).inc()
            if not hits:
                self._empty.labels(answer.mode.name).inc()

    def searched(self, tier: str, seconds: float) -> None:
        """What a search by vector spent in a tier."""
        self._tiers.labels(tier).observe(seconds)

    def cached(self, hit: bool) -> None:
        """A query that was looked for among the kept answers."""
        self._cache.labels("hit" if hit else "miss").inc()

    def moved(self, now: Degraded) -> None:
        """A level of the node that came into force."""
        reason = self._bounded(now.reason) if now.level else ""
        self._moves.labels(str(int(now.level)), reason).inc()

    def forgot(self, request: ForgetRequest, answer: ForgetAnswer) -> None:
        """An answered Forget."""
        if not answer.replayed:
            self._forgotten.labels(request.mode.name).inc(answer.changed)

    def committed(self, seconds: float, items: int) -> None:
        """One commit of the writer."""
        self._commit.observe(seconds)
        self._group.observe(items)

    def built(self, ok: bool) -> None:
        """A builder job that ended."""
        self._jobs.labels("ok" if ok else "failed").inc()

    def snapshot(self, ok: bool, seconds: float) -> None:
        """A snapshot that was taken, or failed."""
        self._snapshots.labels("ok" if ok else "failed").inc()
        self._snapshot_duration.set(seconds)

    def _bounded(self, reason: str) -> str:
        # Reasons are constants of the code, but a degradation forced by hand carries an
        # operator's free text.
        if reason in self._reasons:
            return reason
        if not _REASON.match(reason) or len(self._reasons) >= _MAX_REASONS:
            return "OTHER"
        self._reasons.add(reason)
        return reason

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
    ) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

    def _gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        Gauge(name, text, registry=self.registry).set_function(read)
