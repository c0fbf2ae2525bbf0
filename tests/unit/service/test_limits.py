"""Limits that would let one caller starve the others, or leak."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from memsvc.domain.errors import ResourceExhausted
from memsvc.service.limits import CallPool, RateLimiter
from tests.unit.service.taking import taken
from tests.waiting import until


class Clock:
    """Seconds, turned by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_burst_then_rate(clock: Clock) -> None:
    limiter = RateLimiter(2.0, 5, clock=clock)
    assert taken(limiter, 20) == 5
    clock.now += 1.0
    assert taken(limiter, 20) == 2
    clock.now += 1_000.0
    assert taken(limiter, 20) == 5


def test_delay_told_is_the_delay_needed(clock: Clock) -> None:
    limiter = RateLimiter(4.0, 1, clock=clock)
    limiter.take("t", "a")
    with pytest.raises(ResourceExhausted) as caught:
        limiter.take("t", "a")
    delay = caught.value.retry_after_ms
    assert delay == 250 and caught.value.reason == "RATE_LIMITED"
    clock.now += (delay - 1) / 1_000
    assert taken(limiter, 1) == 0
    clock.now += 0.001
    assert taken(limiter, 1) == 1


def test_busy_namespace_does_not_take_the_turns_of_another(clock: Clock) -> None:
    limiter = RateLimiter(1.0, clock=clock)
    assert taken(limiter, 100, "busy") == 1
    assert taken(limiter, 1, "quiet") == 1


def test_impatient_caller_is_not_set_back_by_refusals(clock: Clock) -> None:
    limiter = RateLimiter(1.0, clock=clock)
    done = 0
    for tick in range(101):
        clock.now = tick / 10
        done += taken(limiter, 1)
    assert done in (10, 11)


def test_names_separate_tenant_and_agent(clock: Clock) -> None:
    limiter = RateLimiter(1.0, clock=clock)
    limiter.take("a:b", "c")
    limiter.take("a", "b:c")


def test_number_of_buckets_is_bounded(clock: Clock) -> None:
    limiter = RateLimiter(1.0, clock=clock, max_buckets=100)
    for number in range(1_000):
        limiter.take("t", str(number))
    assert len(limiter) == 100
    # The one in use is kept while others pass by.
    limiter.take("t", "kept")
    for number in range(99):
        limiter.take("t", f"n{number}")
        assert taken(limiter, 1, "kept") == 0


def test_no_limit_costs_and_keeps_nothing(clock: Clock) -> None:
    limiter = RateLimiter(0.0, clock=clock)
    assert taken(limiter, 1_000) == 1_000 and len(limiter) == 0


def test_new_limits_apply_at_once(clock: Clock) -> None:
    limiter = RateLimiter(1.0, 10, clock=clock)
    limiter.configure(1.0, 2)
    assert taken(limiter, 10) == 2
    limiter.configure(0.0, 0)
    assert taken(limiter, 10) == 10


def test_clock_that_goes_back_gives_nothing_away(clock: Clock) -> None:
    clock.now = 100.0
    limiter = RateLimiter(1.0, clock=clock)
    limiter.take("t", "a")
    clock.now = 50.0
    assert taken(limiter, 5) == 0


def test_many_threads_get_no_more_than_the_burst() -> None:
    limiter = RateLimiter(0.001, 50)
    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(taken(limiter, 50))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 50


def test_pool_counts_what_runs_and_what_waits() -> None:
    pool = CallPool(1, 2)
    release = threading.Event()
    futures: list[Future[object]] = [pool.submit(release.wait, 5) for _ in range(2)]
    assert pool.pending == 2 and pool.full
    release.set()
    for future in futures:
        future.result(5)
    until(lambda: pool.pending == 0, 5, "an empty pool", every=0.001)
    assert not pool.full
    assert pool.close(1.0) == 0


def test_calls_cancelled_before_they_ran_are_counted_off() -> None:
    pool = CallPool(1, 4)
    release = threading.Event()
    pool.submit(release.wait, 5)
    waiting = pool.submit(release.wait, 5)
    assert waiting.cancel()
    assert pool.pending == 1
    release.set()
    assert pool.close(5.0) == 0


def test_call_that_fails_is_counted_off() -> None:
    pool = CallPool(1, 4)
    future = pool.submit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        future.result(5)
    assert pool.close(5.0) == 0
    with pytest.raises(RuntimeError):
        pool.submit(print)
    assert pool.pending == 0
