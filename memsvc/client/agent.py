"""Memory as an agent uses it: recall what belongs to an input, read a memory in full, forget."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from memsvc.client.calls import MemoryCalls
from memsvc.client.connection import Timeouts, Tls
from memsvc.client.embedders import Embedder
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
from memsvc.v1 import memory_service_pb2 as pb

DEFAULT_SETTINGS = RecallSettings()


def _utc_ms() -> int:
    return time.time_ns() // 1_000_000


class AgentMemory:
    """What one agent (or end user) remembers, over a MemoryClient or a RoutedClient.

    Safe to use from several threads; a context manager. For asyncio see AsyncAgentMemory.

        embedder = LocalEmbedder()
        with AgentMemory.open("127.0.0.1:8848", "acme/bot", embedder=embedder) as memory:
            context = memory.recall("When does my passport run out?", session="chat-7")
            prompt = f"What you remember:\\n{context.text}"
    """

    def __init__(
        self,
        client: MemoryCalls,
        namespace: NamespaceLike,
        *,
        embedder: Embedder | None = None,
        settings: RecallSettings = DEFAULT_SETTINGS,
        count_tokens: TokenCounter = conservative_tokens,
        now_ms: Callable[[], int] = _utc_ms,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``namespace`` "tenant/agent", or with a session that then is the default one.
        ``embedder`` None: memories are found by words alone. The client stays the caller's: it
        is not closed here. ``now_ms`` gives UTC ms, ``monotonic`` seconds.

        ValueError when the client's vectors are of another model than the embedder's.
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
        self._handles = Handles()
        self._used = UsedTouches(client)
        self._recall = RecallPipeline(
            client, self.namespace, embedder, settings, count_tokens, self._recent,
            self._handles, now_ms,
        )  # fmt: skip

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
                client, namespace, embedder=embedder, settings=settings,
                count_tokens=count_tokens,
            )  # fmt: skip
        except BaseException:
            client.close()
            raise
        memory._owns_client = True
        return memory

    def recall(
        self, text: str, *, session: str | None = None, filters: FilterLike | None = None
    ) -> Context:
        """What is remembered about an input, as a text for the model and as items.

        Searches all sessions of the agent; ``session`` only says whose last turns an input as
        short as "why?" belongs to. ``filters`` as in a query. Answers within the read timeout
        of the client; when the service is down or slow, with what there is and a reason in
        ``degraded``. ClientError only for what does not pass by itself, as a wrong token.
        """
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
        if id_.startswith(RECENT):
            number = id_.removeprefix(RECENT)
            turn = self._recent.numbered(int(number)) if number.isdecimal() else None
            return None if turn is None else turn.text
        id_ = self._handles.id_of(id_)
        known = self._originals.get(id_)
        if known is not None:
            return known
        answer = self.client.query(self.namespace, ids=[id_], include=Include(content=True))
        if not answer.items:
            return None
        content = answer.items[0].content or answer.items[0].summary
        self._originals.put(id_, content)
        return content

    def forget(
        self,
        ids: Iterable[str] = (),
        *,
        filters: FilterLike | None = None,
        mode: ForgetMode = ForgetMode.DECAY,
        factor: float | None = None,
        validate_only: bool = False,
        reason: str = "",
    ) -> pb.ForgetResponse:
        """Erases memories (HARD) or lowers their importance (DECAY), by ids or handles, by
        filters, or both (which mean "and"). Recent turns are dropped with a HARD one, since they
        may say the same. ClientError when it fails."""
        answer = self.client.forget(
            self.namespace,
            ids=[self._handles.id_of(one) for one in ids if not one.startswith(RECENT)],
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
        return answer

    def flush(self, timeout: float | None = None) -> bool:
        """Waits until what is done in the background is done; False when it was not done after
        ``timeout`` seconds (default: the write timeout of the client)."""
        return self._used.flush(self.client.timeouts.write if timeout is None else timeout)

    def close(self) -> None:
        """Ends what is done in the background, within the write timeout, and closes the client
        that ``open`` made."""
        self._used.close(self.client.timeouts.write)
        self._recall.close()
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

    def _session(self, given: str | None) -> str:
        return self.session if given is None else given
