"""What load balancers are told of a node that they should leave, or should not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from memsvc.domain.recovery import GOOD_CHECKS
from memsvc.domain.types import HealthAnswer
from memsvc.rpc.serving import ADMIN_SERVICE, MEMORY_SERVICE, WHOLE_NODE, WRITES, Serving
from tests.edges.fakes import FakeApi

REPLICA = replace(FakeApi().health(), role="replica")
LIMIT_MS = 1_000


def lagging(milliseconds: int) -> HealthAnswer:
    return replace(REPLICA, lag_ms=milliseconds)


@pytest.mark.parametrize("role", ["standalone", "primary"])
def test_what_takes_writes_says_so_under_the_name_of_writes(role: str) -> None:
    told = Serving().look(replace(REPLICA, role=role), LIMIT_MS)
    assert all(told.values())
    assert WRITES == "memsvc.v1.MemoryService.Write"


def test_a_replica_serves_reads_and_no_writes() -> None:
    told = Serving().look(REPLICA, LIMIT_MS)
    assert (told[MEMORY_SERVICE], told[WRITES], told[ADMIN_SERVICE]) == (True, False, True)


def test_a_replica_that_lags_serves_no_reads_until_ten_good_looks() -> None:
    serving = Serving()
    assert serving.look(lagging(LIMIT_MS), LIMIT_MS)[MEMORY_SERVICE]
    told = serving.look(lagging(LIMIT_MS + 1), LIMIT_MS)
    assert (told[MEMORY_SERVICE], told[WHOLE_NODE]) == (False, True), "nobody restarts it"
    looks = [serving.look(REPLICA, LIMIT_MS)[MEMORY_SERVICE] for _ in range(GOOD_CHECKS)]
    assert looks == [False] * 9 + [True]


def test_a_replica_that_has_not_caught_up_since_its_start_serves_reads_once_it_has() -> None:
    serving = Serving()
    assert not serving.look(lagging(3_600_000), LIMIT_MS)[MEMORY_SERVICE]
    assert serving.look(lagging(0), LIMIT_MS)[MEMORY_SERVICE]


def test_without_a_limit_no_lag_is_too_large() -> None:
    assert Serving().look(lagging(86_400_000), 0)[MEMORY_SERVICE]


def test_a_node_that_is_not_ready_serves_nothing_and_is_back_when_it_is() -> None:
    serving = Serving()
    primary = replace(REPLICA, role="primary")
    assert not any(serving.look(replace(primary, ready=False), LIMIT_MS).values())
    assert all(serving.look(primary, LIMIT_MS).values())


def test_a_promoted_replica_that_lagged_serves_reads_at_once() -> None:
    serving = Serving()
    assert serving.look(REPLICA, LIMIT_MS)[MEMORY_SERVICE]
    assert not serving.look(lagging(LIMIT_MS + 1), LIMIT_MS)[MEMORY_SERVICE]
    assert serving.look(replace(REPLICA, role="primary"), LIMIT_MS)[MEMORY_SERVICE]


def test_a_replica_with_a_wrong_clock_serves_no_reads_and_is_not_restarted_for_it() -> None:
    told = Serving().look(replace(REPLICA, ready=False, takes_calls=True), LIMIT_MS)
    assert told == {MEMORY_SERVICE: False, WHOLE_NODE: True, ADMIN_SERVICE: True, WRITES: False}
