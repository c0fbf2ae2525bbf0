"""One recall, from an input to a context, within the read timeout."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from memsvc.client.calls import MemoryCalls
from memsvc.client.embedders import Embedder, TextRefused, embed_each, embedding_of
from memsvc.client.errors import ClientError
from memsvc.client.messages import FilterLike
from memsvc.client.recall.caches import RecentTurn, RecentTurns, user_texts
from memsvc.client.recall.context import Context, ContextItem, Handles, build, item_tokens, one_line
from memsvc.client.recall.query import refers_to_recent, search_text, shortened
from memsvc.client.recall.rerank import Candidate, candidates_of, rerank
from memsvc.client.recall.settings import RecallSettings
from memsvc.client.recall.tokens import TokenCounter
from memsvc.domain.types import Namespace
from memsvc.v1 import memory_service_pb2 as pb

RECENT: Final = "recent:"
"""What ids of recent turns begin with."""
RECENT_CHARACTERS: Final = 240
"""A recent turn is shown to this length."""
EMBEDDER_FAILED: Final = "EMBEDDER_FAILED"
"""Reason of a context that was found by words alone, because the embedder failed."""
EMBEDDER_SLOW: Final = "EMBEDDER_SLOW"
"""Likewise, because it took too long."""
EMBEDDER_SHARE: Final = 0.5
"""The part of the read timeout that the embedder may take."""
EMBEDDER_CALLS: Final = 2
"""Calls of the embedder at a time; further ones wait, and when one of them hangs go without."""
HEALTH_SHARE: Final = 0.25
"""The part of it that may be spent, once, on asking which models the store has vectors of."""
EMBEDDING_UNKNOWN: Final = "EMBEDDING_UNKNOWN"
TRANSIENT: Final = frozenset(
    {
        "ABORTED",
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "INTERNAL",
        "RESOURCE_EXHAUSTED",
        "UNAVAILABLE",
        "UNKNOWN",
    }
)
"""Codes of failures that pass by themselves. They make a context poorer and never an exception;
what only a person can put right (a token, a wrong model) is raised."""


class RecallPipeline:
    """Finds what an agent remembers about an input. Safe to use from several threads.

    ``now_ms`` gives UTC ms. Without an embedder memories are found by words alone.
    """

    def __init__(
        self,
        client: MemoryCalls,
        namespace: Namespace,
        embedder: Embedder | None,
        settings: RecallSettings,
        count_tokens: TokenCounter,
        recent: RecentTurns,
        handles: Handles,
        now_ms: Callable[[], int],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._embedder = embedder
        self._settings = settings
        self._count = count_tokens
        self._recent = recent
        self._handles = handles
        self._now_ms = now_ms
        self._embedding: str | None = None if embedder is not None else ""
        self._embedding_now = threading.BoundedSemaphore(EMBEDDER_CALLS)

    def recall(self, text: str, *, session: str = "", filters: FilterLike | None = None) -> Context:
        """The context of an input. ClientError only for what does not pass by itself, and
        EmbeddingMismatch for an embedder of a model that the store has no vectors of."""
        settings = self._settings
        turns = [turn for turn in self._recent.of(session) if turn.text != text]
        text = shortened(text)
        query = search_text(text, user_texts(turns, settings.history_turns))
        near = self._near(turns, session) if refers_to_recent(text) else []
        budget = settings.rank.token_budget
        left = budget - sum(item.tokens for item in near)
        if not query or (budget and left <= 0):
            return build(near, self._count, budget, query=query)
        found, degraded = self._search(query, filters)
        shown = {one_line(turn.text) for turn in turns} if near else set()
        found = [one for one in found if one_line(one.summary) not in shown]
        options = replace(settings.rank, token_budget=left if budget else 0)
        items: dict[str, ContextItem] = {}

        def cost(one: Candidate) -> int:
            items[one.id] = self._item(one)
            return items[one.id].tokens

        kept = rerank(found, options, self._now_ms(), cost, neighbours=settings.neighbours)
        chosen = [
            # Without a budget nothing was priced on the way.
            replace(items.get(one.id) or self._item(one), score=score)
            for score, one in kept
        ]
        return build(
            [*near, *chosen][: settings.rank.keep], self._count, budget,
            degraded=degraded, query=query,
        )  # fmt: skip

    # -- parts -------------------------------------------------------------------------

    def _search(self, query: str, filters: FilterLike | None) -> tuple[list[Candidate], str]:
        """Candidates, and why they may not be all."""
        end = time.monotonic() + self._client.timeouts.read
        embedding = self._named_embedding()
        vector, trouble = self._embed(query)
        try:
            answer = self._client.query(
                self._namespace,
                text=query,
                vector=vector,
                filters=filters,
                top_k=self._settings.candidates,
                min_score=self._min_score(),
                embedding=embedding,
                timeout=max(end - time.monotonic(), 0.001),
            )
        except ClientError as error:
            if _nothing_to_search(error):
                return [], trouble
            guessed = self._embedding is None and error.reason == EMBEDDING_UNKNOWN
            if error.code not in TRANSIENT and not guessed:
                raise
            return [], error.reason or error.code
        return candidates_of(answer), trouble or _mark(answer)

    def _named_embedding(self) -> str:
        """The name under which the store has vectors of the embedder; asked for once. A guess as
        long as nobody tells: a replica may answer while the primary is away. Raises
        EmbeddingMismatch."""
        if self._embedder is None or self._embedding is not None:
            return self._embedding or ""
        guess = self._client.embedding or self._embedder.name
        try:
            health = self._client.health(timeout=self._client.timeouts.read * HEALTH_SHARE)
        except ClientError as error:
            if error.code not in TRANSIENT:
                raise
            return guess
        # Without a token that may see it, the store is not told.
        known = health.store.embeddings
        self._embedding = embedding_of(self._embedder, health.store) if known else guess
        return self._embedding

    def _min_score(self) -> float | None:
        if self._settings.min_score is not None or self._embedder is None:
            return self._settings.min_score
        return self._embedder.min_score

    def _embed(self, text: str) -> tuple[NDArray[np.float32] | None, str]:
        if self._embedder is None:
            return None, ""
        end = time.monotonic() + self._client.timeouts.read * EMBEDDER_SHARE
        if not self._embedding_now.acquire(timeout=end - time.monotonic()):
            return None, EMBEDDER_SLOW
        future: Future[list[NDArray[np.float32] | TextRefused]] = Future()
        # No pool: its threads would keep a process from ending while a model hangs.
        threading.Thread(
            target=self._embed_into, args=(future, text), name="memsvc-embed", daemon=True
        ).start()
        try:
            (row,) = future.result(max(end - time.monotonic(), 0.0))
            # A vector that the service would refuse is none.
            return (None, EMBEDDER_FAILED) if isinstance(row, TextRefused) else (row, "")
        except FutureTimeout:
            return None, EMBEDDER_SLOW
        except Exception:
            # Whatever a model or its library raises: words still find something.
            return None, EMBEDDER_FAILED

    def _embed_into(
        self, future: Future[list[NDArray[np.float32] | TextRefused]], text: str
    ) -> None:
        try:
            assert self._embedder is not None
            future.set_result(embed_each(self._embedder, [text]))
        except Exception as error:
            future.set_exception(error)
        except BaseException as ended:  # is not to end the thread that asks
            future.set_exception(RuntimeError(f"{type(ended).__name__}: {ended}"))
        finally:
            self._embedding_now.release()

    def _item(self, one: Candidate) -> ContextItem:
        item = ContextItem(
            id=one.id,
            handle=self._handles.of(one.id),
            summary=one.summary,
            ts=one.ts,
            topic=one.topic,
            session=one.session,
            similarity=one.similarity,
        )
        return self._priced(item)

    def _priced(self, item: ContextItem) -> ContextItem:
        return replace(item, tokens=item_tokens(item, self._count, self._settings.item_overhead))

    def _near(self, turns: Sequence[RecentTurn], session: str) -> list[ContextItem]:
        """The last turns as items, newest first, as far as the budget goes."""
        items: list[ContextItem] = []
        left = self._settings.rank.token_budget
        for turn in reversed(turns[-self._settings.recent_items :] if turns else ()):
            if len(items) >= self._settings.recent_items:
                break
            item = self._priced(_recent_item(turn, session))
            if left and item.tokens > left - sum(one.tokens for one in items):
                break
            items.append(item)
        return items


def _recent_item(turn: RecentTurn, session: str) -> ContextItem:
    said = one_line(turn.text)
    if len(said) > RECENT_CHARACTERS:
        said = said[: RECENT_CHARACTERS - 1] + "…"
    return ContextItem(
        id=f"{RECENT}{turn.number}",
        handle=f"{RECENT}{turn.number}",
        summary=f"{turn.role}: {said}" if turn.role else said,
        ts=turn.ts,
        session=session,
        recent=True,
    )


def _mark(answer: pb.QueryResponse) -> str:
    return (answer.degraded.reason or "DEGRADED") if answer.degraded.level else ""


def _nothing_to_search(error: ClientError) -> bool:
    """Whether the service refused a text without any letter or digit."""
    return error.code == "INVALID_ARGUMENT" and [v.field for v in error.violations] == ["text"]
