"""The memory behind the tools, set up when it is first asked for: the service may come later."""

from __future__ import annotations

import copy
import threading
from dataclasses import dataclass

from memsvc.client import (
    AgentMemory,
    ClientError,
    Embedder,
    EmbedderError,
    EmbeddingMismatch,
    Mode,
    Namespace,
    RecallSettings,
)
from memsvc.client.calls import MemoryCalls
from memsvc.client.embedders import embedding_of
from memsvc.client.facts import Facts

SOURCE = "mcp"
"""Metadata field source of memories that were stored by tool."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A memory that can be used."""

    agent: AgentMemory
    facts: Facts
    by_meaning: bool
    note: str
    """Why it searches by words only."""


class Backend:
    """Safe to use from several threads."""

    def __init__(
        self,
        client: MemoryCalls,
        namespace: Namespace,
        embedder: Embedder | None,
        *,
        strict: bool = False,
        note: str = "",
        settings: RecallSettings | None = None,
    ) -> None:
        """``strict``: an embedder of another model than the store's is an error; otherwise it is
        left out, and words search alone. ``note`` says why there is no embedder."""
        self.client = client
        self.namespace = namespace
        self._embedder = embedder
        self._strict = strict
        self._note = note
        self._settings = settings or RecallSettings()
        self._lock = threading.Lock()
        self._ready: Ready | None = None
        self._attempts = 0
        self._failure: Exception | None = None

    def ready(self) -> Ready:
        """The memory. ClientError when the service does not answer or refuses the token,
        EmbeddingMismatch when the embedder is not of the store's model (``strict``).

        Of calls that come while a service hangs one waits for it, and the others for that one:
        each in its turn would take a hundred times as long."""
        attempts = self._attempts
        with self._lock:
            if self._ready is None and attempts < self._attempts and self._failure is not None:
                raise copy.copy(self._failure)  # one each: it is given a trace of its own
            if self._ready is None:
                self._attempts += 1
                try:
                    self._ready = self._set_up()
                except (ClientError, EmbedderError) as error:
                    self._failure = error
                    raise
            return self._ready

    def close(self) -> None:
        """Ends what is done in the background, and closes the client."""
        with self._lock:
            if self._ready is not None:
                self._ready.agent.close()
            self.client.close()

    def _set_up(self) -> Ready:
        embedder, embedding, note = self._embedder, "", self._note
        if embedder is not None:
            store = self.client.health().store
            if not store.embeddings:
                # Only who has a valid token is told of the store; this says what is wrong with it.
                self.client.query(self.namespace, mode=Mode.BROWSE, top_k=1)
            try:
                embedding = embedding_of(embedder, store)
            except EmbeddingMismatch as error:
                if self._strict:
                    raise
                embedder, note = None, str(error)
        self.client.embedding = embedding
        space = Namespace(self.namespace.tenant, self.namespace.agent)
        return Ready(
            AgentMemory(self.client, self.namespace, embedder=embedder, settings=self._settings),
            Facts(self.client, space, embedder, embedding, source=SOURCE),
            embedder is not None,
            note,
        )
