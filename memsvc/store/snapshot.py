"""Reading one position: everything a query needs, pinned to one LMDB snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from memsvc.domain.log import Entry
from memsvc.domain.manifest import SegmentMeta, segment_from_json
from memsvc.store import codec, keys
from memsvc.store.keys import Partition
from memsvc.store.row_reads import RowReads

LOCAL: Final = b"local/"
"""Names in ``meta`` of what belongs to this node and its files, and is not in the log."""


class Snapshot(RowReads):
    """Reads at one position. Valid inside the ``with`` of Store.read(); the bytes it
    returns are copies and stay valid."""

    # -- the whole store ---------------------------------------------------------------

    @property
    def store_id(self) -> str:
        """Identity of the store, 32 hex digits."""
        data = self._txn.get(b"store_id", db=self._t["meta"])
        return "" if data is None else data.decode()

    @property
    def position(self) -> int:
        """Position of the last entry; 0 in an empty store."""
        return self._meta_int(b"position")

    @property
    def epoch(self) -> int:
        """Epoch of the history this store is on."""
        return self._meta_int(b"epoch")

    @property
    def epochs(self) -> dict[int, int]:
        """First position of each epoch but the first."""
        data = self._txn.get(b"epochs", db=self._t["meta"])
        return {} if data is None else {int(e): at for e, at in json.loads(data).items()}

    @property
    def time(self) -> int:
        """Time of the last entry, UTC ms."""
        return self._meta_int(b"time")

    @property
    def memories(self) -> int:
        """Memories that are not forgotten."""
        return self._meta_int(b"memories")

    @property
    def accounted_bytes(self) -> int:
        """Accounted bytes."""
        return self._meta_int(b"bytes")

    @property
    def segment_bytes(self) -> int:
        """Bytes of segment files."""
        return self._meta_int(b"segment_bytes")

    @property
    def cold(self) -> tuple[int, int, int]:
        """Cold segments, their rows when they were built, and their bytes."""
        return (
            self._meta_int(b"cold_segments"),
            self._meta_int(b"cold_rows"),
            self._meta_int(b"cold_bytes"),
        )

    @property
    def dirty_since(self) -> int:
        """When the oldest payload was erased that the file may still hold; 0 = none."""
        return self._meta_int(b"dirty_since")

    @property
    def digest(self) -> bytes:
        """Running digest over the headers of the log, 16 bytes."""
        return self._txn.get(b"digest", bytes(16), db=self._t["meta"])

    def count(self, table: str) -> int:
        """Entries of a table."""
        return self._txn.stat(self._t[table])["entries"]

    # -- partitions --------------------------------------------------------------------

    def partition(self, tenant: str, agent: str) -> Partition | None:
        """The partition of a tenant and agent, None when nothing was ever written."""
        number = self._txn.get(keys.name_key(tenant, agent), db=self._t["names"])
        return None if number is None else self.partition_number(int.from_bytes(number, "big"))

    def partition_number(self, number: int) -> Partition | None:
        """The partition with a number."""
        data = self._txn.get(number.to_bytes(4, "big"), db=self._t["partitions"])
        return None if data is None else keys.unpack_partition(number, data)

    def partitions(self, start: bytes = b"", prefix: bytes = b"") -> Iterator[Partition]:
        """Partitions in order of tenant, agent, from the name key ``start`` on, as long as
        the name key begins with ``prefix``."""
        with self._txn.cursor(self._t["names"]) as cursor:
            if not cursor.set_range(max(start, prefix) or b"\0"):
                return
            for name, number in cursor:
                if not name.startswith(prefix):
                    return
                found = self.partition_number(int.from_bytes(number, "big"))
                if found is not None:
                    yield found

    def tenant(self, tenant: str) -> tuple[int, int]:
        """Memories and accounted bytes of a tenant."""
        data = self._txn.get(tenant.encode(), db=self._t["tenants"])
        if data is None:
            return 0, 0
        memories, size = keys.TENANT_VALUE.unpack(data)
        return memories, size

    def segments(self, partition: int) -> list[SegmentMeta]:
        """Sealed segments of a partition, by first row."""
        prefix = partition.to_bytes(4, "big")
        found = [segment_from_json(value) for _, value in self._prefix("manifest", prefix)]
        return sorted(found, key=lambda s: s.row_lo)

    def all_segments(self) -> Iterator[SegmentMeta]:
        """Sealed segments of all partitions."""
        with self._txn.cursor(self._t["manifest"]) as cursor:
            for _, value in cursor:
                yield segment_from_json(value)

    # -- log and indexes by time -------------------------------------------------------

    def entry(self, position: int) -> tuple[Entry, bytes, bytes] | None:
        """An entry without payloads, its bytes, and the running digest after it."""
        data = self._txn.get(keys.U64.pack(position), db=self._t["log"])
        return None if data is None else (codec.decode(data[16:]), data[16:], data[:16])

    def audit(self, id_bytes: bytes) -> Iterator[Entry]:
        """The life of a memory: entries that changed it, oldest first."""
        for key, _ in self._prefix("audit", id_bytes):
            found = self.entry(int.from_bytes(key[16:], "big"))
            if found is not None:
                yield found[0]

    def request(self, key: bytes) -> tuple[int, bytes, bytes] | None:
        """Time, fingerprint and response of a remembered request."""
        data = self._txn.get(key, db=self._t["requests"])
        if data is None:
            return None
        return keys.U64.unpack_from(data)[0], data[8:24], data[24:]

    def due(self, table: str, until: int, limit: int) -> list[tuple[int, int, int]]:
        """(time, partition, row) of a by-time table (expiry, replaced, expired) with
        time <= until, oldest first, at most ``limit``."""
        found: list[tuple[int, int, int]] = []
        with self._txn.cursor(self._t[table]) as cursor:
            if not cursor.first():
                return found
            for key in cursor.iternext(values=False):
                time, partition, row = keys.TIMED_ROW.unpack(key)
                if time > until or len(found) >= limit:
                    break
                found.append((time, partition, row))
        return found

    def due_requests(self, until: int, limit: int) -> list[bytes]:
        """Keys of ``request_times`` with time <= until, oldest first."""
        found: list[bytes] = []
        with self._txn.cursor(self._t["request_times"]) as cursor:
            if cursor.first():
                for key in cursor.iternext(values=False):
                    if keys.U64.unpack_from(key)[0] > until or len(found) >= limit:
                        break
                    found.append(key)
        return found

    def erasures_of(self, partition: int) -> Iterator[tuple[int, int, int, int]]:
        """(partition, row, position, time) of erased rows that its segments may still hold."""
        for key, value in self._prefix("erasures", partition.to_bytes(4, "big")):
            position, time = keys.TENANT_VALUE.unpack(value)
            yield partition, keys.ROW.unpack(key)[1], position, time

    def local(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """What WriteTxn.keep put under names that begin so, in their order: the name behind
        the prefix, and the value."""
        for key, value in self._prefix("meta", LOCAL + prefix):
            yield key[len(LOCAL + prefix) :], value

    def erasures(self, limit: int = 100_000) -> Iterator[tuple[int, int, int, int]]:
        """(partition, row, position, time) of erased rows that a segment may still hold."""
        with self._txn.cursor(self._t["erasures"]) as cursor:
            for n, (key, value) in enumerate(cursor):
                if n >= limit:
                    return
                partition, row = keys.ROW.unpack(key)
                position, time = keys.TENANT_VALUE.unpack(value)
                yield partition, row, position, time

    def next_erasure(self, after: int) -> tuple[int, int] | None:
        """The next partition after ``after`` with erased rows that its segments may still
        hold, and the time of the oldest of these; None when there is no other."""
        with self._txn.cursor(self._t["erasures"]) as cursor:
            if not cursor.set_range((after + 1).to_bytes(4, "big")):
                return None
            prefix = cursor.key()[:4]
        # The time, big-endian, is the second half of a value.
        oldest = min(value[8:] for _, value in self._prefix("erasures", prefix))
        return int.from_bytes(prefix, "big"), int.from_bytes(oldest, "big")
