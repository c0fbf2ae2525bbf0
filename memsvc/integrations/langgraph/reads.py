"""Reading items: by key, by namespace, by filter, by query."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from langgraph.store.base import ListNamespacesOp, MatchCondition, SearchOp

from memsvc.client import ClientError, Include, Mode, Namespace, vector_array
from memsvc.client.calls import MemoryCalls
from memsvc.domain.limits import MAX_FILTER_VALUES, MAX_TEXT_BYTES
from memsvc.domain.positions import later
from memsvc.domain.types import Vector
from memsvc.integrations.langgraph.items import FOUND, ITEM, PART, PATH, REST, Stored, path_of
from memsvc.integrations.langgraph.matching import matches, namespace_matches, pushed
from memsvc.v1 import memory_service_pb2 as pb
from memsvc.v1 import types_pb2

PAGE: Final = 100
"""Items read at once, so that their texts and vectors fit into a message."""
MOST: Final = 200
"""Results that one search of the service may have (its query.max_top_k)."""
_LOST: Final = "POSITION_LOST"
_WHOLE: Final = frozenset({"DISK_STALLED", "READ_FALLBACK", "REPLICA_LAGGING", "STALE"})
"""Reasons of answers that hold all there is, but perhaps not the last of what others wrote."""


class StoreIncomplete(RuntimeError):
    """The service could not look at everything, so that "there is no such item" would be a guess.
    ``reason`` is that of the degraded answer."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the memory service answers in part only ({reason}); see docs/howto/degradation.md"
        )
        self.reason = reason


