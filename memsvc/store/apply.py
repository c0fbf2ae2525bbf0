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

from memsvc.domain.log import Action, Effect, Entry, Generation
from memsvc.domain.records import FLAG_CURRENT, FLAG_ERASED, STATE_STRUCT, State
from memsvc.domain.types import Status
from memsvc.store import codec, keys
from memsvc.store.counters import Counters
from memsvc.store.env import STORE_FORMAT, Env
from memsvc.store.erasing import Eraser
from memsvc.store.keys import Partition

FIRST_FIELDS: Final = ("number", "embedding", "dimension", "is_default")
"""What is stored of every generation, since the first version."""


class Applier(Counters):
    """Applies entries inside one write transaction and keeps its counters."""

    def __init__(self, env: Env, txn: lmdb.Transaction[bytes]) -> None:
        super().__init__(env, txn)
        self._eraser = Eraser(self)

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
            keys.U64.pack(entry.position), self.digest + data, append=True, db=self.tables["log"]
        )
        if entry.epoch > max(self.epoch, 1):
            self._start_epoch(entry)
        self.position, self.time, self.epoch = entry.position, entry.time, entry.epoch
        self.touched = True
        if entry.generation is not None:
            self._generation(entry.generation)
        if entry.purged is not None:
            self._eraser.purge_vectors(entry, entry.purged)
        if entry.request is not None:
            self._remember(entry)
        if entry.effects:
            self._effects(entry)

    def _generation(self, generation: Generation) -> None:
        self._eraser.generations_changed()
        if generation.is_default:
            with self.txn.cursor(self.tables["generations"]) as cursor:
                others = [Generation(**json.loads(value)) for _, value in cursor]
            for other in others:
                if other.is_default:
                    self._put_generation(replace(other, is_default=False))
        self._put_generation(generation)
        if generation.number > 1:
            # Earlier versions would not find their way in it.
            self.txn.put(b"format", keys.U64.pack(STORE_FORMAT), db=self.tables["meta"])

    def _put_generation(self, generation: Generation) -> None:
        # What is not said is left out: versions before it could be refuse unknown names.
        usual = Generation(0, "", 0, False)
        raw = {
            name: value
            for name, value in asdict(generation).items()
            if name in FIRST_FIELDS or value != getattr(usual, name)
        }
        key = generation.number.to_bytes(2, "big")
        self.txn.put(key, json.dumps(raw).encode(), db=self.tables["generations"])

    def _start_epoch(self, entry: Entry) -> None:
        """Positions of epochs before that lie behind this entry were never written."""
        starts = json.loads(self.txn.get(b"epochs", b"{}", db=self.tables["meta"]))
        starts[str(entry.epoch)] = entry.position
        self.txn.put(b"epochs", json.dumps(starts).encode(), db=self.tables["meta"])

    def _remember(self, entry: Entry) -> None:
        request = entry.request
        assert request is not None
        time = keys.U64.pack(entry.time)
        before = self.txn.get(request.key, db=self.tables["requests"])
        if before is not None:
            # Used again after its 24 hours: the old time must not forget the new answer.
            self.txn.delete(before[:8] + request.key, db=self.tables["request_times"])
        self.txn.put(
            request.key, time + request.fingerprint + request.response, db=self.tables["requests"]
        )
        self.txn.put(time + request.key, b"", db=self.tables["request_times"])

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
                db=self.tables["changes"],
            )
        if entry.action is not Action.RECALL:
            position = keys.U64.pack(entry.position)
            self.put_many("audit", [(e.id + position, b"") for e in entry.effects])

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
            self.put_many(table, items)
        for items in vectors.values():
            self.put_many("vectors", items)
        self.count(partition, len(effects), size_sum)

    # -- changes of memories -----------------------------------------------------------

    def _change(self, entry: Entry, partition: Partition, e: Effect) -> list[int]:
        """Carries out one effect; returns the packed changes of rows that views must see."""
        if e.action is Action.PURGE:
            return self._eraser.purge(entry, partition, e)
        old_row = e.replaces_row or e.row
        old = self.state(partition.number, old_row)
        if e.action is Action.FORGET:
            return self._eraser.forget(entry, partition, e, old)
        if e.replaces_row:
            return self._replace(entry, partition, e, old)
        changed = [e.row]
        size = old.size
        data = e.payload.vectors.get(e.generation) if e.payload is not None else None
        # In a replay its generation may have been dropped since.
        if e.action is Action.VECTOR and data is not None:
            key = keys.VECTOR.pack(e.generation, partition.number, e.row)
            # In a replay it may have come with the row already (see feed.py).
            grown = keys.accounted_vector(len(data)) - self.vector_size(key)
            self.txn.put(key, data, db=self.tables["vectors"])
            size += grown
            self.count(partition, 0, grown)
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
        self.txn.put(keys.row_key(partition.number, row), state.pack(), db=self.tables["states"])
        if old.expires_at != e.expires_at or e.replaces_row:
            if old.expires_at:
                self.unindex_expiry(partition, e.replaces_row or row, old.expires_at)
            if e.expires_at:
                timed = keys.TIMED_ROW.pack(e.expires_at, partition.number, row)
                self.txn.put(timed, b"", db=self.tables["expiry"])
        if e.action is Action.EXPIRE:
            self.unindex_expiry(partition, row, e.expires_at)
        if e.action is Action.EXPIRE or (e.replaces_row and e.status_after is Status.EXPIRED):
            # A new version of what has expired is erased on schedule too.
            self.txn.put(
                keys.TIMED_ROW.pack(entry.time, partition.number, row),
                b"",
                db=self.tables["expired"],
            )
        partition.active += int(e.status_after is Status.ACTIVE)
        partition.active -= int(old.status == Status.ACTIVE)

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
            self.txn.put(keys.row_key(number, e.row), text, db=self.tables["texts"])
            for generation, data in p.vectors.items():
                self.txn.put(
                    keys.VECTOR.pack(generation, number, e.row), data, db=self.tables["vectors"]
                )
        self._store_state(entry, partition, e, e.row, old, size)
        gone = old._replace(flags=old.flags & ~FLAG_CURRENT)
        self.txn.put(keys.row_key(number, e.replaces_row), gone.pack(), db=self.tables["states"])
        self.txn.put(e.id, keys.LOCATION.pack(number, e.row), db=self.tables["ids"])
        self.txn.put(
            e.id + old.version.to_bytes(4, "big"),
            keys.U64.pack(e.replaces_row),
            db=self.tables["versions"],
        )
        self.txn.put(
            keys.TIMED_ROW.pack(entry.time, number, e.replaces_row), b"", db=self.tables["replaced"]
        )
        self.count(partition, 0, size)
        return [e.replaces_row]
