"""The memory of one owner, shared by all agents of the process that serve them.

A gateway makes a new agent for each turn, and many at a time; connections, the embedder and the
file of what waits must outlive them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from memsvc.integrations.hermes.breaker import Breaker
from memsvc.integrations.hermes.settings import Owner, Settings, segment

if TYPE_CHECKING:  # not at run time: see the package
    from memsvc.client import AgentMemory, Context, Embedder, MemoryClient, RoutedClient
    from memsvc.client.ingest import Turn

log = logging.getLogger(__name__)

SLOTS: Final = 8
"""Processes of one Hermes home that can keep what waits in files at a time, for each owner."""
MAX_EARLY: Final = 200
"""Turns that are kept until the memory is open; then the oldest go."""
MAX_IDLE: Final = 64
"""Memories that stay open though no agent uses them; those unused for longest are closed."""
IDLE_SECONDS: Final = 900.0
"""Likewise, how long."""
LEFT_OVER_SECONDS: Final = 30.0
CLOSING_SECONDS: Final = 5.0
UNANSWERED: Final = frozenset({"UNREACHABLE", "DEADLINE_EXCEEDED"})
"""Reasons of recalls that cost time and gave nothing."""
RECENT_MS: Final = 30 * 60_000
"""What was said in the same session within this time is not recalled: the model sees it."""


class SharedMemory:
    """Recall, and writing in the background. Nothing here raises because the service is away.

    Opens in a thread of its own: importing gRPC and asking the server takes about a second, which
    no agent should wait for. Safe to use from several threads.
    """

    def __init__(self, settings: Settings, owner: Owner, token: str | None, folder: Path) -> None:
        self.settings = settings
        self.owner = owner
        self.problem = ""
        """Why it does not work as it should; "" = it does, as far as is known."""
        self.on_disk = False
        """Whether what waits to be written outlives the process."""
        self.users = 0
        """Agents that have it."""
        self.idle_since = 0.0
        self.closed = False
        self._token = token
        self._folder = folder
        self._breaker = Breaker()
        self._lock = threading.Lock()
        self._early: deque[tuple[str, tuple[Turn, ...]]] = deque(maxlen=MAX_EARLY)
        self._client: MemoryClient | RoutedClient | None = None
        self._memory: AgentMemory | None = None
        self._opened = threading.Event()
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._open, name="memsvc-hermes-open", daemon=True)
        self._thread.start()

    # -- opening -----------------------------------------------------------------------

    def _open(self) -> None:
        embedder = None
        try:
            self._client = self._connected()
            embedder = self._suitable_embedder(self._client)
            self._memory = self._remembering(self._client, embedder)
        except Exception as error:  # what a plugin must never do is to stop the agent
            self._trouble(f"memory is off: {explained(error)}", error)
        with self._lock:  # what came early goes first
            while self._early:
                self._write(*self._early.popleft())
            self._opened.set()
        if self._memory is None or self._client is None:
            return
        self._warm_up(embedder)
        self._send_left_over(self._client, embedder)

    def _connected(self) -> MemoryClient | RoutedClient:
        from memsvc.client import MemoryClient, RoutedClient, Timeouts

        settings = self.settings
        timeouts = Timeouts(read=settings.recall_seconds)
        tls, addresses = tls_of(settings), settings.addresses
        if len(addresses) == 1:
            return MemoryClient(addresses[0], self._token, tls=tls, timeouts=timeouts)
        return RoutedClient(addresses, self._token, tls=tls, timeouts=timeouts)

    def _suitable_embedder(self, client: MemoryClient | RoutedClient) -> Embedder | None:
        """The embedder; None = words only, which is also what "auto" makes of a store of another
        model. Vectors of two models in one index would both look fine, and neither be found."""
        from memsvc.client import ClientError, EmbeddingMismatch, LocalEmbedder, local_embedder
        from memsvc.client.embedders import embedding_of

        if self.settings.embedder == "local":
            return LocalEmbedder()
        embedder = local_embedder() if self.settings.embedder == "auto" else None
        if embedder is None:
            return None
        try:
            store = client.health().store
            if store.embeddings:  # not told without a token that may see it
                embedding_of(embedder, store)
        except EmbeddingMismatch as error:
            self._trouble(f"memories are found by words only: {error}")
            return None
        except ClientError as error:
            log.debug("memsvc: which model the store has is not known yet: %s", error)
        return embedder

    def _remembering(
        self, client: MemoryClient | RoutedClient, embedder: Embedder | None
    ) -> AgentMemory:
        from memsvc.client.ingest import SpillError

        problem = ""
        for slot in range(SLOTS):
            try:
                memory = self._memory_over(client, embedder, self._slot(slot))
                self.on_disk = True
                return memory
            except SpillError as error:  # mostly: another process has it
                problem = problem or str(error)
        self._trouble(f"what is not written when Hermes ends will be lost: {problem}")
        return self._memory_over(client, embedder, None)

    def _memory_over(
        self, client: MemoryClient | RoutedClient, embedder: Embedder | None, spill: Path | None
    ) -> AgentMemory:
        from memsvc.client import AgentMemory, Namespace, RankOptions, RecallSettings

        return AgentMemory(
            client,
            Namespace(self.owner.tenant, self.owner.agent),
            embedder=embedder,
            settings=RecallSettings(
                rank=RankOptions(token_budget=self.settings.token_budget),
                recent_items=0,  # the model sees the conversation anyway
                handle_characters=8,  # and goes on with it after a restart
            ),
            spill=spill,
        )

    def _slot(self, number: int) -> Path:
        name = segment(f"{self.owner.tenant}.{self.owner.agent}", 120)
        return self._folder / f"waiting-{name}-{number}.db"

    def _warm_up(self, embedder: Embedder | None) -> None:
        """Models load at their first use; the first recall should not have to wait for that."""
        try:
            if embedder is not None:
                embedder.embed(["hello"])
        except Exception as error:
            self._trouble(explained(error), error)

    def _send_left_over(
        self, client: MemoryClient | RoutedClient, embedder: Embedder | None
    ) -> None:
        """Writes what processes left that ended before the service took it. A file that is in
        use belongs to one that lives."""
        from memsvc.client.ingest import SpillError

        for slot in range(SLOTS):
            path = self._slot(slot)
            if not path.exists():
                continue
            try:
                self._memory_over(client, embedder, path).close(LEFT_OVER_SECONDS)
            except SpillError:
                continue
            except Exception as error:
                self._trouble(f"{path}: {explained(error)}", error)

    # -- what the provider calls -------------------------------------------------------

    def wait(self, seconds: float) -> bool:
        """Whether it is open, after at most so long."""
        return self._opened.wait(seconds)

    def recall(self, text: str, session: str, spoken: str, seconds: float) -> Context | None:
        """What is remembered about a text; None when there is nobody to ask, or was not lately.
        ``session`` is the one it is said in, ``spoken`` under which its last turns are kept.
        Takes at most ``seconds`` to open and the read timeout to ask."""
        if not self.wait(seconds) or self._memory is None or not self._breaker.allows():
            return None
        try:
            context = self._memory.recall(text, session=spoken, filters=_not_just_said(session))
        except Exception as error:  # a refused token, for instance: answered at once
            self._trouble(explained(error), error)
            return None
        if context.degraded in UNANSWERED:
            self._breaker.failed()
            self._trouble(f"nothing can be recalled now: {context.degraded}")
            return None
        self._breaker.succeeded()
        self.problem = ""
        return context

    def add(self, spoken: str, *turns: Turn) -> None:
        """Turns of a conversation, to be written in the background. Never waits."""
        with self._lock:
            if self._opened.is_set():
                self._write(spoken, turns)
            else:
                self._early.append((spoken, turns))

    def _write(self, spoken: str, turns: tuple[Turn, ...]) -> None:
        if self._memory is None:
            return
        try:
            self._memory.remember(*turns)
            # Also windows that are not full: another session may ask in a minute.
            self._memory.flush(0)
        except Exception as error:
            self._trouble(explained(error), error)
        for turn in turns:
            if spoken != turn.session:
                self._memory.note(turn.role, turn.text, session=spoken)

    def remember(self, text: Turn, seconds: float) -> str:
        """One text; returns why it is not written yet, or "". Takes about ``seconds`` at most.
        ValueError for what the service refuses, RuntimeError when there is no memory."""
        memory = self.opened(seconds)
        refused = memory.report().refused
        memory.remember_text(text)
        try:
            report = memory.flush(seconds)
        except Exception as error:
            return explained(error)
        if report.refused > refused:
            raise ValueError(f"the service does not take it: {report.refusals[-1]}")
        return (report.problem or "it is still being written") if report.pending else ""

    def opened(self, seconds: float) -> AgentMemory:
        """For what is done while the caller waits. RuntimeError when it is not open after so
        long, or could not be opened."""
        if not self.wait(seconds) or self._memory is None:
            raise RuntimeError(self.problem or "the memory is not open yet")
        return self._memory

    def end_session(self, session: str) -> None:
        """A conversation is over. Never waits."""
        if self._memory is not None:
            try:
                self._memory.end_session(session)
            except Exception as error:
                self._trouble(explained(error), error)

    def flush(self, seconds: float) -> bool:
        """Waits until everything is written, at most so long; whether it is. What is not stays in
        the file."""
        end = time.monotonic() + seconds
        if not self.wait(seconds) or self._memory is None:
            return False
        try:
            return not self._memory.flush(max(0.0, end - time.monotonic())).pending
        except Exception as error:
            self._trouble(explained(error), error)
            return False

    def close(self) -> None:
        """Gives everything back. May take some seconds."""
        self._thread.join()
        try:
            if self._memory is not None:
                self._memory.close(CLOSING_SECONDS)
        except Exception as error:
            self._trouble(explained(error), error)
        if self._client is not None:
            self._client.close()
        self.closed = True

    def _trouble(self, text: str, error: Exception | None = None) -> None:
        """Tells the log each trouble once."""
        self.problem = text
        if text not in self._told:
            self._told.add(text)
            log.warning("memsvc: %s", text)
        else:
            log.debug("memsvc: %s", text, exc_info=error)


def tls_of(settings: Settings) -> Any:
    """A memsvc.client.Tls, or None where nothing is encrypted."""
    from memsvc.client import Tls

    files = (settings.ca_file, settings.cert_file, settings.key_file)
    return Tls(*files) if settings.tls or any(files) else None


def explained(error: Exception) -> str:
    """What went wrong, and what to do about it."""
    hint = getattr(error, "hint", "")
    text = str(error) or type(error).__name__
    return f"{text} ({hint})" if hint else text


def _not_just_said(session: str) -> dict[str, Any] | None:
    """Filter: not what was said in this session a moment ago."""
    since = time.time_ns() // 1_000_000 - RECENT_MS
    return {"not": {"session": session, "ts": {"gte": since}}} if session else None


class Registry:
    """The memories that are open in this process."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, most_idle: int = MAX_IDLE
    ) -> None:
        self._clock = clock
        self._most_idle = most_idle
        self._lock = threading.Lock()
        self._open: dict[tuple[Any, ...], SharedMemory] = {}

    def take(
        self, settings: Settings, owner: Owner, token: str | None, folder: Path
    ) -> SharedMemory:
        """The memory of an owner, opened if it is not. Give it back when done with it."""
        key = (settings, owner, token, folder)
        with self._lock:
            memory = self._open.get(key)
            if memory is None:
                memory = self._open[key] = SharedMemory(settings, owner, token, folder)
            memory.users += 1
            unused = self._unused()
        for one in unused:
            threading.Thread(target=one.close, name="memsvc-hermes-close", daemon=True).start()
        return memory

    def give_back(self, memory: SharedMemory) -> None:
        """An agent is done with it. It stays open for a while."""
        with self._lock:
            memory.users -= 1
            memory.idle_since = self._clock()

    def _unused(self) -> list[SharedMemory]:
        """Takes out those that were not used for long, or are too many."""
        idle = [(key, one) for key, one in self._open.items() if not one.users]
        idle.sort(key=lambda entry: entry[1].idle_since)
        now = self._clock()
        gone = [
            key
            for number, (key, one) in enumerate(idle)
            if now - one.idle_since > IDLE_SECONDS or len(idle) - number > self._most_idle
        ]
        return [self._open.pop(key) for key in gone]


REGISTRY: Final = Registry()
"""The one of this process."""
