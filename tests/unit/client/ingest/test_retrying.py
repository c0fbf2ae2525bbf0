"""When a write is tried again, parted or thinned out."""

from __future__ import annotations

import pytest

from memsvc.client.embedders import EmbedderError, EmbedderUnavailable
from memsvc.client.errors import ClientError, unreachable
from memsvc.client.ingest.retrying import (
    Sampler,
    about_items,
    asked_pause_s,
    for_people,
    jittered_backoff_s,
    overloaded,
)

TOO_LARGE = ClientError("RESOURCE_EXHAUSTED", "larger than max", reason="RESOURCE_EXHAUSTED")
TOO_MANY = ClientError(
    "RESOURCE_EXHAUSTED", "Concurrent RPC limit exceeded!", reason="RESOURCE_EXHAUSTED"
)
RATE = ClientError("RESOURCE_EXHAUSTED", "slow", reason="RATE_LIMITED", retry_after_ms=250)
FULL = ClientError("RESOURCE_EXHAUSTED", "full", reason="STORE_FULL", retry_after_ms=60_000)
DIMENSION = ClientError("INVALID_ARGUMENT", "numbers", reason="DIMENSION_MISMATCH")


@pytest.mark.parametrize(
    ("error", "items", "people", "load"),
    [
        (ClientError("INVALID_ARGUMENT", "x", reason="INVALID_ARGUMENT"), True, False, False),
        (TOO_LARGE, True, False, True),
        (TOO_MANY, False, False, True),  # items were refused for good
        (RATE, False, False, True),
        (FULL, False, False, False),
        (DIMENSION, False, True, False),
        (ClientError("UNAUTHENTICATED", "x"), False, True, False),
        (ClientError("FAILED_PRECONDITION", "x", reason="EMBEDDING_UNKNOWN"), False, True, False),
        (unreachable("a:1", "refused"), False, False, False),
        (ClientError("ABORTED", "x", reason="VERSION_MISMATCH"), False, False, False),
        (EmbedderError("wrong key"), False, True, False),
        (EmbedderUnavailable("later"), False, False, False),
    ],
)
def test_each_error_is_met_as_it_deserves(
    error: Exception, items: bool, people: bool, load: bool
) -> None:
    assert (about_items(error), for_people(error), overloaded(error)) == (items, people, load)


def test_pauses_double_with_jitter_up_to_a_minute() -> None:
    assert [jittered_backoff_s(0.2, n, lambda: 0.5) for n in (1, 2, 3)] == [0.2, 0.4, 0.8]
    assert (jittered_backoff_s(1, 1, lambda: 0.0), jittered_backoff_s(1, 1, lambda: 1.0)) == (
        0.5,
        1.5,
    )
    assert jittered_backoff_s(5, 10_000, lambda: 0.5) == 60
    assert asked_pause_s(RATE) == 0.25 and asked_pause_s(DIMENSION) == 0


def test_sampling_lets_important_ones_through_and_recovers() -> None:
    sampler = Sampler()
    keys = [f"s:{n}:x" for n in range(4_000)]
    assert all(sampler.keeps(key, 0.1) for key in keys)
    sampler.overloaded()
    sampler.overloaded()
    kept = {key for key in keys if sampler.keeps(key, 0.79)}
    assert 800 < len(kept) < 1_200  # a quarter
    assert all(sampler.keeps(key, 0.8) for key in keys)
    sampler.overloaded()
    assert {key for key in keys if sampler.keeps(key, 0.5)} < kept
    for _ in range(20):
        sampler.overloaded()
    assert sampler.share == Sampler.LEAST
    for _ in range(20):
        sampler.succeeded()
    assert sampler.share == 1
