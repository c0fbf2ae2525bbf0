"""What is bounded on the agent's side, at its edges."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from memsvc.client import RecallSettings
from memsvc.client.calls import MemoryCalls
from memsvc.client.errors import ClientError
from memsvc.client.recall.caches import MAX_SESSIONS, RecentTurns
from memsvc.client.recall.context import MAX_HANDLES, Handles
from memsvc.client.recall.touches import MAX_WAITING, UsedTouches


class Gate:
    """A client whose writes wait until they are let through, and then fail if told to."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.open = threading.Event()
        self.written: list[list[str]] = []
        self.error: ClientError | None = None

    def write(self, namespace: str, items: list[Any]) -> None:
        self.entered.set()
        self.open.wait(30)
        if self.error is not None:
            raise self.error
        self.written.append([item.id for item in items])


def touches() -> tuple[Gate, UsedTouches]:
    gate = Gate()
    return gate, UsedTouches(cast(MemoryCalls, gate))


def test_touches_beyond_those_that_may_wait_are_dropped_and_nobody_waits() -> None:
    gate, used = touches()
    used.add("acme/bot", ["first"])
    assert gate.entered.wait(30)
    for number in range(MAX_WAITING + 3):
        used.add("acme/bot", [str(number)])
    used.add("acme/bot", [])
    assert used.dropped == 3
    assert not used.flush(0.0)
    gate.open.set()
    assert used.flush(30.0)
    assert gate.written == [["first"], *([str(n)] for n in range(MAX_WAITING))]
    used.close(30.0)
    used.add("acme/bot", ["late"])
    assert len(gate.written) == MAX_WAITING + 1


def test_a_touch_that_fails_is_dropped_and_the_next_is_sent() -> None:
    gate, used = touches()
    gate.open.set()
    gate.error = ClientError("NOT_FOUND", "no such memory")
    used.add("acme/bot", ["gone"])
    assert used.flush(30.0) and used.dropped == 1
    gate.error = None
    used.add("acme/bot", ["there"])
    assert used.flush(30.0) and gate.written == [["there"]]
    used.close(30.0)


def test_closing_waits_no_longer_than_it_may_for_a_service_that_hangs() -> None:
    gate, used = touches()
    for number in range(MAX_WAITING + 1):
        used.add("acme/bot", [str(number)])
    assert gate.entered.wait(30)
    used.close(0.0)
    gate.open.set()


def test_the_session_that_was_quiet_longest_is_forgotten_first() -> None:
    recent = RecentTurns(20, 60.0, lambda: 0.0)
    for number in range(MAX_SESSIONS):
        recent.note(f"s{number}", "user", "hello", 0)
    recent.note("s0", "user", "again", 0)
    recent.note("one more", "user", "hello", 0)
    assert len(recent.of("s0")) == 2
    assert recent.of("s1") == [] and recent.of("s2") and recent.of("one more")


def test_handles_have_the_length_that_was_asked_for() -> None:
    assert len(Handles(8).of("0" * 24 + "89abcdef")) == 8
    for wrong in 3, 33:
        with pytest.raises(ValueError, match="handle_characters: expected 4 to 32"):
            RecallSettings(handle_characters=wrong)
    assert RecallSettings(handle_characters=4) != RecallSettings(handle_characters=32)


def test_the_handle_that_was_given_longest_ago_is_forgotten_first() -> None:
    handles = Handles()
    names = [f"{number:032x}" for number in range(MAX_HANDLES + 1)]
    given = [handles.of(name) for name in names[:-1]]
    assert len(set(given)) == MAX_HANDLES
    handles.of(names[0])
    handles.of(names[-1])
    assert handles.id_of(given[0]) == names[0]
    assert handles.id_of(given[1]) == given[1]
