"""Writing items: the same key is the same memory, whoever writes it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from memsvc.client import ClientError, ForgetMode, Namespace, NewMemory, Update
from memsvc.client.calls import MemoryCalls
from memsvc.domain.types import AttributeValue, WriteItem
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
        self._lock = threading.Lock()
        self._minute = 0
        self._taken: Counter[str] = Counter()

    def put(self, puts: Sequence[Put]) -> None:
        """Stores items, or replaces those there are."""
        group: list[Put] = []
        size = 0
        for put in puts:
            added = 1 + len(put.parts)
            if group and size + added > TOGETHER:
                self._put(group)
                group, size = [], 0
            group.append(put)
            size += added
        if group:
            self._put(group)

    def delete(self, digests: Sequence[str]) -> None:
        """Erases items; those that are not there are passed over."""
        found = self._reader.by_digests(digests, content=False)
        self._erase(one.id for same in found.values() for one in same)
        # Afterwards, so that a part that is made meanwhile has no item to belong to.
        parts = self._reader.parts(digests)
        self._erase(one.id for several in parts.values() for one in several)

    def refresh(self, items: Iterable[Stored]) -> None:
        """Gives items with a TTL their lifetime anew."""
        ending = {one.digest: one for one in items if one.ttl_ms}
        parted = [digest for digest, one in ending.items() if one.parts]
        parts = self._reader.parts(parted) if parted else {}
        updates = [
            Update(one.id, ttl_ms=item.ttl_ms)
            for digest, item in ending.items()
            for one in (item, *parts.get(digest, ()))
        ]
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
        conflicts = 0
        while conflicts < ATTEMPTS:
            minute, taken = self._taken_now()
            digests = [put.digest for put in waiting]
            found = self._reader.by_digests(digests, content=False)
            parts = self._reader.parts(digests)
            items: list[WriteItem] = []
            places: list[int] = []
            surplus: list[str] = []
            for put in waiting:
                places.append(len(items))
                if put.digest not in found:
                    items.append(_memory(put, minute, taken[put.digest]))
                    continue
                items.append(_update(found[put.digest][0], put))
                known = parts.get(put.digest, [])
                items += _part_items(known, put.parts)
                surplus += [one.id for one in known[len(put.parts) :]]
            try:
                answer = self._write(items)
            except ClientError as error:
                if error.code not in _CHANGED:
                    raise
                conflicts += 1
                continue
            self._erase([*surplus, *(one.id for same in found.values() for one in same[1:])])
            left = []
            for put, place in zip(waiting, places, strict=True):
                result = answer.results[place]
                if result.outcome == pb.OUTCOME_EXISTS:
                    left.append(put)
                    if result.status == types_pb2.STATUS_ACTIVE:
                        conflicts += 1  # another made it meanwhile: it is to be updated
                    else:
                        taken[put.digest] += 1
                elif result.outcome == pb.OUTCOME_CREATED and put.parts:
                    # Parts are only written together with a version of their item, so that they
                    # are never those of another's.
                    left.append(put)
            waiting = left
            if not waiting:
                return
        several = f"{len(waiting)} items were" if len(waiting) > 1 else "1 item was"
        raise StoreConflict(f"{several} changed by others {ATTEMPTS} times meanwhile; try again")

    def _taken_now(self) -> tuple[int, Counter[str]]:
        """The minute, and how many keys of an item in it are known to be taken by memories that
        were deleted or have expired: the service frees none."""
        minute = self._now_us() // 60_000_000
        with self._lock:
            if minute != self._minute:
                self._minute, self._taken = minute, Counter()
            return minute, self._taken

    def _write(self, items: Sequence[WriteItem]) -> pb.WriteResponse:
        answer = self._client.write(self._space, items, embedding=self._reader.embedding)
        self._reader.wrote(answer.position)
        return answer

    def _erase(self, ids: Iterable[str]) -> None:
        listed = list(ids)
        for start in range(0, len(listed), 1_000):
            answer = self._client.forget(
                self._space, ids=listed[start : start + 1_000], mode=ForgetMode.HARD
            )
            self._reader.wrote(answer.position)


def _memory(put: Put, minute: int, taken: int) -> NewMemory:
    # A key is never free again once its memory was deleted or has expired, so it holds the
    # minute and a number: two processes that make the same item at once still meet in it.
    key = f"langgraph:{put.digest}:{minute}:{taken}"
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
        clear_fields=_cleared(stored, put.attributes),
        ttl_ms=put.ttl_ms,
    )


def _part_items(known: Sequence[Stored], wanted: Sequence[NewMemory]) -> list[WriteItem]:
    """Turns the parts there are into those that are wanted; what is too much is no longer found,
    and can be erased."""
    items: list[WriteItem] = [
        Update(
            one.id,
            if_version=one.version,
            content=new.content,
            summary="",
            vector=new.vector,
            metadata=new.metadata,
            clear_fields=_cleared(one, new.metadata.attributes),
            ttl_ms=new.ttl_ms,
        )
        for one, new in zip(known, wanted, strict=False)
    ]
    items += wanted[len(known) :]
    items += [
        Update(one.id, if_version=one.version, clear_vector=True) for one in known[len(wanted) :]
    ]
    return items


def _cleared(stored: Stored, attributes: Mapping[str, AttributeValue]) -> tuple[str, ...]:
    return tuple(f"attributes.{name}" for name in sorted(stored.names - set(attributes)))
