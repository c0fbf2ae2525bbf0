"""Tables as one LMDB snapshot has them: what reads of all kinds are made of."""

from __future__ import annotations

import json
from collections.abc import Iterator

import lmdb

from memsvc.domain.log import Generation
from memsvc.store import keys
from memsvc.store.env import Env


class Reading:
    """Ways through the tables, and the generations, by which everything else is read."""

    def __init__(self, env: Env, txn: lmdb.Transaction[bytes]) -> None:
        self._t = env.tables
        self._txn = txn

    def generations(self) -> list[Generation]:
        """The embedding generations that serve, by number."""
        return [g for g in self.all_generations() if not g.dropped]

    def all_generations(self) -> list[Generation]:
        """These and those that were dropped, by number."""
        with self._txn.cursor(self._t["generations"]) as cursor:
            return [Generation(**json.loads(value)) for _, value in cursor]

    def serves(self, generation: int) -> bool:
        """Whether a generation is there and was not dropped."""
        data = self._txn.get(generation.to_bytes(2, "big"), db=self._t["generations"])
        return data is not None and not Generation(**json.loads(data)).dropped

    def _meta_int(self, key: bytes) -> int:
        data = self._txn.get(key, db=self._t["meta"])
        return 0 if data is None else keys.U64.unpack(data)[0]

    def _prefix(self, table: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._txn.cursor(self._t[table]) as cursor:
            if cursor.set_range(prefix):
                for key, value in cursor:
                    if not key.startswith(prefix):
                        return
                    yield key, value

    def _range(
        self, table: str, start: bytes, partition: int, hi: int
    ) -> Iterator[tuple[int, bytes]]:
        end = keys.row_key(partition, hi)
        with self._txn.cursor(self._t[table]) as cursor:
            if cursor.set_range(start):
                for key, value in cursor:
                    if key >= end:
                        return
                    yield int.from_bytes(key[4:], "big"), value
