"""Writing items: the same key is the same memory, whoever writes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from memsvc.client import ClientError, ForgetMode, Namespace, NewMemory, Update
from memsvc.client.calls import MemoryCalls
from memsvc.domain.types import WriteItem
from memsvc.integrations.langgraph.items import Put, Stored
from memsvc.integrations.langgraph.reads import Reader
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2

TOGETHER: Final = 100
"""Items that are written together, all or none: so many of the largest fit into a message."""
ATTEMPTS: Final = 50
"""Times a write is decided anew when others changed the same items meanwhile."""
_CHANGED: Final = frozenset({"ABORTED", "NOT_FOUND"})


class StoreConflict(RuntimeError):
    """Others kept changing the same items. Nothing of the last ones was written; try again."""


class Writer:
    """Writes of one tenant/agent. Safe to use from several threads."""

    def __init__(
        self, client: MemoryCalls, namespace: Namespace, reader: Reader, now_us: Callable[[], int]
    ) -> None:
        self._client = client
        self._space = namespace
        self._reader = reader
        self._now_us = now_us

    def put(self, puts: Sequence[Put]) -> None:
        """Stores items, or replaces those there are."""
        for start in range(0, len(puts), TOGETHER):
            self._put(puts[start : start + TOGETHER])

    def delete(self, digests: Sequence[str]) -> None:
        """Erases items; those that are not there are passed over."""
        found = self._reader.by_digests(digests, content=False)
        self._erase(one.id for same in found.values() for one in same)

    def refresh(self, items: Iterable[Stored]) -> None:
        """Gives items with a TTL their lifetime anew."""
        updates = [Update(one.id, ttl_ms=one.ttl_ms) for one in items if one.ttl_ms]
        for start in range(0, len(updates), TOGETHER):
            part = updates[start : start + TOGETHER]
            try:
                self._write(part)
            except ClientError as error:
                if error.code != "NOT_FOUND":
                    raise
                for one in part:
                    self._refresh_if_there(one)

    def _refresh_if_there(self, update: Update) -> None:
        try:
            self._write([update])
        except ClientError as error:
            if error.code != "NOT_FOUND":  # it was deleted, or expired, after it was read
                raise

    def _put(self, puts: Sequence[Put]) -> None:
        waiting = list(puts)
        taken = dict.fromkeys((put.digest for put in puts), 0)
        for _ in range(ATTEMPTS):
            found = self._reader.by_digests([put.digest for put in waiting], content=False)
            items = [
                _update(found[put.digest][0], put)
                if put.digest in found
                else _memory(put, self._now_us(), taken[put.digest])
                for put in waiting
            ]
            try:
                answer = self._write(items)
            except ClientError as error:
                if error.code not in _CHANGED:
                    raise
                continue
            self._erase(one.id for same in found.values() for one in same[1:])
            left = []
            for put, result in zip(waiting, answer.results, strict=True):
                if result.outcome == pb.OUTCOME_EXISTS:
                    # Another made it meanwhile, and it is to be updated; or it was deleted and
                    # the key is taken for ever.
                    left.append(put)
                    taken[put.digest] += result.status != types_pb2.STATUS_ACTIVE
            waiting = left
            if not waiting:
                return
        raise StoreConflict(
            f"{len(waiting)} items were changed by others {ATTEMPTS} times meanwhile; try again"
        )

    def _write(self, items: Sequence[WriteItem]) -> pb.WriteResponse:
        answer = self._client.write(self._space, items, embedding=self._reader.embedding)
        self._reader.position = answer.position
        return answer

    def _erase(self, ids: Iterable[str]) -> None:
        listed = list(ids)
        for start in range(0, len(listed), 1_000):
            answer = self._client.forget(
                self._space, ids=listed[start : start + 1_000], mode=ForgetMode.HARD
            )
            self._reader.position = answer.position


def _memory(put: Put, now_us: int, taken: int) -> NewMemory:
    # A key is never free again once its memory was deleted or has expired, so it holds the
    # minute: two processes that make the same item at once still meet in it.
    key = f"langgraph:{put.digest}:{now_us // 60_000_000}:{taken}"
    return NewMemory(put.content, put.summary, key, put.vector, put.metadata, ttl_ms=put.ttl_ms)


def _update(stored: Stored, put: Put) -> Update:
    return Update(
        stored.id,
        if_version=stored.version,
        content=put.content,
        summary=put.summary,
        vector=put.vector,
        clear_vector=put.vector is None,
        metadata=put.metadata,
        clear_fields=tuple(
            f"attributes.{name}" for name in sorted(stored.names - set(put.attributes))
        ),
        ttl_ms=put.ttl_ms,
    )
