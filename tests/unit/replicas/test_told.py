"""What a node of a group tells of clocks and secrets that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from memsvc.domain.replication import MAX_SKEW_MS, Skew
from memsvc.service.node import system_clock
from tests.unit.replicas.members import Member, make_members
from tests.waiting import until


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Member]]:
    """A primary and a replica, not started."""
    secret = tmp_path / "secret"
    secret.write_text("between us\n")
    made = make_members(tmp_path, token_file=str(secret))[:2]
    yield made
    for member in made:
        member.stop()


@pytest.mark.parametrize("ahead", [10_000, -10_000])
def test_a_replica_with_a_wrong_clock_says_so_and_is_not_ready(
    pair: list[Member], ahead: int
) -> None:
    a, b = pair
    off = [ahead]
    a.start()
    b.start(clock=lambda: system_clock() + off[0])
    until(lambda: not b.node.health().ready, 30, "it to find out")
    side = "ahead of" if ahead > 0 else "behind"
    assert f"s {side} the primary's" in " ".join(b.node.health().reasons)
    assert b.node.health().takes_calls, "a restart mends no clock"
    assert a.node.health().ready, "whose clock counts"
    off[0] = 0
    until(lambda: b.node.health().ready, 30, "the clock to be right")
    assert "clock" not in " ".join(b.node.health().reasons)


def test_a_node_with_another_secret_is_told_of_where_it_is_refused(
    pair: list[Member], tmp_path: Path
) -> None:
    a, b = pair
    a.start()
    Path(b.settings.replication.token_file).write_text("another\n")
    b.start()
    told = "127.0.0.1 asks with another secret than replication.token_file has here"
    until(lambda: told in a.node.health().reasons, 30, "the primary to say so")


def test_messages_that_are_late_are_not_taken_for_a_wrong_clock() -> None:
    skew = Skew()
    for late in (3_000, 5, 2_500, 9_000, 4, 3_000, 3_000, 3_000, 3_000):
        skew.heard(1_000_000, 1_000_000 + late)
        assert skew.milliseconds == 0, "too few to say anything"
    skew.heard(1_000_000, 1_003_000)
    assert skew.milliseconds == 4
    for _ in range(50):
        skew.heard(1_000_000, 1_000_000 + MAX_SKEW_MS + 1)
    assert skew.milliseconds == MAX_SKEW_MS + 1
    skew.forget()
    assert skew.milliseconds == 0
