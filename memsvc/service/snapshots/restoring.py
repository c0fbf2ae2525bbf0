"""Restoring a store to a position: a snapshot, the entries after it, and what was erased since.

The result is a data directory that did not exist before. It appears under its name when it is
whole and on disk; see DESIGN.md for what it holds and why.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from memsvc.domain.errors import FailedPrecondition
from memsvc.domain.log import Action, Effect, Entry, unchanged_effect
from memsvc.domain.records import FLAG_ERASED
from memsvc.domain.types import Status
from memsvc.segments.files import fsync_directory, fsync_tree
from memsvc.service.compaction import forget_dirt
from memsvc.service.snapshots.copying import checked, damaged
from memsvc.service.snapshots.folders import write_durably
from memsvc.service.snapshots.logs import Erased, digest_at, fork, time_of
from memsvc.service.snapshots.manifest import DATABASE, SnapshotFile
from memsvc.service.snapshots.places import Found, Place
from memsvc.service.snapshots.planning import FoundLog, Plan, find, make_plan, not_restorable
from memsvc.store.env import Env, directory_lock
from memsvc.store.feed import records
from memsvc.store.snapshot import Snapshot
from memsvc.store.store import Store
from memsvc.store.write_txn import WriteTxn

WORK_SUFFIX: Final = ".restoring"
REPLAY_BATCH: Final = 200
"""Entries applied in one transaction."""
_SCRATCH: Final = "fetched"
"""Folder in the making for databases from an object store."""
ERASE_BATCH: Final = 2_000
"""Effects of one entry."""
ACTOR: Final = "system"


class Progress(Protocol):
    """Told what is done ("copying", "replaying", "reading", "erasing"), how much more (bytes,
    entries, entries, memories), and of how much; 0 when that is not known."""

    def __call__(self, what: str, more: int, of: int) -> None:
        """Called often."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What was made: the wished ``position`` and the ``time`` of its entry (UTC ms), where the
    restored log ends (``end``, ``epoch``), which snapshot it began with (None = the log alone),
    how many entries were applied to it, and how many memories were erased again."""

    position: int
    time: int
    end: int
    epoch: int
    base: str | None
    replayed: int
    erased: int
    memories: int


def restore(
    source: Place,
    target: Path,
    *,
    now_ms: int,
    position: int | None = None,
    at_ms: int | None = None,
    data_dir: Path | None = None,
    progress: Progress = lambda what, more, of: None,
) -> Restored:
    """Makes the data directory ``target`` from the snapshots in ``source``.

    ``source`` is a snapshot or holds several. The state is that of ``position``, or of the
    last entry not later than ``at_ms`` (UTC ms), or the newest. Entries after a snapshot come
    from later ones, or from ``data_dir``, the directory of a node that does not run. ``now_ms``
    is the time of the entries that are added.

    Raises FailedPrecondition with reason NO_SNAPSHOT, SNAPSHOT_DAMAGED, NOT_EMPTY,
    NOT_RESTORABLE (the message says which points are), DATA_DIR_IN_USE; OSError; what places
    raise.
    """
    _check_target(target)
    work = target.with_name(target.name + WORK_SUFFIX)
    with ExitStack() as stack:
        _clear(work)
        try:
            logs = find(source, data_dir, work / _SCRATCH, stack)
            plan = make_plan(logs, position, at_ms, now_ms)
            done = _Restoring(plan, work, now_ms, progress).run()
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
        shutil.rmtree(work / _SCRATCH, ignore_errors=True)
        fsync_tree(work)
        if target.exists():
            target.rmdir()
        os.rename(work, target)
        fsync_directory(target.parent)
    return done


def _check_target(target: Path) -> None:
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise FailedPrecondition(
            f"{target} is there and not an empty directory",
            reason="NOT_EMPTY",
            hint="restore to a directory that does not exist; nothing is ever overwritten",
        )
    if target.is_dir() and os.path.ismount(target):
        raise FailedPrecondition(
            f"{target} is a mount point",
            reason="NOT_EMPTY",
            hint="restore to a folder in it: what is made gets its name at the end",
        )


def _clear(work: Path) -> None:
    """Removes what a restore that died has left; refuses while one runs."""
    if work.exists():
        with directory_lock(work):
            for child in work.iterdir():
                if child.is_dir():
                    shutil.rmtree(child)
    (work / "store").mkdir(parents=True, mode=0o700)


class _Restoring:
    """One restore in the making."""

    def __init__(self, plan: Plan, work: Path, now_ms: int, progress: Progress) -> None:
        self._plan = plan
        self._work = work
        self._now = now_ms
        self._progress = progress
        self._lacking: set[tuple[int, int, bytes]] = set()
        """Partition, row and memory of payloads that the log could not give back."""
        self._erased = Erased()

    def run(self) -> Restored:
        plan = self._plan
        if plan.base is not None:
            self._copy(plan.base)
        store = Store(self._work, new_id=lambda: bytes.fromhex(plan.main.log.store_id))
        try:
            replayed = self._replay(store)
            with store.read() as state:
                self._read_erasures(state)
                entries_of_erasure = list(self._erase_again(state))
                self._check_lacking(state)
            erased = self._append(store, entries_of_erasure)
            self._clean(store, replayed or erased)
            with store.read() as state:
                done = Restored(
                    position=plan.position,
                    time=time_of(state, plan.position),
                    end=state.position,
                    epoch=state.epoch,
                    base=None if plan.base is None else plan.base.where,
                    replayed=replayed,
                    erased=erased,
                    memories=state.memories,
                )
        finally:
            store.close()
        return done

    def _copy(self, base: FoundLog) -> None:
        """Copies, never links: the restored store must not share its fate with the snapshot."""
        found = base.snapshot
        assert found is not None
        for file in found.manifest.files:
            target = self._work / file.path
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            mode = 0o600 if file.path == DATABASE else 0o444
            write_durably(target, self._copied(found, file), mode)

    def _copied(self, found: Found, file: SnapshotFile) -> Iterator[memoryview]:
        for piece in checked(found, file):
            yield piece
            self._progress("copying", len(piece), found.manifest.size)

    def _replay(self, store: Store) -> int:
        """Applies the entries up to the wished position; returns how many."""
        wanted, log = self._plan.position, self._plan.main.log
        with store.read() as state:
            first = at = state.position
        while at < wanted:
            batch = list(islice(records(log, at), min(REPLAY_BATCH, wanted - at)))
            with store.write(0) as txn:
                for record in batch:
                    txn.follow(record.entry, record.digest)
                    self._note_lacking(txn, record.entry)
            at += len(batch)
            self._progress("replaying", len(batch), wanted - first)
        return wanted - first

    def _note_lacking(self, txn: WriteTxn, entry: Entry) -> None:
        for effect in entry.effects:
            if effect.payload_hash and effect.payload is None:
                partition = txn.partition(entry.tenant, entry.agent)
                assert partition is not None
                self._lacking.add((partition.number, effect.row, effect.id))

    def _read_erasures(self, state: Snapshot) -> None:
        """From every log, behind where it leaves the restored history."""
        newest_first = sorted(self._plan.logs, key=lambda one: one.log.position, reverse=True)
        read: list[Snapshot] = []
        for one in newest_first:
            log = one.log
            if any(digest_at(other, log.position) == log.digest for other in read):
                continue  # a part of one that was read
            read.append(log)
            after = fork(state, log)
            total = log.position - after
            self._erased.read(log, after, partial(self._progress, "reading", of=total))

    # -- what was erased since ---------------------------------------------------------

    def _erase_again(self, state: Snapshot) -> Iterator[Entry]:
        """Entries that erase what was erased since. Batches have one namespace each."""
        forget: dict[int, list[Effect]] = {}
        for memory in self._erased.memories:
            found = state.locate(memory)
            if found is None:
                continue
            number, row = found
            before = state.state(number, row)
            if before is not None and before.status != Status.FORGOTTEN:
                forget.setdefault(number, []).append(
                    unchanged_effect(before, row, Action.FORGET)._replace(
                        version=before.version + 1,
                        status_after=Status.FORGOTTEN,
                        ts=0,
                        importance=0.0,
                        expires_at=0,
                        recalled_at=0,
                        recall_count=0,
                    )
                )
        purge: dict[int, list[Effect]] = {}
        gone = self._erased.memories
        for (memory, row), truncated in (
            *((key, False) for key in self._erased.expired),
            *((key, True) for key in self._erased.truncated),
        ):
            found = state.locate(memory)
            before = None if found is None else state.state(found[0], row)
            if found is None or before is None or before.id != memory or memory in gone:
                continue
            # A version that was only replaced later is what is asked for.
            if before.current and (truncated or before.flags & FLAG_ERASED):
                continue
            purge.setdefault(found[0], []).append(unchanged_effect(before, row, Action.PURGE))
        for action, by_partition in ((Action.FORGET, forget), (Action.PURGE, purge)):
            for number, effects in by_partition.items():
                partition = state.partition_number(number)
                assert partition is not None
                for start in range(0, len(effects), ERASE_BATCH):
                    yield Entry(
                        partition.tenant,
                        partition.agent,
                        action,
                        tuple(effects[start : start + ERASE_BATCH]),
                        actor=ACTOR,
                        reason="erased after the position that was restored",
                    )

    def _check_lacking(self, state: Snapshot) -> None:
        """Payloads that are gone but were not erased: of versions that were replaced later and
        dropped with the log's payloads."""
        for number, row, memory in self._lacking:
            found = state.state(number, row)
            if found is None or not found.current or found.status == Status.FORGOTTEN:
                continue
            if memory in self._erased.memories or (memory, row) in self._erased.expired:
                continue
            if (memory, row) not in self._erased.truncated:
                raise damaged(self._plan.main.where, f"the payload of row {row} is missing")
            raise not_restorable(
                f"of position {self._plan.position} some texts are no longer kept: they were "
                "replaced later and are past storage.log_retention_days",
                self._plan,
                self._erased,
            )

    def _append(self, store: Store, erasing: list[Entry]) -> int:
        """Begins the epoch and erases in it; returns how many memories were erased."""
        with store.write(self._now) as txn:
            txn.begin_epoch(self._plan.epoch, f"restored to position {self._plan.position}")
            txn.set_unsettled(False)
        count = 0
        for entry in erasing:
            with store.write(self._now) as txn:
                txn.append(entry)
                self._date(txn, entry)
            count += len(entry.effects)
            self._progress("erasing", len(entry.effects), 0)
        return count

    def _date(self, txn: WriteTxn, entry: Entry) -> None:
        """Segment files are to be rid of a row within hours of when it was erased at first."""
        partition = txn.partition(entry.tenant, entry.agent)
        assert partition is not None
        times = self._erased.memories, self._erased.expired, self._erased.truncated
        for effect in entry.effects:
            for found in (
                times[0].get(effect.id),
                times[1].get((effect.id, effect.row)),
                times[2].get((effect.id, effect.row)),
            ):
                if found is not None:
                    txn.date_erasure(partition.number, effect.row, found)

    def _clean(self, store: Store, changed: int) -> None:
        """Rids the database file of what was erased in it."""
        if not changed:
            forget_dirt(store.env)  # it is a compacted copy
            return
        folder = self._work / "store.new"
        folder.mkdir(mode=0o700)
        fd = os.open(folder / "data.mdb", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            store.compact_copy(fd)
            os.fsync(fd)
        finally:
            os.close(fd)
        copy = Env(folder, readonly=False)
        forget_dirt(copy)
        copy.close()
        fsync_directory(folder)
        store.swap_file(folder)
