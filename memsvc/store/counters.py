"""What one write transaction counts, and how it finds partitions, tenants and states."""

from __future__ import annotations

from collections.abc import Sequence

import lmdb

from memsvc.domain.records import State, unpack_state
from memsvc.store import keys
from memsvc.store.env import Env
from memsvc.store.keys import Partition


class Counters:
    """Position, time, digest and sums of the store as one write transaction sees them, with the
    changes it has made; ``flush`` writes them. ``touched``: whether there is anything to write."""

    def __init__(self, env: Env, txn: lmdb.Transaction[bytes]) -> None:
        self.tables = env.tables
        self.txn = txn
        self._partitions: dict[tuple[str, str], Partition] = {}
        self._tenants: dict[str, list[int]] = {}
        self.position = self._meta(b"position")
        self.time = self._meta(b"time")
        self.epoch = self._meta(b"epoch")
        self.digest = txn.get(b"digest", bytes(16), db=self.tables["meta"])
        self.memories = self._meta(b"memories")
        self.size = self._meta(b"bytes")
        self.dirty_since = self._meta(b"dirty_since")
        self.touched = False

    def _meta(self, key: bytes) -> int:
        data = self.txn.get(key, db=self.tables["meta"])
        return 0 if data is None else keys.U64.unpack(data)[0]

    def put_many(self, table: str, items: Sequence[tuple[bytes, bytes]]) -> None:
        """Puts several rows into a table."""
        if items:
            with self.txn.cursor(self.tables[table]) as cursor:
                cursor.putmulti(items)

    def count(self, partition: Partition, memories: int, size: int) -> None:
        """Adds memories and accounted bytes to a partition, its tenant and the store."""
        partition.memories += memories
        partition.size += size
        self.memories += memories
        self.size += size
        tenant = self._tenant(partition.tenant)
        tenant[0] += memories
        tenant[1] += size

    def unindex_expiry(self, partition: Partition, row: int, expires_at: int) -> None:
        """A row is no longer waiting for its time."""
        self.txn.delete(
            keys.TIMED_ROW.pack(expires_at, partition.number, row), db=self.tables["expiry"]
        )

    def vector_size(self, key: bytes) -> int:
        """Accounted bytes of a stored vector, 0 when there is none."""
        data = self.txn.get(key, db=self.tables["vectors"])
        return 0 if data is None else keys.accounted_vector(len(data))

    def state(self, partition: int, row: int) -> State:
        """The state of a row that must be there."""
        data = self.txn.get(keys.row_key(partition, row), db=self.tables["states"])
        if data is None:
            raise ValueError(f"row {row} of partition {partition} has no state")
        return unpack_state(data)

    def partition(self, tenant: str, agent: str, *, create: bool = False) -> Partition | None:
        """The partition as this transaction sees it; changes to it are kept by flush()."""
        found = self._partitions.get((tenant, agent))
        if found is not None:
            return found
        name = keys.name_key(tenant, agent)
        number = self.txn.get(name, db=self.tables["names"])
        if number is not None:
            data = self.txn.get(number, db=self.tables["partitions"])
            assert data is not None
            found = keys.unpack_partition(int.from_bytes(number, "big"), data)
        elif create:
            found = Partition(self.txn.stat(self.tables["names"])["entries"] + 1, tenant, agent)
            self.txn.put(name, found.number.to_bytes(4, "big"), db=self.tables["names"])
        else:
            return None
        self._partitions[tenant, agent] = found
        return found

    def _tenant(self, tenant: str) -> list[int]:
        found = self._tenants.get(tenant)
        if found is None:
            data = self.txn.get(tenant.encode(), db=self.tables["tenants"])
            found = [0, 0] if data is None else list(keys.TENANT_VALUE.unpack(data))
            self._tenants[tenant] = found
        return found

    def tenant(self, tenant: str) -> tuple[int, int]:
        """Memories and accounted bytes of a tenant as this transaction sees them."""
        memories, size = self._tenant(tenant)
        return memories, size

    def tails(self) -> dict[int, int]:
        """Rows behind the sealed ones, by partition, of those that were touched."""
        return {p.number: p.next_row - p.sealed_row for p in self._partitions.values()}

    def flush(self) -> None:
        """Writes the counters; call before the transaction commits."""
        if not self.touched:
            return
        self.put_many(
            "partitions",
            [(p.number.to_bytes(4, "big"), p.pack()) for p in self._partitions.values()],
        )
        self.put_many(
            "tenants",
            [
                (name.encode(), keys.TENANT_VALUE.pack(*counts))
                for name, counts in self._tenants.items()
            ],
        )
        pack = keys.U64.pack
        self.put_many(
            "meta",
            [
                (b"position", pack(self.position)),
                (b"time", pack(self.time)),
                (b"epoch", pack(self.epoch)),
                (b"digest", self.digest),
                (b"memories", pack(self.memories)),
                (b"bytes", pack(self.size)),
                (b"dirty_since", pack(self.dirty_since)),
            ],
        )
