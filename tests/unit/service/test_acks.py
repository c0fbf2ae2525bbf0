"""Waiting for replicas: who counts, for how long, and what callers are told."""

from __future__ import annotations

import threading
import time

import pytest

from memsvc.domain.errors import DeadlineExceeded, Unavailable
from memsvc.service.acks import Acks, AckSettings
from memsvc.service.api import Control

NODES = ("a:1", "b:1", "c:1")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_a_wish_nothing_is_waited_for() -> None:
    acks = Acks(AckSettings())
    acks.confirm(5, Control())
    acks.guard()
    assert acks.lease


def test_a_position_is_confirmed_once_as_many_nodes_as_wanted_have_it() -> None:
    acks = Acks(AckSettings(2, NODES, timeout_s=30))
    first, second = acks.enter("1", 0, "a:1"), acks.enter("2", 0, "b:1")
    acks.acknowledged(first, 7)
    done = threading.Event()

    def wait() -> None:
        acks.confirm(7, Control())
        done.set()

    thread = threading.Thread(target=wait)
    thread.start()
    acks.acknowledged(second, 6)
    assert not done.wait(0.2)
    acks.acknowledged(second, 7)
    thread.join()
    assert done.is_set()


def test_a_follower_outside_of_the_group_does_not_count() -> None:
    acks = Acks(AckSettings(1, NODES, timeout_s=0.01))
    acks.enter("1", 9, "d:1")
    acks.enter("2", 9, "")
    with pytest.raises(Unavailable) as refused:
        acks.confirm(9, Control())
    assert refused.value.reason == "NOT_REPLICATED"
    with pytest.raises(Unavailable) as unled:
        acks.guard()
    assert unled.value.reason == "NOT_ENOUGH_REPLICAS"


def test_a_node_with_two_streams_counts_once() -> None:
    acks = Acks(AckSettings(2, NODES, timeout_s=0.01))
    acks.enter("1", 9, "a:1")
    acks.enter("1", 9, "a:1")
    with pytest.raises(Unavailable):
        acks.confirm(9, Control())
    assert not acks.lease


def test_a_node_that_went_away_does_not_confirm() -> None:
    acks = Acks(AckSettings(1, NODES, timeout_s=0.01))
    gone = acks.enter("1", 9, "a:1")
    acks.leave(gone)
    with pytest.raises(Unavailable):
        acks.confirm(9, Control())
    assert acks.followers == []


def test_the_deadline_of_the_call_is_told_as_such() -> None:
    acks = Acks(AckSettings(1, NODES, timeout_s=30))
    with pytest.raises(DeadlineExceeded) as refused:
        acks.confirm(1, Control(time.monotonic() + 0.01))
    assert refused.value.reason == "NOT_REPLICATED"


def test_the_lease_ends_when_replicas_are_not_heard_of_and_comes_back() -> None:
    clock = Clock()
    acks = Acks(AckSettings(1, NODES, lease_s=3.0), clock)
    following = acks.enter("1", 0, "a:1")
    assert acks.lease
    clock.now += 3.0
    assert acks.lease
    clock.now += 0.1
    assert not acks.lease
    acks.acknowledged(following, 0)
    assert acks.lease
