"""The store that LangGraph is given."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)

from memsvc.client import Namespace
from memsvc.client.calls import MemoryCalls
from memsvc.client.embedders import embedding_of
from memsvc.client.messages import NamespaceLike, parse_namespace
from memsvc.domain.types import Vector
from memsvc.integrations.langgraph.items import Identity, Put, checked, digest, lifetime_ms
from memsvc.integrations.langgraph.matching import check, check_sendable
from memsvc.integrations.langgraph.reads import Reader, StoreIncomplete
from memsvc.integrations.langgraph.texts import Texts
from memsvc.integrations.langgraph.writes import StoreConflict, Writer

__all__ = ["MemsvcStore", "StoreConflict", "StoreIncomplete"]


@dataclass(slots=True)
class _Plan:
    """A batch, checked, and what has to be embedded for it."""

    ops: list[Op]
    puts: dict[Identity, Put | None] = field(default_factory=dict)
    """None = delete."""
    queries: list[str] = field(default_factory=list)
    vectors: dict[str, Vector] = field(default_factory=dict)
    """Of queries."""


class MemsvcStore(BaseStore):
    """Items of LangGraph in one tenant/agent of memsvc.

        with MemoryClient("127.0.0.1:8848") as client:
            store = MemsvcStore(client, "acme/graphs", index={"embed": LocalEmbedder()})
            graph = builder.compile(store=store)

    Safe to use from several threads and event loops. Calls raise ClientError when the service
    refuses or does not answer, StoreIncomplete when it can answer in part only, StoreConflict
    when others keep changing the same items, ValueError and TypeError for items that do not fit.
    """

    supports_ttl = True

    def __init__(
        self,
        client: MemoryCalls,
        namespace: NamespaceLike,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        """``namespace`` "tenant/agent"; keep it for this store alone. The client stays the
        caller's.

        ``index``: ``embed`` is an embedder of memsvc (``dims`` is not needed then), or what
        LangGraph takes, with ``dims``; then the client's ``embedding`` names the model. Without
        ``index`` queries search words. ``ttl``: ``default_ttl`` and ``refresh_on_read``; expired
        items are never returned, and the service sweeps by itself. ``now_us`` gives UTC
        microseconds. ValueError for what cannot be.
        """
        space = parse_namespace(namespace) if isinstance(namespace, str) else namespace
        if space.session:
            raise ValueError("namespace: expected tenant/agent, without a session")
        space = Namespace(space.tenant, space.agent)
        self.index_config = index
        self.ttl_config = ttl
        if ttl is not None:
            lifetime_ms(ttl.get("default_ttl"))
        self._client = client
        self._texts = Texts(index)
        self._reader = Reader(client, space)
        self._writer = Writer(client, space, self._reader, now_us)
        self._now_us = now_us
        self._clock = threading.Lock()
        self._latest = 0

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Gets, searches and listings see what was there before the puts of the batch; of puts
        of one key the last one counts. A hundred memories are written together, all or none."""
        plan = self._plan(ops)
        self._give(plan, self._texts.embed_texts(self._to_embed(plan)))
        plan.vectors = dict(
            zip(plan.queries, self._texts.embed_queries(plan.queries), strict=False)
        )
        return self._run(plan)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As batch; calls run in threads, and asynchronous embedders are awaited."""
        plan = self._plan(ops)
        self._give(plan, await self._texts.aembed_texts(self._to_embed(plan)))
        found = await self._texts.aembed_queries(plan.queries)
        plan.vectors = dict(zip(plan.queries, found, strict=False))
        return await asyncio.to_thread(self._run, plan)

    # -- before anything is asked --------------------------------------------------------

    def _plan(self, ops: Iterable[Op]) -> _Plan:
        plan = _Plan(list(ops))
        for op in plan.ops:
            validate_op_namespace(op)
            for label in _labels(op):
                check_sendable("namespace", label)
            if isinstance(op, PutOp):
                self._plan_put(plan, op)
            elif isinstance(op, SearchOp):
                check(op.filter)
                _bounds(op.limit, op.offset)
                if op.query and self._texts.by_meaning:
                    plan.queries.append(op.query)
            elif isinstance(op, ListNamespacesOp):
                _bounds(op.limit, op.offset)
            elif not isinstance(op, GetOp):
                raise ValueError(f"unknown operation: {type(op).__name__}")
        plan.queries = list(dict.fromkeys(plan.queries))
        return plan

    def _plan_put(self, plan: _Plan, op: PutOp) -> None:
        namespace = tuple(op.namespace)
        if not namespace:
            raise InvalidNamespaceError("Namespace cannot be empty.")
        identity = (namespace, op.key)
        if op.value is None:
            plan.puts[identity] = None
            return
        plan.puts[identity] = checked(
            identity,
            op.value,
            self._texts.of(op.value, op.index),
            lifetime_ms(op.ttl),
            self._tick(),
            by_meaning=self._texts.by_meaning,
        )

    def _tick(self) -> int:
        """Now, and later than anything this store put before."""
        with self._clock:
            self._latest = max(self._latest + 1, self._now_us())
            return self._latest

    @staticmethod
    def _to_embed(plan: _Plan) -> list[str]:
        return [text for put in plan.puts.values() if put is not None for text in put.texts]

    @staticmethod
    def _give(plan: _Plan, vectors: list[Vector]) -> None:
        rows = iter(vectors)
        for identity, put in plan.puts.items():
            if put is not None and vectors:
                plan.puts[identity] = replace(
                    put, vectors=tuple(itertools.islice(rows, len(put.texts)))
                )

    # -- asking --------------------------------------------------------------------------

    def _run(self, plan: _Plan) -> list[Result]:
        if self._reader.embedding is None:
            embedder = self._texts.embedder
            # A model that the store has no vectors of is refused, with a way forward.
            self._reader.embedding = (
                self._client.embedding
                if embedder is None
                else embedding_of(embedder, self._client.health().store)
            )
        results: list[Result] = [None] * len(plan.ops)
        self._get(plan, results)
        for number, op in enumerate(plan.ops):
            if isinstance(op, SearchOp):
                results[number] = self._search(op, plan)
            elif isinstance(op, ListNamespacesOp):
                results[number] = self._reader.namespaces(op)
        self._writer.put([put for put in plan.puts.values() if put is not None])
        gone = [digest(identity) for identity, put in plan.puts.items() if put is None]
        if gone:
            self._writer.delete(gone)
        return results

    def _get(self, plan: _Plan, results: list[Result]) -> None:
        gets = {
            number: (digest((tuple(op.namespace), op.key)), op)
            for number, op in enumerate(plan.ops)
            if isinstance(op, GetOp)
        }
        if not gets:
            return
        wanted = list(dict.fromkeys(one for one, _ in gets.values()))
        found = self._reader.by_digests(wanted, content=True)
        refreshed = {}
        for number, (one, op) in gets.items():
            if one in found:
                item: Item = found[one][0].item()
                results[number] = item
                if op.refresh_ttl:
                    refreshed[one] = found[one][0]
        self._writer.refresh(refreshed.values())

    def _search(self, op: SearchOp, plan: _Plan) -> list[SearchItem]:
        if not op.limit:
            return []
        found = self._reader.search(op, plan.vectors.get(op.query or ""))
        if op.refresh_ttl:
            self._writer.refresh(found)
        return [one.search_item() for one in found]


def _labels(op: Op) -> Iterable[str]:
    if isinstance(op, ListNamespacesOp):
        return [label for one in op.match_conditions or () for label in one.path]
    return op.namespace_prefix if isinstance(op, SearchOp) else op.namespace


def _bounds(limit: int, offset: int) -> None:
    if limit < 0 or offset < 0:
        raise ValueError(f"limit and offset: expected 0 or more, not {limit} and {offset}")
