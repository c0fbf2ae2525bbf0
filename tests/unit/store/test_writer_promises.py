"""What the writer thread promises to its callers."""

import threading
import time
from pathlib import Path

import pytest

from memsvc.domain.errors import DeadlineExceeded, ResourceExhausted
from memsvc.domain.log import Action, Entry
from memsvc.store.store import Store
from memsvc.store.write_txn import WriteTxn
from memsvc.store.writer import Writer
from tests.waiting import until


def note(txn: WriteTxn) -> int:
    return txn.append(Entry("", "", Action.NONE))


@pytest.fixture(params=[False, True], ids=["always", "every_1000ms"])
def writer(request, tmp_path: Path):
    store = Store(tmp_path)
    writer = Writer(store, lambda: time.time_ns() // 1_000_000, queue_max=10, lazy=request.param)
    writer.store = store
    yield writer
    writer.stop()
    store.close()


def position(writer) -> int:
    with writer.store.read() as snapshot:
        return snapshot.position


def test_a_cancelled_request_is_never_applied_and_takes_no_other_with_it(writer):
    hold, held = threading.Event(), threading.Event()

    def slow(txn: WriteTxn) -> int:
        held.set()
        hold.wait(5)
        return note(txn)

    first = writer.submit(slow)
    assert held.wait(5)
    second, third = writer.submit(note), writer.submit(note)
    assert second.cancel()
    assert not first.cancel(), "it has begun: it can no longer be taken back"
    hold.set()
    assert (first.result(5), third.result(5)) == (1, 2)
    writer.run(lambda txn: None)
    until(lambda: position(writer) == 2, 5, "both commits")


def test_a_request_past_its_deadline_is_refused_before_anything_is_applied(writer):
    with pytest.raises(DeadlineExceeded):
        writer.submit(note, deadline=time.monotonic() - 1).result(5)
    assert position(writer) == 0


def test_an_action_alone_never_runs_beside_an_open_transaction(writer):
    stop = threading.Event()

    def produce() -> None:
        while not stop.is_set():
            writer.submit(note).result(5)

    threads = [threading.Thread(target=produce) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):

            def alone() -> None:
                before = position(writer)
                time.sleep(0.02)
                # A second write transaction would block for ever if one were open.
                with writer.store.env.lmdb.begin(write=True):
                    pass
                assert position(writer) == before

            writer.exclusive(alone)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_the_queue_is_bounded_and_says_when_to_come_back(writer):
    hold, held = threading.Event(), threading.Event()

    def slow(_txn: WriteTxn) -> None:
        held.set()
        hold.wait(5)

    writer.submit(slow)
    assert held.wait(5)
    writer.submit(note, items=10)
    with pytest.raises(ResourceExhausted) as refused:
        writer.submit(note, items=1)
    assert refused.value.reason == "WRITE_QUEUE_FULL"
    assert refused.value.retry_after_ms
    hold.set()


def test_a_decision_that_fails_takes_no_other_of_its_group_with_it(writer):
    hold, held = threading.Event(), threading.Event()

    def slow(_txn: WriteTxn) -> None:
        held.set()
        hold.wait(5)

    def broken(_txn: WriteTxn) -> None:
        raise ResourceExhausted("no", reason="QUOTA_ITEMS")

    writer.submit(slow)
    assert held.wait(5)
    futures = [writer.submit(note), writer.submit(broken), writer.submit(note)]
    hold.set()
    assert (futures[0].result(5), futures[2].result(5)) == (1, 2)
    with pytest.raises(ResourceExhausted):
        futures[1].result(5)
