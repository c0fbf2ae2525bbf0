"""One write transaction: reads that see its own changes, appending, and local upkeep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import lmdb

from memsvc.domain.errors import FailedPrecondition
from memsvc.domain.log import Action, Entry
from memsvc.domain.manifest import COLD, SegmentMeta, segment_from_json
from memsvc.domain.records import FLAG_ERASED
from memsvc.store import keys
from memsvc.store.apply import Applier
from memsvc.store.env import Env
from memsvc.store.keys import Partition
from memsvc.store.snapshot import LOCAL, Snapshot

UNSETTLED: Final = b"unsettled"
"""Name in ``meta`` of the mark of a lazy writer that has not stopped in order."""


def _size(segments: Iterable[SegmentMeta]) -> int:
    return sum(s.size for s in segments)


class Diverged(Exception):
    """Entries that were followed gave another digest here."""


class WriteTxn(Snapshot):
    """What a decision may read and do. Used by the writer thread only."""

    def __init__(
        self, env: Env, txn: lmdb.Transaction[bytes], now_ms: int, *, appends: bool = True
    ) -> None:
        super().__init__(env, txn)
        self._appends = appends
        self._applier = Applier(env, txn)
        self.now = max(now_ms, self._applier.time)
        """UTC ms for entries; never before the last entry."""

    def append(self, entry: Entry) -> int:
        """Gives the entry its epoch, position and time, stores and applies it. Raises
        FailedPrecondition where the log is another node's."""
        if not self._appends:
            raise FailedPrecondition(
                "this node follows the log of its primary",
                reason="NOT_PRIMARY",
                hint="send changes to the primary",
            )
        position = self._applier.position + 1
        self._applier.apply(
            replace(entry, epoch=self._applier.epoch, position=position, time=self.now)
        )
        return position

    def begin_epoch(self, least: int = 0, reason: str = "positions were lost") -> None:
        """Appends an entry of a new epoch, at least ``least``. Positions of the epochs before
        that lie behind are lost from here on, and followers learn it from the log."""
        entry = Entry("", "", Action.NONE, actor="system", reason=reason)
        applier = self._applier
        epoch = max(applier.epoch + 1, least)
        applier.apply(replace(entry, epoch=epoch, position=applier.position + 1, time=self.now))

    def follow(self, entry: Entry, digest: bytes) -> None:
        """Applies an entry of another database, which had this running digest after it. Raises
        Diverged when it is another here; the transaction must then be aborted."""
        self._applier.apply(entry)
        if self._applier.digest != digest:
            raise Diverged(f"entry {entry.position} gave another digest than where it came from")

    @property
    def position(self) -> int:
        """Position after the entries of this transaction."""
        return self._applier.position

    @property
    def epoch(self) -> int:
        """Epoch of the entries of this transaction."""
        return self._applier.epoch

    @property
    def accounted_bytes(self) -> int:
        """Accounted bytes after the entries of this transaction."""
        return self._applier.size

    @property
    def memories(self) -> int:
        """Memories after the entries of this transaction."""
        return self._applier.memories

    def partition(self, tenant: str, agent: str) -> Partition | None:
        """The partition as this transaction sees it; do not change it."""
        return self._applier.partition(tenant, agent)

    def tenant(self, tenant: str) -> tuple[int, int]:
        """Memories and accounted bytes of a tenant as this transaction sees them."""
        return self._applier.tenant(tenant)

    def tails(self) -> dict[int, int]:
        """Rows behind the sealed ones, of the partitions that this transaction touched."""
        return self._applier.tails()

    def flush(self) -> None:
        """Writes counters; the writer calls it before it commits."""
        self._applier.flush()

    # -- local upkeep: not in the log, since other nodes have their own files ----------

    def drop(self, table: str, found: Iterable[bytes]) -> None:
        """Deletes keys of an index that has served its purpose."""
        for key in found:
            self._txn.delete(key, db=self._t[table])

    def drop_requests(self, times: Iterable[bytes]) -> None:
        """Forgets remembered requests, by their ``request_times`` keys."""
        for key in times:
            self._txn.delete(key[8:], db=self._t["requests"])
            self._txn.delete(key, db=self._t["request_times"])

    def swap_segments(
        self,
        partition: int,
        remove: Iterable[str],
        add: SegmentMeta | None,
        relies: Iterable[str] = (),
    ) -> bool:
        """Makes a new segment answer in place of others, in one step.

        Returns False, and changes nothing, when one of ``remove``, or of those that the new
        segment ``relies`` on, is no longer there, or when changes that it has not seen are no
        longer kept (another segment was swapped in while it was built). Erasures that it has
        carried out are struck off, unless an older segment of the other tier may hold the row,
        those that came while it was built are noted, and changes that every segment of the
        partition has seen are dropped.
        """
        record = self._local(partition)
        prefix = partition.to_bytes(4, "big")
        present = {s.name: s for s in self.segments(partition)}
        gone = list(remove)
        if any(name not in present for name in (*gone, *relies)):
            return False
        if add is not None and add.position < record.pruned:
            return False
        removed = [present.pop(name) for name in gone]
        for name in gone:
            self._txn.delete(prefix + name.encode(), db=self._t["manifest"])
        if add is not None:
            present[add.name] = add
            self._txn.put(prefix + add.name.encode(), add.to_json(), db=self._t["manifest"])
            self._strike_erasures(add, [s for s in present.values() if s.tier != add.tier])
            self._note_erasures(add)
            record.sealed_row = max(record.sealed_row, add.row_hi)
        record.manifest += 1
        if present:
            self._prune_changes(record, min(s.position for s in present.values()))
        self._count_segments([add] if add else [], removed)
        self._store(record)
        return True

    def take_out_files(self, segment: SegmentMeta) -> None:
        """Puts a segment's record with fewer files in place of the one there is. Its rows stay
        as they are, and so does what is still to be erased from it."""
        key = segment.partition.to_bytes(4, "big") + segment.name.encode()
        data = self._txn.get(key, db=self._t["manifest"])
        assert data is not None
        self._txn.put(key, segment.to_json(), db=self._t["manifest"])
        self._count_segments([segment], [segment_from_json(data)])
        record = self._local(segment.partition)
        record.manifest += 1
        self._store(record)

    def prune_changes(self, partition: int, upto: int) -> None:
        """Drops changes up to a position; views that are older load the partition anew."""
        record = self._local(partition)
        segments = self.segments(partition)
        self._prune_changes(record, min([upto, *(s.position for s in segments)]))
        self._store(record)

    def _count_segments(self, added: list[SegmentMeta], removed: list[SegmentMeta]) -> None:
        cold = [s for s in added if s.tier == COLD], [s for s in removed if s.tier == COLD]
        for name, grown in (
            (b"segment_bytes", _size(added) - _size(removed)),
            (b"cold_bytes", _size(cold[0]) - _size(cold[1])),
            (b"cold_rows", sum(s.count for s in cold[0]) - sum(s.count for s in cold[1])),
            (b"cold_segments", len(cold[0]) - len(cold[1])),
        ):
            if grown:
                total = max(0, self._meta_int(name) + grown)
                self._txn.put(name, keys.U64.pack(total), db=self._t["meta"])

    def _local(self, partition: int) -> Partition:
        # The applier may hold a newer copy than the table.
        found = self.partition_number(partition)
        assert found is not None
        return self._applier.partition(found.tenant, found.agent) or found

    def _store(self, record: Partition) -> None:
        self._txn.put(record.number.to_bytes(4, "big"), record.pack(), db=self._t["partitions"])

    def _prune_changes(self, record: Partition, upto: int) -> None:
        prefix = record.number.to_bytes(4, "big")
        end = keys.CHANGE.pack(record.number, upto)
        found = []
        for key, _ in self._prefix("changes", prefix):
            if key > end:
                break
            found.append(key)
        self.drop("changes", found)
        if found:
            # The last change that is gone: a view that has seen it lacks nothing.
            record.pruned = keys.CHANGE.unpack(found[-1])[1]

    def _strike_erasures(self, segment: SegmentMeta, others: list[SegmentMeta]) -> None:
        start = keys.row_key(segment.partition, segment.row_lo)
        found = []
        for row, value in self._range("erasures", start, segment.partition, segment.row_hi):
            position = keys.TENANT_VALUE.unpack(value)[0]
            held = any(s.row_lo <= row < s.row_hi and s.position < position for s in others)
            if position <= segment.position and not held:
                found.append(row)
        self.strike_erasures(segment.partition, found)

    def strike_erasures(self, partition: int, rows: Iterable[int]) -> None:
        """Says that no segment holds these erased rows any more."""
        self.drop("erasures", (keys.row_key(partition, row) for row in rows))

    def _note_erasures(self, segment: SegmentMeta) -> None:
        """Rows that were erased after the builder had read them are in its files."""
        for row, _ in self.changes(segment.partition, segment.position):
            if not segment.row_lo <= row < segment.row_hi:
                continue
            state = self.state(segment.partition, row)
            if state is None or state.flags & FLAG_ERASED:
                self._txn.put(
                    keys.row_key(segment.partition, row),
                    keys.TENANT_VALUE.pack(self.position, self.now),
                    db=self._t["erasures"],
                )

    def date_erasure(self, partition: int, row: int, time_ms: int) -> None:
        """Says that a row, which segments may still hold, was erased earlier: at ``time_ms``."""
        key = keys.row_key(partition, row)
        value = self._txn.get(key, db=self._t["erasures"])
        if value is not None:
            position, time = keys.TENANT_VALUE.unpack(value)
            value = keys.TENANT_VALUE.pack(position, min(time, time_ms))
            self._txn.put(key, value, db=self._t["erasures"])

    def keep(self, name: bytes, value: bytes | None) -> None:
        """Puts down something of this node alone under a name, or strikes it off (None)."""
        if value is None:
            self._txn.delete(LOCAL + name, db=self._t["meta"])
        else:
            self._txn.put(LOCAL + name, value, db=self._t["meta"])

    def set_unsettled(self, unsettled: bool) -> None:
        """Puts or takes away the mark that a crash from here on loses acknowledged writes."""
        if unsettled:
            self._txn.put(UNSETTLED, b"1", db=self._t["meta"])
        else:
            self._txn.delete(UNSETTLED, db=self._t["meta"])
