"""Places for searching: as many as there are, in order, and never lost."""

from __future__ import annotations

import threading

import pytest

from memsvc.service.search.slots import OutOfTime, Slots
from tests.waiting import until


def patient() -> float:
    return 10.0


def test_places_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    slots, order = Slots(1), []
    slots.enter(patient)

    def ask(number: int) -> None:
        slots.enter(patient)
        order.append(number)
        slots.leave()

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(5)]
    for number, thread in enumerate(threads, 1):
        thread.start()
        until(lambda number=number: slots.waiting == number)
    slots.leave()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
    assert (slots.taken, slots.waiting) == (0, 0)


def test_who_gives_up_waiting_leaves_no_hole() -> None:
    slots, looks = Slots(1), iter([0.001, 0.001])
    slots.enter(patient)

    def hurried() -> float:
        try:
            return next(looks)
        except StopIteration:
            raise OutOfTime from None

    with pytest.raises(OutOfTime):
        slots.enter(hurried)
    assert (slots.taken, slots.waiting) == (1, 0)
    slots.leave()
    slots.enter(patient)
    assert slots.taken == 1


def test_a_place_given_to_who_just_gave_up_goes_on_to_the_next() -> None:
    slots = Slots(1)
    slots.enter(patient)

    def gives_up_when_given() -> float:
        slots.leave()  # the place is handed over while the caller looks at the time
        raise OutOfTime

    with pytest.raises(OutOfTime):
        slots.enter(gives_up_when_given)
    assert (slots.taken, slots.waiting) == (0, 0)


def test_one_agent_never_has_all_places() -> None:
    slots = Slots(3, each=2)
    slots.enter(patient, "busy")
    slots.enter(patient, "busy")
    waiting = threading.Thread(target=slots.enter, args=(patient, "busy"))
    waiting.start()
    until(lambda: slots.waiting == 1)
    slots.enter(patient, "other")
    slots.leave("other")
    assert (slots.taken, slots.waiting) == (2, 1)
    slots.leave("busy")
    waiting.join()
    assert (slots.taken, slots.waiting) == (2, 0)


def test_an_agent_without_a_place_goes_before_the_queue_of_another() -> None:
    slots, order = Slots(2, each=2), []
    slots.enter(patient, "busy")
    slots.enter(patient, "busy")

    def ask(who: str) -> None:
        slots.enter(patient, who)
        order.append(who)

    threads = [threading.Thread(target=ask, args=(who,)) for who in ("busy", "busy", "other")]
    for number, thread in enumerate(threads, 1):
        thread.start()
        until(lambda number=number: slots.waiting == number)
    slots.leave("busy")
    until(lambda: order == ["other"])
    slots.leave("busy")
    slots.leave("busy")
    for thread in threads:
        thread.join()
    assert order == ["other", "busy", "busy"]


def test_many_threads_never_hold_more_than_there_are() -> None:
    slots, inside, most = Slots(3), 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            slots.enter(patient)
            with lock:
                inside += 1
                most = max(most, inside)
            with lock:
                inside -= 1
            slots.leave()

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= most <= 3
    assert (slots.taken, slots.waiting) == (0, 0)
