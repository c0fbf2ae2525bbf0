"""Who may become primary: each rule against every way in which nodes may have failed."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from memsvc.domain.group import (
    EPOCHS_APART,
    Role,
    Seen,
    deposed,
    further,
    last_primary,
    leader,
    may_lack,
    next_epoch,
)
from memsvc.domain.replication import Standing


def seen(
    listen: str, position: int = 0, epoch: int = 1, leads: bool = False, **more: object
) -> Seen:
    return Seen(listen, listen, leads, Standing("s", epoch, position), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("size", "min_acks"), [(2, 1), (3, 1), (3, 2), (5, 1), (5, 2), (5, 4)])
def test_a_promotion_that_is_not_refused_has_every_acknowledged_entry(
    size: int, min_acks: int
) -> None:
    # "p" is lost; each replica has a beginning of its log, of 0 to 2 entries.
    replicas = [f"r{i}" for i in range(size - 1)]
    for positions in product(range(3), repeat=size - 1):
        nodes = {
            name: seen(name, position, min_acks=min_acks)
            for name, position in zip(replicas, positions, strict=True)
        }
        # The last entry that as many replicas as wanted have: no later one was acknowledged.
        acknowledged = sorted(positions, reverse=True)[min_acks - 1]
        for count in range(1, size):
            for answered in combinations(replicas, count):
                me, *others = (nodes[name] for name in answered)
                if further(me, others, "p") is None and not may_lack(me, others, "p", size):
                    assert me.standing.position >= acknowledged


def test_without_acknowledging_replicas_only_the_former_primary_can_say_that_nothing_is_lost() -> (
    None
):
    me, other = seen("a", 7), seen("b", 5)
    assert may_lack(me, [other], "p", 3)
    assert not may_lack(me, [other, seen("p", 7, leads=True)], "p", 3)
    assert may_lack(me, [other, seen("p", 8, leads=True)], "p", 3)


def test_a_former_primary_does_not_vouch_for_what_a_later_one_acknowledged() -> None:
    # "p" handed over to "q", which is lost, and has none of its entries; "r" has them, silently.
    me = seen("a", 7, primary="p", min_acks=1)
    p = seen("p", 7, primary="q", fence=5, min_acks=1)
    assert last_primary(me, [p]) == ""
    assert may_lack(me, [p], last_primary(me, [p]), 4)
    # Where "p" was the last, its word counts, also after it was fenced for the candidate.
    assert last_primary(me, [seen("p", 7, leads=True)]) == "p"
    mine = seen("a", 7, primary="p", min_acks=1, fence=5)
    assert last_primary(mine, [seen("p", 7, primary="a", fence=5)]) == "p"


def test_a_candidate_that_never_led_does_not_vouch_for_what_the_lost_primary_acknowledged() -> None:
    # "c" fenced "a" and was not promoted to the end; "p" is lost; "d", which has more, is silent.
    me = seen("a", 7, primary="c", fence=5, min_acks=1)
    c = seen("c", 7, primary="p", fence=5, min_acks=1)
    e = seen("e", 7, primary="c", fence=5, min_acks=1)
    assert may_lack(me, [c, e], last_primary(me, [c, e]), 5)
    # It does once it has begun the epoch, as one that handed over to the candidate does.
    led = seen("c", 9, epoch=5, primary="p", fence=5, leads=True, min_acks=1)
    assert last_primary(me, [led]) == "c"
    handed_over = seen("c", 7, primary="a", fence=5, min_acks=1)
    assert last_primary(me, [handed_over]) == "c"


def test_the_furthest_is_by_epoch_before_position() -> None:
    me = seen("a", 9, epoch=1)
    assert further(me, [seen("b", 3, epoch=2)], "p") == seen("b", 3, epoch=2)
    assert further(me, [seen("b", 9, epoch=1)], "p") is None
    # The former primary is not asked to stand in for itself.
    assert further(me, [seen("p", 12, epoch=1)], "p") is None


def test_an_epoch_is_above_all_that_were_begun_or_promised() -> None:
    assert next_epoch([seen("a", epoch=3), seen("b", epoch=2, fence=7)]) == EPOCHS_APART
    assert next_epoch([seen("a", epoch=EPOCHS_APART + 3)]) == 2 * EPOCHS_APART


def test_a_primary_gives_way_to_one_of_a_later_epoch_only() -> None:
    me = seen("a", 9, epoch=2, leads=True, fence=2)
    assert deposed(me, [seen("b", 20, epoch=1, leads=True)]) is None
    assert deposed(me, [seen("b", 20, epoch=3)]) is None
    later = seen("b", 1, epoch=3, leads=True)
    assert deposed(me, [later]) == later
    # Two of one epoch: the same one of them gives way, whoever asks.
    twin = seen("b", 9, epoch=2, leads=True, fence=2)
    assert deposed(me, [twin]) == twin
    assert deposed(twin, [me]) is None


def test_a_follower_follows_the_latest_primary_and_none_from_before_its_fence() -> None:
    old, new = seen("a", 9, epoch=1, leads=True), seen("b", 5, epoch=2, leads=True)
    assert leader([old, new], 0) == new
    assert leader([old], 2) is None
    assert leader([old, seen("c", 9, epoch=4)], 0) == old


def test_a_role_forgets_what_belonged_to_the_one_before() -> None:
    role = Role(False, "p", "clients:1", 3, promoting=4, min_acks=1, configured="replica p")
    assert role.leading(4) == Role(True, fence=4, configured="replica p")
    assert role.following("q", 5) == Role(False, "q", fence=5, min_acks=1, configured="replica p")
