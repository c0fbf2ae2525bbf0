"""Effects that take something away: texts and vectors of what is forgotten or past its time.

The bytes stay in free pages of the file and in segments until maintenance has rewritten both;
what is noted here (``dirty_since``, the table ``erasures``) tells it to.
"""

from __future__ import annotations

from memsvc.domain.log import Effect, Entry, VectorRange
from memsvc.domain.records import FLAG_CURRENT, FLAG_ERASED, State, unpack_state
from memsvc.domain.types import Status
from memsvc.store import keys
from memsvc.store.counters import Counters
from memsvc.store.keys import Partition


class Eraser:
    """Carries out such effects in the write transaction of ``store``."""

    def __init__(self, store: Counters) -> None:
        self._store = store
        self._txn, self._t = store.txn, store.tables
        self._generations: list[int] | None = None

    def generations_changed(self) -> None:
        """There may be vectors of others from here on."""
        self._generations = None

    def forget(self, entry: Entry, partition: Partition, e: Effect, old: State) -> list[int]:
        """Text and vectors of every version go at once; the state stays to answer for it."""
        number = partition.number
        changed = [e.row]
        for key, row_bytes in self._versions(e.id):
            row = keys.U64.unpack(row_bytes)[0]
            self._drop_old_version(entry, partition, key, row)
            changed.append(row)
        freed = self._erase_payload(entry, partition, e.row, old)
        if old.expires_at:
            self._store.unindex_expiry(partition, e.row, old.expires_at)
        flags, created, now = FLAG_CURRENT | FLAG_ERASED, old.created_at, entry.time
        state = State(e.id, e.version, e.status_after, flags, 0, created, now, 0, 0, 0, 0.0, 0, 0)
        self._txn.put(keys.row_key(number, e.row), state.pack(), db=self._t["states"])
        partition.active -= int(old.status == Status.ACTIVE)
        self._store.count(partition, -1, -freed)
        return changed

    def purge(self, entry: Entry, partition: Partition, e: Effect) -> list[int]:
        """Drops a payload whose time is over: of a replaced version, or of an expired
        memory (which then reads as expired without text)."""
        data = self._txn.get(keys.row_key(partition.number, e.row), db=self._t["states"])
        if data is None:
            # Gone with the current version, which this very entry has purged.
            return []
        old = unpack_state(data)
        if not old.current:
            self._drop_old_version(entry, partition, e.id + old.version.to_bytes(4, "big"), e.row)
            return []
        for key, row_bytes in self._versions(e.id):
            self._drop_old_version(entry, partition, key, keys.U64.unpack(row_bytes)[0])
        freed = self._erase_payload(entry, partition, e.row, old)
        state = old._replace(flags=old.flags | FLAG_ERASED, size=0)
        self._txn.put(keys.row_key(partition.number, e.row), state.pack(), db=self._t["states"])
        self._store.count(partition, 0, -freed)
        return [e.row]

    def purge_vectors(self, entry: Entry, purged: VectorRange) -> None:
        """Erases vectors of a dropped generation, of current and of replaced rows. Nobody
        searches them any more, so views need not learn of it."""
        partition = self._store.partition(entry.tenant, entry.agent)
        assert partition is not None
        number, freed = partition.number, 0
        start, end = (keys.VECTOR.pack(purged.generation, number, row) for row in purged[1:])
        found = []
        with self._txn.cursor(self._t["vectors"]) as cursor:
            if cursor.set_range(start):
                for key, value in cursor:
                    if key >= end:
                        break
                    found.append((key, keys.accounted_vector(len(value))))
        for key, size in found:
            row = keys.VECTOR.unpack(key)[2]
            state = self._store.state(number, row)
            self._txn.put(
                keys.row_key(number, row),
                state._replace(size=state.size - size).pack(),
                db=self._t["states"],
            )
            self._txn.delete(key, db=self._t["vectors"])
            freed += size
        if found:
            self._store.count(partition, 0, -freed)
            self._store.dirty_since = self._store.dirty_since or entry.time

    def _versions(self, id_bytes: bytes) -> list[tuple[bytes, bytes]]:
        found = []
        with self._txn.cursor(self._t["versions"]) as cursor:
            if cursor.set_range(id_bytes):
                for key, value in cursor:
                    if not key.startswith(id_bytes):
                        break
                    found.append((key, value))
        return found

    def _drop_old_version(
        self, entry: Entry, partition: Partition, version_key: bytes, row: int
    ) -> None:
        old = self._store.state(partition.number, row)
        freed = self._erase_payload(entry, partition, row, old)
        self._txn.delete(keys.row_key(partition.number, row), db=self._t["states"])
        self._txn.delete(version_key, db=self._t["versions"])
        self._store.count(partition, 0, -freed)

    def _erase_payload(self, entry: Entry, partition: Partition, row: int, old: State) -> int:
        """Deletes text and vectors of a row; returns the accounted bytes that are freed.

        The bytes stay in free pages of the file and in segments until maintenance has
        rewritten both: ``dirty_since`` and ``erasures`` tell it to.
        """
        number = partition.number
        self._txn.delete(keys.row_key(number, row), db=self._t["texts"])
        if self._generations is None:
            with self._txn.cursor(self._t["generations"]) as cursor:
                keys_found = cursor.iternext(values=False)
                self._generations = [int.from_bytes(key, "big") for key in keys_found]
        for generation in self._generations:
            self._txn.delete(keys.VECTOR.pack(generation, number, row), db=self._t["vectors"])
        if row < partition.sealed_row:
            since = keys.TENANT_VALUE.pack(entry.position, entry.time)
            self._txn.put(keys.row_key(number, row), since, db=self._t["erasures"])
        self._store.dirty_since = self._store.dirty_since or entry.time
        return old.size
