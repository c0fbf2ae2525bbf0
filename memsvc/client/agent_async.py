"""AgentMemory for asyncio."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, ParamSpec, Self, TypeVar

from memsvc.client.agent import AgentMemory
from memsvc.client.forgotten import Forgotten
from memsvc.client.ingest import IngestReport, Turn
from memsvc.client.messages import FilterLike
from memsvc.client.recall.context import Context
from memsvc.domain.types import ForgetMode

P = ParamSpec("P")
R = TypeVar("R")
THREADS: Final = 8
"""Calls that are under way at a time; further ones wait."""


class AsyncAgentMemory:
    """The calls of an AgentMemory as coroutines; see there for what they do.

    One implementation serves both: calls run in threads of its own, so that neither the network
    nor an embedder holds the event loop. A cancelled call is not waited for, and ends by its
    timeout. An asynchronous context manager, which closes the memory.
    """

    def __init__(self, memory: AgentMemory, *, threads: int = THREADS) -> None:
        self.memory = memory
        self._closed = False
        self._threads = ThreadPoolExecutor(threads, "memsvc-agent")

    async def remember(self, *turns: Turn, session: str | None = None) -> None:
        """As AgentMemory.remember."""
        await self._run(self.memory.remember, *turns, session=session)

    async def remember_text(self, text: Turn) -> None:
        """As AgentMemory.remember_text."""
        await self._run(self.memory.remember_text, text)

    async def end_session(self, session: str | None = None) -> None:
        """As AgentMemory.end_session."""
        await self._run(self.memory.end_session, session)

    async def recall(
        self, text: str, *, session: str | None = None, filters: FilterLike | None = None
    ) -> Context:
        """As AgentMemory.recall."""
        return await self._run(self.memory.recall, text, session=session, filters=filters)

    def note(self, role: str, text: str, *, session: str | None = None) -> None:
        """As AgentMemory.note; does not wait for anything."""
        self.memory.note(role, text, session=session)

    async def full_text(self, id_: str) -> str | None:
        """As AgentMemory.full_text."""
        return await self._run(self.memory.full_text, id_)

    async def forget(
        self,
        ids: Iterable[str] = (),
        *,
        filters: FilterLike | None = None,
        mode: ForgetMode = ForgetMode.DECAY,
        factor: float | None = None,
        validate_only: bool = False,
        reason: str = "",
    ) -> Forgotten:
        """As AgentMemory.forget."""
        return await self._run(
            self.memory.forget, ids, filters=filters, mode=mode, factor=factor,
            validate_only=validate_only, reason=reason,
        )  # fmt: skip

    async def flush(self, timeout: float = 30.0) -> IngestReport:
        """As AgentMemory.flush."""
        return await self._run(self.memory.flush, timeout)

    def report(self) -> IngestReport:
        """As AgentMemory.report; does not wait for anything."""
        return self.memory.report()

    async def close(self, timeout: float = 30.0) -> IngestReport:
        """As AgentMemory.close."""
        try:
            # Not behind calls that wait for room: closing is what ends them.
            return await asyncio.to_thread(self.memory.close, timeout)
        finally:
            self._closed = True
            self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _run(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise RuntimeError("the memory is closed")
        return await loop.run_in_executor(self._threads, functools.partial(call, *args, **kwargs))
