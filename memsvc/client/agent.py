"""Memory as an agent uses it: remember what is said, recall what belongs to an input, forget."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from memsvc.client.calls import MemoryCalls
from memsvc.client.connection import Timeouts, Tls
from memsvc.client.embedders import Embedder
from memsvc.client.errors import ClientError
from memsvc.client.forgotten import Forgotten
from memsvc.client.ingest import Ingestor, IngestReport, IngestSettings, Turn
from memsvc.client.ingest.checks import expect_turns
from memsvc.client.memory import MemoryClient
from memsvc.client.messages import FilterLike, NamespaceLike, parse_namespace
from memsvc.client.recall.caches import ExpiringLru, RecentTurns
from memsvc.client.recall.context import Context, Handles
from memsvc.client.recall.pipeline import RECENT, RecallPipeline
from memsvc.client.recall.settings import RecallSettings
from memsvc.client.recall.tokens import TokenCounter, conservative_tokens
from memsvc.client.recall.touches import UsedTouches
from memsvc.client.routed import RoutedClient
from memsvc.domain.types import ForgetMode, Include, Namespace

DEFAULT_SETTINGS = RecallSettings()
DEFAULT_INGEST = IngestSettings()


def _utc_ms() -> int:
    return time.time_ns() // 1_000_000


class AgentMemory:
    """What one agent (or end user) remembers, over a MemoryClient or a RoutedClient.

    Safe to use from several threads; a context manager. For asyncio see AsyncAgentMemory. Once
    closed, calls raise RuntimeError. A process that forks opens it afterwards, in each child.

        embedder = LocalEmbedder()
        with AgentMemory.open(
            "127.0.0.1:8848", "acme/bot", embedder=embedder, spill="bot.spill"
        ) as memory:
            context = memory.recall("When does my passport run out?", session="chat-7")
            prompt = f"What you remember:\\n{context.text}"
            memory.remember(
                Turn("It runs out in March.", role="user"),
                Turn("Then renew it soon.", role="assistant"),
                session="chat-7",
            )
    """

    def __init__(
        self,
        client: MemoryCalls,
        namespace: NamespaceLike,
        *,
        embedder: Embedder | None = None,
        settings: RecallSettings = DEFAULT_SETTINGS,
        ingest: IngestSettings = DEFAULT_INGEST,
        spill: str | Path | None = None,
        count_tokens: TokenCounter = conservative_tokens,
        now_ms: Callable[[], int] = _utc_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``namespace`` "tenant/agent", or with a session that then is the default one.
        ``embedder`` None: memories are found by words alone. The client stays the caller's: it
        is not closed here. ``settings`` are for recall, ``ingest`` for what is remembered.
        ``now_ms`` gives UTC ms, ``monotonic`` seconds.

        ``spill`` is a file in which what was remembered waits until it is written, also while
        the service is away and beyond the end of the process; what an earlier process left in
        it is written now. One process at a time may have it. None = in memory.

        ValueError when the client's vectors are of another model than the embedder's,
        SpillError when the file cannot be used.
        """
        if isinstance(namespace, str):
            namespace = parse_namespace(namespace)
        if embedder is not None and client.embedding not in ("", embedder.name):
            raise ValueError(
                f"the client's embedding is {client.embedding!r}, the embedder's model "
                f"{embedder.name!r}: vectors of two models must not meet. Give both the same, "
                "or leave the client's empty"
            )
        self.namespace = Namespace(namespace.tenant, namespace.agent)
        self.session = namespace.session
        """The session of calls that name none. May be set at any time."""
        self.client = client
        self._owns_client = False
        self._now_ms = now_ms
        self._settings = settings
        self._recent = RecentTurns(settings.recent_turns, settings.recent_seconds, monotonic)
        self._originals: ExpiringLru[str] = ExpiringLru(
            settings.originals, settings.originals_seconds, monotonic
        )
        self._handles = Handles(settings.handle_characters)
        self._used = UsedTouches(client)
        self._starting = threading.Lock()
        self._closed = False
        self._ingestor: Ingestor | None = None
        self._start_ingestor: Callable[[], Ingestor] = functools.partial(
            Ingestor, client, self.namespace, embedder, spill=spill, settings=ingest,
            clock=lambda: now_ms() / 1_000,
        )  # fmt: skip
        self._recall = RecallPipeline(
            client, self.namespace, embedder, settings, count_tokens, self._recent,
            self._handles, now_ms,
        )  # fmt: skip
        if spill is not None:
            self._ingest()

    @classmethod
    def open(
        cls,
        address: str | Sequence[str],
        namespace: NamespaceLike,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        timeouts: Timeouts | None = None,
        embedding: str = "",
        embedder: Embedder | None = None,
        settings: RecallSettings = DEFAULT_SETTINGS,
        ingest: IngestSettings = DEFAULT_INGEST,
        spill: str | Path | None = None,
        count_tokens: TokenCounter = conservative_tokens,
    ) -> Self:
        """Over a client of its own, which ``close`` closes: of one node, or, for a list of
        addresses, of a primary with replicas. Connects at the first call."""
        client: MemoryCalls
        if isinstance(address, str):
            client = MemoryClient(address, token, tls=tls, timeouts=timeouts, embedding=embedding)
        else:
            client = RoutedClient(address, token, tls=tls, timeouts=timeouts, embedding=embedding)
        try:
            memory = cls(
                client, namespace, embedder=embedder, settings=settings, ingest=ingest,
                spill=spill, count_tokens=count_tokens,
            )  # fmt: skip
        except BaseException:
            client.close()
            raise
        memory._owns_client = True
        return memory

    def remember(self, *turns: Turn, session: str | None = None) -> None:
        """Takes turns of a conversation, in the order they were said. Returns when they are in
        the spill file; chunks, vectors and duplicates are a thread's business, and a service
        that is away is waited for. ``session`` is for turns that name none.

        The last turns of a conversation are written when more follow, or by ``end_session``,
        ``flush`` or ``close``. ValueError for a wrong field, SpillError when the file cannot be
        written.
        """
        expect_turns(turns)
        named = [
            turn if turn.session else replace(turn, session=self._session(session))
            for turn in turns
        ]
        self._ingest().add(*named)
        for turn in named:
            ts = self._now_ms() if turn.ts is None else turn.ts
            self._recent.note(turn.session, turn.role, turn.text, ts)

    def remember_text(self, text: Turn) -> None:
        """Takes a text that is no part of a conversation, a document for instance; it is cut
        into pieces. Give it a ``source`` of its own. Raises as remember."""
        self._ingest().add_text(text)

    def end_session(self, session: str | None = None) -> None:
        """A conversation is over, or left for another: its last turns are written."""
        self._check_open()
        if self._ingestor is not None:
            self._ingestor.end_session(self._session(session))

    def recall(
        self, text: str, *, session: str | None = None, filters: FilterLike | None = None
    ) -> Context:
        """What is remembered about an input, as a text for the model and as items.

        Searches all sessions of the agent; ``session`` only says whose last turns an input as
        short as "why?" belongs to. ``filters`` as in a query. Answers within the read timeout
        of the client; when the service is down or slow, with what there is and a reason in
        ``degraded``. ClientError only for what does not pass by itself, as a wrong token.
        """
        self._check_open()
        context = self._recall.recall(text, session=self._session(session), filters=filters)
        if self._settings.count_used:
            self._used.add(self.namespace, [item.id for item in context.items if not item.recent])
        return context

    def note(self, role: str, text: str, *, session: str | None = None) -> None:
        """A turn was spoken; ``role`` is "user" or "assistant". It is not remembered by this,
        only kept for half an hour, so that "what I just said" and "why?" can be understood."""
        self._recent.note(self._session(session), role, text, self._now_ms())

    def full_text(self, id_: str) -> str | None:
        """The whole text of an item by its id or handle; None when it is gone, or never was
        there. ClientError when the service does not answer."""
        self._check_open()
        if id_.startswith(RECENT):
            number = id_.removeprefix(RECENT)
            known_number = number.isdecimal() and len(number) < 19
            turn = self._recent.numbered(int(number)) if known_number else None
            return None if turn is None else turn.text
        if not id_.isascii():
            return None  # no id is so
        id_ = self._handles.id_of(id_)
        known = self._originals.get(id_)
        if known is not None:
            return known
        drops = self._originals.drops
        answer = self.client.query(self.namespace, ids=[id_], include=Include(content=True))
        if not answer.items:
            return None
        content = answer.items[0].content or answer.items[0].summary
        self._originals.put(id_, content, drops)
        return content

    def is_short(self, text: str) -> bool:
        """Whether a text is a handle, or the name of a recent turn, and not the id of a memory."""
        return text.startswith(RECENT) or self._handles.id_of(text) != text

    def forget(
        self,
        ids: Iterable[str] = (),
        *,
        filters: FilterLike | None = None,
        mode: ForgetMode = ForgetMode.DECAY,
        factor: float | None = None,
        validate_only: bool = False,
        reason: str = "",
    ) -> Forgotten:
        """Erases memories (HARD) or lowers their importance (DECAY), by ids or handles, by
        filters, or both (which mean "and"). Before a HARD one by filters what waits is written,
        so that it is forgotten too, or it fails (WRITES_PENDING); recent turns are dropped, since
        they may say the same. A turn is in two memories where windows overlap: what ids leave,
        filters by session and seq find.
        ClientError when it fails, ValueError when ``ids`` names nothing but recent turns, which
        are no memories."""
        self._check_open()
        known = self._stored_ids(ids)
        if self._ingestor is not None and mode == ForgetMode.HARD and not validate_only:
            self._ingestor.let_go()
            if filters is not None and not self._ingestor.drained(self.client.timeouts.write):
                raise ClientError(
                    "DEADLINE_EXCEEDED",
                    "nothing was forgotten: what waits to be written could not be written first, "
                    "and would have come afterwards",
                    reason="WRITES_PENDING",
                    hint="try again later; report().problem tells why it waits",
                )
        answer = self.client.forget(
            self.namespace,
            ids=known,
            filters=filters,
            mode=mode,
            factor=factor,
            validate_only=validate_only,
            reason=reason,
        )
        if not validate_only:
            self._originals.drop()
            if mode == ForgetMode.HARD:
                self._recent.clear()
        return Forgotten.of(answer)

    def _stored_ids(self, ids: Iterable[str]) -> list[str]:
        """Of handles and ids; without recent turns. Without all of them, the filters alone would
        select far more than was meant."""
        if isinstance(ids, str):
            raise TypeError(f"ids: expected a list of ids, not the text {ids!r:.80}")
        given = list(ids)
        stored = [self._handles.id_of(one) for one in given if not one.startswith(RECENT)]
        if given and not stored:
            raise ValueError(
                f"ids: {given[0]!r:.80} is a recent turn and no memory; what was made of it is "
                "found by filters on session and seq"
            )
        return stored

    def flush(self, timeout: float = 30.0) -> IngestReport:
        """Has everything written that was remembered, and what was used counted. Returns when it
        is, when the service cannot be reached, or after ``timeout`` seconds: ``pending`` of the
        report tells what is left. Raises what only a person can set right (ClientError,
        EmbeddingMismatch)."""
        self._check_open()
        end = time.monotonic() + timeout
        self._used.flush(min(timeout, self.client.timeouts.write))
        if self._ingestor is None:
            return IngestReport()
        return self._ingestor.flush(max(0.0, end - time.monotonic()))

    def report(self) -> IngestReport:
        """What became of what was remembered so far. Waits for nothing."""
        return IngestReport() if self._ingestor is None else self._ingestor.report()

    def close(self, timeout: float = 30.0) -> IngestReport:
        """Does what flush does, ends what runs in the background, and closes the client that
        ``open`` made. What is pending then stays in the spill file for the next time. Raises as
        flush, after closing."""
        end = time.monotonic() + timeout
        with self._starting:
            self._closed = True
        try:
            self._used.close(min(timeout, self.client.timeouts.write))
            if self._ingestor is None:
                return IngestReport()
            return self._ingestor.close(max(0.0, end - time.monotonic()))
        finally:
            if self._owns_client:
                self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _ingest(self) -> Ingestor:
        with self._starting:
            self._check_open()
            if self._ingestor is None:
                self._ingestor = self._start_ingestor()
            return self._ingestor

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the memory is closed")

    def _session(self, given: str | None) -> str:
        return self.session if given is None else given
