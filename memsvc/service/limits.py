"""What one caller may take: calls per second of a namespace, and calls at once of a node.

A call costs one, whatever it carries: batches are cheaper for everybody, and the items of a
Write are bounded by the write queue and the quotas of its tenant. A refused call costs
nothing, so a client that retries too early does not push its own turn away.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from memsvc.config import Settings
from memsvc.domain import validate
from memsvc.domain.errors import ResourceExhausted
from memsvc.domain.types import Namespace

MAX_BUCKETS: Final = 10_000
"""Namespaces whose use is remembered. The least recently seen is dropped beyond it, and
starts with a full bucket when it returns."""

POOL_RETRY_MS: Final = 200
"""What a caller is told to wait when every thread is taken and the queue is full."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Longest times of a call in ms, whatever its client allows."""

    read_ms: int = 5_000
    write_ms: int = 10_000


def timeouts_of(current: Callable[[], Settings]) -> Callable[[], Timeouts]:
    """Reads the timeouts from the settings in force at each call."""

    def read() -> Timeouts:
        server = current().server
        return Timeouts(server.read_timeout_ms, server.write_timeout_ms)

    return read


def check_namespace(namespace: Namespace) -> None:
    """Raises InvalidArgument unless tenant, agent and session are well formed.

    Runs before a namespace is used for anything: as the key of a bucket, or to ask whether a
    token covers it.
    """
    checker = validate.Checker()
    validate.check_namespace(namespace, checker)
    checker.finish()


class RateLimiter:
    """One token bucket for each tenant/agent. Safe to use from several threads.

    ``rate`` is calls per second in the long run (0 = no limit) and ``burst`` the calls that
    may come at once after a quiet time (0 = one second's worth, at least 1). ``clock`` gives
    seconds that never go back.
    """

    def __init__(
        self,
        rate: float = 0.0,
        burst: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_buckets: int = MAX_BUCKETS,
    ) -> None:
        self._clock = clock
        self._max_buckets = max_buckets
        self._lock = threading.Lock()
        # (tenant, agent) -> (tokens, when they were counted); most recently used last.
        self._buckets: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()
        self._rate = 0.0
        self._burst = 1.0
        self.configure(rate, burst)

    def configure(self, rate: float, burst: int) -> None:
        """Takes new limits; buckets keep what they hold, up to the new burst."""
        with self._lock:
            self._rate = rate
            self._burst = float(burst) if burst else max(1.0, rate)
            if rate <= 0:
                self._buckets.clear()

    def take(self, tenant: str, agent: str) -> None:
        """Takes one call from a namespace's bucket.

        Raises ResourceExhausted (reason RATE_LIMITED) with the time until the next call fits.
        """
        if self._rate <= 0:
            return
        with self._lock:
            rate, burst = self._rate, self._burst
            if rate <= 0:
                return
            tokens = self._draw(tenant, agent, rate, burst)
        if tokens < 1.0:
            raise ResourceExhausted(
                f"this namespace may make {rate:g} calls per second",
                reason="RATE_LIMITED",
                retry_after_ms=max(1, math.ceil((1.0 - tokens) / rate * 1_000)),
                hint="Send items in batches, or raise limits.requests_per_second.",
            )

    def _draw(self, tenant: str, agent: str, rate: float, burst: float) -> float:
        """Takes one token, if there is one; returns how many there were. Under the lock."""
        key = (tenant, agent)
        now = self._clock()
        held, counted = self._buckets.get(key, (burst, now))
        tokens = min(burst, held + max(0.0, now - counted) * rate)
        self._buckets[key] = (tokens - 1.0 if tokens >= 1.0 else tokens, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._max_buckets:
            self._buckets.popitem(last=False)
        return tokens

    def __len__(self) -> int:
        return len(self._buckets)


class CallPool(ThreadPoolExecutor):
    """Threads that answer calls, and the exact number of calls they have or wait for.

    Both protocols share one, so that ``max_calls`` bounds the node and not a listener. Calls
    past it must be refused by asking ``full`` first; ``submit`` itself never refuses.
    """

    def __init__(self, workers: int, max_calls: int, name: str = "memsvc-call") -> None:
        super().__init__(max_workers=workers, thread_name_prefix=name)
        self._count_lock = threading.Lock()
        self._pending = 0
        self.max_calls = max_calls

    @property
    def pending(self) -> int:
        """Calls that run or wait for a thread."""
        return self._pending

    @property
    def full(self) -> bool:
        """Whether another call should be refused."""
        return self._pending >= self.max_calls

    def refusal(self) -> ResourceExhausted:
        """What a caller is told when the pool is full."""
        return ResourceExhausted(
            f"{self.max_calls} calls are running or waiting already",
            reason="TOO_MANY_CALLS",
            retry_after_ms=POOL_RETRY_MS,
            hint="Retry with backoff; raise server.max_connections or server.workers.",
        )

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Like ThreadPoolExecutor.submit, and counts."""
        with self._count_lock:
            self._pending += 1
        try:
            future = super().submit(fn, *args, **kwargs)
        except BaseException:
            self._done(None)
            raise
        # Also called when the future is cancelled before it ran.
        future.add_done_callback(self._done)
        return future

    def _done(self, _future: Future[Any] | None) -> None:
        with self._count_lock:
            self._pending -= 1

    def close(self, timeout: float) -> int:
        """Lets running calls end; returns how many still ran after ``timeout`` seconds."""
        self.shutdown(wait=False, cancel_futures=True)
        until = time.monotonic() + timeout
        while self._pending and time.monotonic() < until:
            time.sleep(0.005)
        return self._pending
