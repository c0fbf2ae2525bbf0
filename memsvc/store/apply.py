"""Applying one log entry: the only code that changes records.

A primary runs it when it appends, a follower when it receives. It depends on nothing but
the entry, its payloads and the tables, so the same log gives the same tables everywhere.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import blake2b
from typing import Final

import lmdb

from memsvc.domain.log import Action, Effect, Entry, Generation, VectorRange
from memsvc.domain.records import FLAG_CURRENT, FLAG_ERASED, STATE_STRUCT, State, unpack_state
from memsvc.domain.types import Status
from memsvc.store import codec, keys
from memsvc.store.env import STORE_FORMAT, Env
from memsvc.store.keys import Partition

FIRST_FIELDS: Final = ("number", "embedding", "dimension", "is_default")
"""What is stored of every generation, since the first version."""


class Applier:
    """Applies entries inside one write transaction and keeps its counters."""

    def __init__(self, env: Env, txn: lmdb.Transaction[bytes]) -> None:
        self._t = env.tables
        self.txn = txn
        self._partitions: dict[tuple[str, str], Partition] = {}
        self._tenants: dict[str, list[int]] = {}
        self.position = self._meta(b"position")
        self.time = self._meta(b"time")
        self.epoch = self._meta(b"epoch")
        self.digest = txn.get(b"digest", bytes(16), db=self._t["meta"])
        self.memories = self._meta(b"memories")
        self.size = self._meta(b"bytes")
        self.dirty_since = self._meta(b"dirty_since")
        self._touched = False
        self._generations: list[int] | None = None

    def _meta(self, key: bytes) -> int:
        data = self.txn.get(key, db=self._t["meta"])
        return 0 if data is None else keys.U64.unpack(data)[0]

    # -- entries -----------------------------------------------------------------------

    def apply(self, entry: Entry) -> None:
        """Stores the entry and carries out its effects.

        ``entry.position`` must be the next one. Raises lmdb.Error when there is no room;
        the transaction must then be aborted.
        """
        if entry.position != self.position + 1:
            raise ValueError(f"entry {entry.position} does not follow {self.position}")
        if entry.epoch < self.epoch:
            raise ValueError(f"epoch {entry.epoch} of an entry comes after {self.epoch}")
        data = codec.encode(entry)
        self.digest = blake2b(self.digest + data, digest_size=16).digest()
        self.txn.put(
            keys.U64.pack(entry.position), self.digest + data, append=True, db=self._t["log"]
        )
        if entry.epoch > max(self.epoch, 1):
            self._start_epoch(entry)
        self.position, self.time, self.epoch = entry.position, entry.time, entry.epoch
        self._touched = True
        if entry.generation is not None:
            self._generation(entry.generation)
        if entry.purged is not None:
            self._purge_vectors(entry, entry.purged)
        if entry.request is not None:
            self._remember(entry)
        if entry.effects:
            self._effects(entry)

    def _generation(self, generation: Generation) -> None:
        self._generations = None
        if generation.is_default:
            with self.txn.cursor(self._t["generations"]) as cursor:
                others = [Generation(**json.loads(value)) for _, value in cursor]
            for other in others:
                if other.is_default:
                    self._put_generation(replace(other, is_default=False))
        self._put_generation(generation)
        if generation.number > 1:
            # Earlier versions would not find their way in it.
            self.txn.put(b"format", keys.U64.pack(STORE_FORMAT), db=self._t["meta"])

    def _put_generation(self, generation: Generation) -> None:
        # What is not said is left out: versions before it could be refuse unknown names.
        usual = Generation(0, "", 0, False)
        raw = {
            name: value
            for name, value in asdict(generation).items()
            if name in FIRST_FIELDS or value != getattr(usual, name)
        }
        key = generation.number.to_bytes(2, "big")
        self.txn.put(key, json.dumps(raw).encode(), db=self._t["generations"])

    def _start_epoch(self, entry: Entry) -> None:
        """Positions of epochs before that lie behind this entry were never written."""
        starts = json.loads(self.txn.get(b"epochs", b"{}", db=self._t["meta"]))
        starts[str(entry.epoch)] = entry.position
        self.txn.put(b"epochs", json.dumps(starts).encode(), db=self._t["meta"])

    def _remember(self, entry: Entry) -> None:
        request = entry.request
        assert request is not None
        time = keys.U64.pack(entry.time)
        before = self.txn.get(request.key, db=self._t["requests"])
        if before is not None:
            # Used again after its 24 hours: the old time must not forget the new answer.
            self.txn.delete(before[:8] + request.key, db=self._t["request_times"])
        self.txn.put(
            request.key, time + request.fingerprint + request.response, db=self._t["requests"]
        )
        self.txn.put(time + request.key, b"", db=self._t["request_times"])

    def _effects(self, entry: Entry) -> None:
        partition = self.partition(entry.tenant, entry.agent, create=True)
        assert partition is not None
        partition.position = entry.position
        changed: list[int] = []
        run: list[Effect] = []
        for effect in entry.effects:
            if effect.action is Action.PUT:
                run.append(effect)
                continue
            if run:
                self._puts(entry, partition, run)
                run = []
            changed.extend(self._change(entry, partition, effect))
        if run:
            self._puts(entry, partition, run)
        if changed:
            self.txn.put(
                keys.CHANGE.pack(partition.number, entry.position),
                struct.pack(f"<{len(changed)}Q", *changed),
                db=self._t["changes"],
            )
        if entry.action is not Action.RECALL:
            position = keys.U64.pack(entry.position)
            self._many("audit", [(e.id + position, b"") for e in entry.effects])

    def _many(self, table: str, items: Sequence[tuple[bytes, bytes]]) -> None:
        if items:
            with self.txn.cursor(self._t[table]) as cursor:
                cursor.putmulti(items)

    # -- new memories ------------------------------------------------------------------

    def _puts(self, entry: Entry, partition: Partition, effects: Sequence[Effect]) -> None:
        number, time, size_sum = partition.number, entry.time, 0
        states, texts, ids, dedup, expiry = [], [], [], [], []
        vectors: dict[int, list[tuple[bytes, bytes]]] = {}
        prefix = number.to_bytes(4, "big")
        for e in effects:
            if e.row != partition.next_row:
                raise ValueError(f"row {e.row} given, {partition.next_row} expected")
            partition.next_row += 1
            key = keys.ROW.pack(number, e.row)
            payload = e.payload
            size, flags = 0, FLAG_CURRENT
            if payload is None:
                flags |= FLAG_ERASED
            else:
                size = keys.accounted_bytes(payload.head, payload.content, payload.vectors)
                text = keys.pack_text(
                    payload.head, payload.content, payload.dedup_key, payload.salt
                )
                texts.append((key, text))
                for generation, data in payload.vectors.items():
                    vectors.setdefault(generation, []).append(
                        (keys.VECTOR.pack(generation, number, e.row), data)
                    )
            state = STATE_STRUCT.pack(
                e.id,
                e.version,
                e.status_after,
                flags,
                0,
                time,
                time,
                e.ts,
                e.expires_at,
                e.recalled_at,
                e.importance,
                e.recall_count,
                size,
            )
            states.append((key, state))
            ids.append((e.id, key))
            if e.dedup_hash:
                dedup.append((prefix + e.dedup_hash, e.id))
            if e.expires_at:
                expiry.append((keys.TIMED_ROW.pack(e.expires_at, number, e.row), b""))
            size_sum += size
            if e.status_after is Status.ACTIVE:
                partition.active += 1
        for table, items in (
            ("states", states),
            ("texts", texts),
            ("ids", ids),
            ("dedup", dedup),
            ("expiry", expiry),
        ):
            self._many(table, items)
        for items in vectors.values():
            self._many("vectors", items)
        self._count(partition, len(effects), size_sum)

    def _count(self, partition: Partition, memories: int, size: int) -> None:
        partition.memories += memories
        partition.size += size
        self.memories += memories
        self.size += size
        tenant = self._tenant(partition.tenant)
        tenant[0] += memories
        tenant[1] += size

    # -- changes of memories -----------------------------------------------------------

    def _change(self, entry: Entry, partition: Partition, e: Effect) -> list[int]:
        """Carries out one effect; returns the packed changes of rows that views must see."""
        if e.action is Action.PURGE:
            return self._purge(entry, partition, e)
        old_row = e.replaces_row or e.row
        old = self._state(partition.number, old_row)
        if e.action is Action.FORGET:
            return self._forget(entry, partition, e, old)
        if e.replaces_row:
            return self._replace(entry, partition, e, old)
        changed = [e.row]
        size = old.size
        data = e.payload.vectors.get(e.generation) if e.payload is not None else None
        # In a replay its generation may have been dropped since.
        if e.action is Action.VECTOR and data is not None:
            key = keys.VECTOR.pack(e.generation, partition.number, e.row)
            # In a replay it may have come with the row already (see feed.py).
            grown = keys.accounted_vector(len(data)) - self._vector_size(key)
            self.txn.put(key, data, db=self._t["vectors"])
            size += grown
            self._count(partition, 0, grown)
            changed.append(e.row | e.generation << 48)
        self._store_state(entry, partition, e, e.row, old, size)
        return changed

    def _store_state(
        self, entry: Entry, partition: Partition, e: Effect, row: int, old: State, size: int
    ) -> None:
        """The state after an effect, and what hangs on it: expiry index and counts."""
        updated = e.action in (Action.UPDATE, Action.VECTOR, Action.EXPIRE)
        flags = old.flags | FLAG_CURRENT
        if e.replaces_row:
            # The old row may be erased (in a replay, its text is gone), the new one not.
            flags = FLAG_CURRENT if e.payload is not None else FLAG_CURRENT | FLAG_ERASED
        state = State(
            e.id,
            e.version,
            e.status_after,
            flags,
            0,
            old.created_at,
            entry.time if updated else old.updated_at,
            e.ts,
            e.expires_at,
            e.recalled_at,
            e.importance,
            e.recall_count,
            size,
        )
        self.txn.put(keys.row_key(partition.number, row), state.pack(), db=self._t["states"])
        if old.expires_at != e.expires_at or e.replaces_row:
            if old.expires_at:
                self._unindex_expiry(partition, e.replaces_row or row, old.expires_at)
            if e.expires_at:
                timed = keys.TIMED_ROW.pack(e.expires_at, partition.number, row)
                self.txn.put(timed, b"", db=self._t["expiry"])
        if e.action is Action.EXPIRE:
            self._unindex_expiry(partition, row, e.expires_at)
        if e.action is Action.EXPIRE or (e.replaces_row and e.status_after is Status.EXPIRED):
            # A new version of what has expired is erased on schedule too.
            self.txn.put(
                keys.TIMED_ROW.pack(entry.time, partition.number, row), b"", db=self._t["expired"]
            )
        partition.active += int(e.status_after is Status.ACTIVE)
        partition.active -= int(old.status == Status.ACTIVE)

    def _unindex_expiry(self, partition: Partition, row: int, expires_at: int) -> None:
        self.txn.delete(
            keys.TIMED_ROW.pack(expires_at, partition.number, row), db=self._t["expiry"]
        )

    def _replace(self, entry: Entry, partition: Partition, e: Effect, old: State) -> list[int]:
        """A new row takes the place of the old one, which waits to be truncated."""
        number = partition.number
        if e.row != partition.next_row:
            raise ValueError(f"row {e.row} given, {partition.next_row} expected")
        partition.next_row += 1
        size = 0
        if e.payload is not None:
            p = e.payload
            size = keys.accounted_bytes(p.head, p.content, p.vectors)
            text = keys.pack_text(p.head, p.content, p.dedup_key, p.salt)
            self.txn.put(keys.row_key(number, e.row), text, db=self._t["texts"])
            for generation, data in p.vectors.items():
                self.txn.put(
                    keys.VECTOR.pack(generation, number, e.row), data, db=self._t["vectors"]
                )
        self._store_state(entry, partition, e, e.row, old, size)
        gone = old._replace(flags=old.flags & ~FLAG_CURRENT)
        self.txn.put(keys.row_key(number, e.replaces_row), gone.pack(), db=self._t["states"])
        self.txn.put(e.id, keys.LOCATION.pack(number, e.row), db=self._t["ids"])
        self.txn.put(
            e.id + old.version.to_bytes(4, "big"),
            keys.U64.pack(e.replaces_row),
            db=self._t["versions"],
        )
        self.txn.put(
            keys.TIMED_ROW.pack(entry.time, number, e.replaces_row), b"", db=self._t["replaced"]
        )
        self._count(partition, 0, size)
        return [e.replaces_row]

    # -- erasing -----------------------------------------------------------------------

    def _forget(self, entry: Entry, partition: Partition, e: Effect, old: State) -> list[int]:
        """Text and vectors of every version go at once; the state stays to answer for it."""
        number = partition.number
        changed = [e.row]
        for key, row_bytes in self._versions(e.id):
            row = keys.U64.unpack(row_bytes)[0]
            self._drop_old_version(entry, partition, key, row)
            changed.append(row)
        freed = self._erase_payload(entry, partition, e.row, old)
        if old.expires_at:
            self._unindex_expiry(partition, e.row, old.expires_at)
        flags, created, now = FLAG_CURRENT | FLAG_ERASED, old.created_at, entry.time
        state = State(e.id, e.version, e.status_after, flags, 0, created, now, 0, 0, 0, 0.0, 0, 0)
        self.txn.put(keys.row_key(number, e.row), state.pack(), db=self._t["states"])
        partition.active -= int(old.status == Status.ACTIVE)
        self._count(partition, -1, -freed)
        return changed

    def _purge(self, entry: Entry, partition: Partition, e: Effect) -> list[int]:
        """Drops a payload whose time is over: of a replaced version, or of an expired
        memory (which then reads as expired without text)."""
        data = self.txn.get(keys.row_key(partition.number, e.row), db=self._t["states"])
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
        self.txn.put(keys.row_key(partition.number, e.row), state.pack(), db=self._t["states"])
        self._count(partition, 0, -freed)
        return [e.row]

    def _purge_vectors(self, entry: Entry, purged: VectorRange) -> None:
        """Erases vectors of a dropped generation, of current and of replaced rows. Nobody
        searches them any more, so views need not learn of it."""
        partition = self.partition(entry.tenant, entry.agent)
        assert partition is not None
        number, freed = partition.number, 0
        start, end = (keys.VECTOR.pack(purged.generation, number, row) for row in purged[1:])
        found = []
        with self.txn.cursor(self._t["vectors"]) as cursor:
            if cursor.set_range(start):
                for key, value in cursor:
                    if key >= end:
                        break
                    found.append((key, keys.accounted_vector(len(value))))
        for key, size in found:
            row = keys.VECTOR.unpack(key)[2]
            state = self._state(number, row)
            self.txn.put(
                keys.row_key(number, row),
                state._replace(size=state.size - size).pack(),
                db=self._t["states"],
            )
            self.txn.delete(key, db=self._t["vectors"])
            freed += size
        if found:
            self._count(partition, 0, -freed)
            self.dirty_since = self.dirty_since or entry.time

    def _vector_size(self, key: bytes) -> int:
        data = self.txn.get(key, db=self._t["vectors"])
        return 0 if data is None else keys.accounted_vector(len(data))

    def _versions(self, id_bytes: bytes) -> list[tuple[bytes, bytes]]:
        found = []
        with self.txn.cursor(self._t["versions"]) as cursor:
            if cursor.set_range(id_bytes):
                for key, value in cursor:
                    if not key.startswith(id_bytes):
                        break
                    found.append((key, value))
        return found

    def _drop_old_version(
        self, entry: Entry, partition: Partition, version_key: bytes, row: int
    ) -> None:
        old = self._state(partition.number, row)
        freed = self._erase_payload(entry, partition, row, old)
        self.txn.delete(keys.row_key(partition.number, row), db=self._t["states"])
        self.txn.delete(version_key, db=self._t["versions"])
        self._count(partition, 0, -freed)

    def _erase_payload(self, entry: Entry, partition: Partition, row: int, old: State) -> int:
        """Deletes text and vectors of a row; returns the accounted bytes that are freed.

        The bytes stay in free pages of the file and in segments until maintenance has
        rewritten both: ``dirty_since`` and ``erasures`` tell it to.
        """
        number = partition.number
        self.txn.delete(keys.row_key(number, row), db=self._t["texts"])
        if self._generations is None:
            with self.txn.cursor(self._t["generations"]) as cursor:
                keys_found = cursor.iternext(values=False)
                self._generations = [int.from_bytes(key, "big") for key in keys_found]
        for generation in self._generations:
            self.txn.delete(keys.VECTOR.pack(generation, number, row), db=self._t["vectors"])
        if row < partition.sealed_row:
            since = keys.TENANT_VALUE.pack(entry.position, entry.time)
            self.txn.put(keys.row_key(number, row), since, db=self._t["erasures"])
        self.dirty_since = self.dirty_since or entry.time
        return old.size

    # -- counters ----------------------------------------------------------------------

    def _state(self, partition: int, row: int) -> State:
        data = self.txn.get(keys.row_key(partition, row), db=self._t["states"])
        if data is None:
            raise ValueError(f"row {row} of partition {partition} has no state")
        return unpack_state(data)

    def partition(self, tenant: str, agent: str, *, create: bool = False) -> Partition | None:
        """The partition as this transaction sees it; changes to it are kept by flush()."""
        found = self._partitions.get((tenant, agent))
        if found is not None:
            return found
        name = keys.name_key(tenant, agent)
        number = self.txn.get(name, db=self._t["names"])
        if number is not None:
            data = self.txn.get(number, db=self._t["partitions"])
            assert data is not None
            found = keys.unpack_partition(int.from_bytes(number, "big"), data)
        elif create:
            found = Partition(self.txn.stat(self._t["names"])["entries"] + 1, tenant, agent)
            self.txn.put(name, found.number.to_bytes(4, "big"), db=self._t["names"])
        else:
            return None
        self._partitions[tenant, agent] = found
        return found

    def _tenant(self, tenant: str) -> list[int]:
        found = self._tenants.get(tenant)
        if found is None:
            data = self.txn.get(tenant.encode(), db=self._t["tenants"])
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
        if not self._touched:
            return
        self._many(
            "partitions",
            [(p.number.to_bytes(4, "big"), p.pack()) for p in self._partitions.values()],
        )
        self._many(
            "tenants",
            [
                (name.encode(), keys.TENANT_VALUE.pack(*counts))
                for name, counts in self._tenants.items()
            ],
        )
        pack = keys.U64.pack
        self._many(
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