class Reader:
    """Reads of one tenant/agent. Safe to use from several threads."""

    def __init__(self, client: MemoryCalls, namespace: Namespace) -> None:
        self._client = client
        self._space = namespace
        self._lock = threading.Lock()
        self._position = ""
        self.embedding: str | None = None

    def wrote(self, position: str) -> None:
        """A write was answered: reads see it from here on. Answers of several threads may come in
        another order than the writes."""
        with self._lock:
            self._position = later(self._position, position)

    def by_digests(self, digests: Sequence[str], *, content: bool) -> dict[str, list[Stored]]:
        """The memories of items, the one that was put last first. More than one only where two
        processes made the same item at the same moment, on two clocks."""
        found: dict[str, list[Stored]] = {}
        for start in range(0, len(digests), MAX_FILTER_VALUES):
            part = list(digests[start : start + MAX_FILTER_VALUES])
            for hit in self._browse([{f"attributes.{ITEM}": {"in": part}}], content=content):
                stored = Stored.of(hit)
                found.setdefault(stored.digest, []).append(stored)
        for same in found.values():
            same.sort(key=lambda one: one.put_us, reverse=True)
        return found

    def parts(self, digests: Sequence[str]) -> dict[str, list[Stored]]:
        """The parts of items."""
        found: dict[str, list[Stored]] = {}
        for start in range(0, len(digests), MAX_FILTER_VALUES):
            part = list(digests[start : start + MAX_FILTER_VALUES])
            for hit in self._browse([{f"attributes.{PART}": {"in": part}}], content=False):
                stored = Stored.of(hit)
                found.setdefault(stored.digest, []).append(stored)
        return found

    def namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        """Reads every item that may be below the prefixes asked for."""
        conditions = op.match_conditions or ()
        filters = [_below(_fixed(one)) for one in conditions if one.match_type == "prefix"]
        filters.append(_ITEMS)
        names = {Stored.of(hit).namespace for hit in self._browse(filters, content=False)}
        names = {name for name in names if all(namespace_matches(one, name) for one in conditions)}
        if op.max_depth is not None:
            names = {name[: op.max_depth] for name in names}
        return sorted(names)[op.offset : op.offset + op.limit]

    def search(self, op: SearchOp, vector: Vector | None) -> list[Stored]:
        """Items below a namespace. ``vector`` is that of the query; None = by words."""
        need = op.offset + op.limit
        filters = [_below(op.namespace_prefix)]
        checked = pushed(op.filter)
        if checked:
            filters.append({"or": [{"and": checked}, {f"attributes.{REST}": True}]})
        if not op.query:
            found = self._newest(op, filters, need)
        elif vector is None:
            found = self._by_words(op, filters, need)
        else:
            found = self._by_meaning(op, filters, need, vector)
        return found[op.offset : need]

    # -- ways to search ----------------------------------------------------------------

    def _newest(self, op: SearchOp, filters: list[dict[str, Any]], need: int) -> list[Stored]:
        found: list[Stored] = []
        for hit in self._browse([*filters, _ITEMS], content=True):
            stored = Stored.of(hit)
            if matches(stored.value(), op.filter):
                found.append(stored)
                if len(found) == need:
                    break
        return found

    def _by_words(self, op: SearchOp, filters: list[dict[str, Any]], need: int) -> list[Stored]:
        if need > MOST:
            raise ValueError(
                f"search: offset and limit together: at most {MOST} with a query and without an "
                f"embedder, not {need}"
            )
        text = (op.query or "").encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore")
        answer = self._query(
            text=text,
            mode=Mode.KEYWORD,
            top_k=MOST if op.filter else need,
            filters={"and": [*filters, {f"attributes.{FOUND}": True}]},
            include=Include(content=True),
        )
        found = [Stored.of(hit, hit.score) for hit in answer.items]
        return [one for one in found if matches(one.value(), op.filter)]

    def _by_meaning(
        self, op: SearchOp, filters: list[dict[str, Any]], need: int, vector: Vector
    ) -> list[Stored]:
        # More than are needed where some may turn out not to match, or to be parts of one item.
        for top_k in (need, MOST) if not op.filter and need < MOST else (MOST,):
            if need > MOST:
                break
            answer = self._query(
                vector=vector,
                mode=Mode.VECTOR,
                top_k=top_k,
                min_score=-1.0,
                embedding=self.embedding,
                filters={"and": filters},
                include=Include(content=True),
            )
            hits = [Stored.of(hit, hit.similarity) for hit in answer.items]
            found = list(self._items(hits, op))
            if len(found) >= need or (len(hits) < top_k and not answer.degraded.level):
                return found
        return self._scan(op, filters, need, vector)

    def _items(self, hits: Iterable[Stored], op: SearchOp) -> Iterator[Stored]:
        """The items of hits that match, each once, with the score of its best part."""
        best: dict[str, Stored] = {}
        for hit in hits:
            best.setdefault(hit.digest, hit)
        lacking = [digest for digest, hit in best.items() if not hit.content or hit.is_part]
        whole = self.by_digests(lacking, content=True) if lacking else {}
        for digest, hit in best.items():
            if digest in whole:
                hit = replace(whole[digest][0], score=hit.score)
            # A part without its item: it was deleted meanwhile.
            if not hit.is_part and hit.content and matches(hit.value(), op.filter):
                yield hit

    def _scan(
        self, op: SearchOp, filters: list[dict[str, Any]], need: int, vector: Vector
    ) -> list[Stored]:
        """Compares all, where what is wanted is more than a search returns, or more than the
        service can filter by."""
        query = vector / (np.linalg.norm(vector) or 1.0)
        scored: list[Stored] = []
        for hit in self._browse(filters, content=False, vectors=True):
            if hit.HasField("vector"):
                row = vector_array(hit.vector)
                scored.append(Stored.of(hit, float(row @ query / (np.linalg.norm(row) or 1.0))))
        scored.sort(key=lambda one: one.score or 0.0, reverse=True)
        scored = list({one.digest: one for one in reversed(scored)}.values())[::-1]
        found: list[Stored] = []
        for start in range(0, len(scored), PAGE):
            found += self._items(scored[start : start + PAGE], op)
            if len(found) >= need:
                break
        return found

    # -- calls -------------------------------------------------------------------------

    def _browse(
        self, filters: list[dict[str, Any]], *, content: bool, vectors: bool = False
    ) -> Iterator[pb.Hit]:
        page_token = ""
        while True:
            answer = self._query(
                filters={"and": filters},
                mode=Mode.BROWSE,
                top_k=PAGE if content or vectors else MOST,
                include=Include(content=content, vector=vectors),
                embedding=self.embedding if vectors else "",
                page_token=page_token,
            )
            yield from answer.items
            page_token = answer.next_page_token
            if not page_token:
                return

    def _query(self, **asked: Any) -> pb.QueryResponse:
        ask: Callable[..., pb.QueryResponse] = self._client.query
        position = self._position
        try:
            answer = ask(self._space, min_position=position, **asked)
        except ClientError as error:
            if error.reason != _LOST or not position:
                raise
            with self._lock:
                self._position = "" if self._position == position else self._position
            answer = ask(self._space, **asked)
        if not _is_whole(answer.degraded, words=asked["mode"] is Mode.KEYWORD):
            raise StoreIncomplete(answer.degraded.reason)
        return answer


def _is_whole(degraded: types_pb2.Degraded, *, words: bool) -> bool:
    if degraded.reason == "SEGMENT_DAMAGED":
        return not words  # vectors and records are read all the same
    return degraded.level == 0 or degraded.reason in _WHOLE


_ITEMS: Final[dict[str, Any]] = {f"attributes.{ITEM}": {"exists": True}}
_PARTS: Final[dict[str, Any]] = {f"attributes.{PART}": {"exists": True}}


def _below(namespace: tuple[str, ...]) -> dict[str, Any]:
    """Items and their parts."""
    return {f"attributes.{PATH}": path_of(namespace)} if namespace else {"or": [_ITEMS, _PARTS]}


def _fixed(condition: MatchCondition) -> tuple[str, ...]:
    """The labels of a prefix before its first wildcard."""
    path = tuple(condition.path)
    return path[: path.index("*")] if "*" in path else path
