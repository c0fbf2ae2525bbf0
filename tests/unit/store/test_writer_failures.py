"""What the writer does with a group, or an open transaction, that fails."""

import errno
import threading
from pathlib import Path

import pytest

from memsvc.domain.errors import ResourceExhausted
from memsvc.domain.log import Action, Entry
from memsvc.store.store import Store
from memsvc.store.write_txn import WriteTxn
from memsvc.store.writer import Writer


def note(txn: WriteTxn) -> int:
    return txn.append(Entry("", "", Action.NONE))


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path)
    yield store
    store.close()


def test_a_cancelled_write_on_a_full_disk_takes_no_forget_with_it(store: Store):
    hold, held = threading.Event(), threading.Event()
    full = True

    def slow(_txn: WriteTxn) -> None:
        held.set()
        hold.wait(5)

    def no_room(txn: WriteTxn) -> int:
        if full:
            raise OSError(errno.ENOSPC, "no room")
        return note(txn)

    def gave_up() -> None:
        nonlocal full
        full = False

    writer = Writer(store, lambda: 1, queue_max=10, on_full=gave_up)
    try:
        writer.submit(slow)
        assert held.wait(5)
        cancelled, write = writer.submit(note), writer.submit(no_room)
        forget = writer.submit(no_room, frees=True)
        assert cancelled.cancel()
        hold.set()
        assert forget.result(5) == 1
        with pytest.raises(ResourceExhausted):
            write.result(5)
        assert cancelled.cancelled()
    finally:
        writer.stop()


@pytest.mark.parametrize("lazy", [False, True])
def test_committed_items_are_counted(store: Store, lazy: bool):
    counted: list[int] = []
    writer = Writer(
        store,
        lambda: 1,
        queue_max=10,
        lazy=lazy,
        on_commit=lambda _p, _s, items, _t: counted.append(items),
    )
    writer.submit(note, items=3).result(5)
    writer.submit(note, items=2).result(5)
    writer.stop()
    assert (sum(counted), writer.stats.items) == (5, 5)


def test_an_entry_of_an_earlier_epoch_is_refused(store: Store):
    with store.write(1) as txn:
        txn.begin_epoch()
    with store.read() as snapshot:
        assert (snapshot.epoch, snapshot.epochs) == (2, {2: 1})
    with pytest.raises(ValueError, match="epoch"), store.write(1) as txn:
        txn.follow(Entry("", "", Action.NONE, epoch=1, position=2), b"")


def test_a_copy_that_replays_the_log_has_the_same_epochs(store: Store, tmp_path: Path):
    with store.write(1) as txn:
        note(txn)
        txn.begin_epoch()
        note(txn)
    other = Store(tmp_path / "other")
    with store.read() as snapshot, other.write(1) as txn:
        for position in range(1, snapshot.position + 1):
            found = snapshot.entry(position)
            assert found is not None
            txn.follow(found[0], found[2])
    with store.read() as ours, other.read() as theirs:
        assert theirs.epochs == ours.epochs == {2: 2}
        assert (theirs.epoch, theirs.digest) == (ours.epoch, ours.digest)
    other.close()
