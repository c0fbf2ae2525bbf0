"""Turns in, memories out: chunked, embedded, compared and written by a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from memsvc.client.calls import MemoryCalls
from memsvc.client.embedders import Embedder, EmbedderUnavailable
from memsvc.client.errors import ClientError
from memsvc.client.ingest.checks import check, expect_turns
from memsvc.client.ingest.chunker import Chunker
from memsvc.client.ingest.chunks import Chunk, Turn
from memsvc.client.ingest.delivery import Delivered, Delivery
from memsvc.client.ingest.outbox import Outbox, SpillError, Waiting
from memsvc.client.ingest.report import IngestReport
from memsvc.client.ingest.retrying import (
    LONGEST_PAUSE_S,
    asked_pause_s,
    for_people,
    jittered_backoff_s,
)
from memsvc.client.ingest.sending import Fate, Sender
from memsvc.client.ingest.settings import IngestSettings
from memsvc.client.messages import NamespaceLike, parse_namespace

log = logging.getLogger("memsvc.client.ingest")

REFUSALS_KEPT: Final = 20
WAIT_FOR_ROOM_S: Final = 600.0
CLOSE_GRACE_S: Final = 10.0
"""How long ``close`` waits for a call under way, beyond its own timeout."""
DEFAULT_SETTINGS: Final = IngestSettings()


class Ingestor:
    """Remembers what is said to an agent.

        with Ingestor(client, "acme/assistant", embedder, spill="memories.spill") as ingest:
            ingest.add(Turn("I'm allergic to nuts.", role="user", session="s1"))

    ``add`` returns once the turn is in the spill file; a thread does the rest. When the service
    is away, what is given waits in the file, also beyond the end of the process, and is written
    when both are there again. The same data given twice is stored once. Safe to use from several
    threads. The methods that begin with "a" are for asyncio, and are the same.
    """

    def __init__(
        self,
        client: MemoryCalls,
        namespace: NamespaceLike,
        embedder: Embedder | None,
        *,
        spill: str | Path | None,
        settings: IngestSettings = DEFAULT_SETTINGS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``namespace`` is "tenant/agent"; sessions come with the turns. ``client`` is not
        closed. ``embedder`` None = memories are found by words only.

        ``spill`` is a file that is made where there is none; one process at a time may have it
        open, and it belongs to one tenant/agent. None = in memory: what is not written when the
        process ends is lost. Raises SpillError when it cannot be used, ValueError for a wrong
        namespace. ``clock`` gives seconds since 1970, for turns without a time.
        """
        space = parse_namespace(namespace) if isinstance(namespace, str) else namespace
        if space.session:
            raise ValueError("namespace: expected tenant/agent; the session comes with each turn")
        check(space, "")
        self._space = space
        self._settings = settings
        self._clock = clock
        self._outbox = Outbox(Path(spill) if spill else None, f"{space.tenant}/{space.agent}")
        self._in_memory = spill is None
        self._chunker = Chunker(settings)
        for session, turns in self._outbox.open_turns().items():
            self._chunker.restore(session, turns)
        self._counts: Counter[str] = Counter(replayed=self._outbox.count)
        self._refusals: deque[str] = deque(maxlen=REFUSALS_KEPT)
        self._problem = ""
        self._error: Exception | None = None
        self._failures = 0
        self._failures_in_a_row = 0
        self._rest_until = 0.0
        self._busy = 0
        self._closing = False
        self._closed = False
        self._changed = threading.Condition()
        self._closer = threading.Lock()
        self._process = os.getpid()
        self._told = self._report()
        sender = Sender(client, space, embedder, settings)
        self._has_embedder = embedder is not None
        self._delivery = Delivery(sender, settings, self._pause, random.random)
        self._thread = threading.Thread(target=self._run, name="memsvc-ingest", daemon=True)
        self._thread.start()

    # -- what users call ---------------------------------------------------------------

    def add(self, *turns: Turn) -> None:
        """Takes turns of conversations, in the order they were said; those without text are
        passed over. All or none: ValueError and TypeError for a wrong field (a text may have
        10,000,000 characters), SpillError when the file cannot be written, TimeoutError when
        there is no room for ten minutes (``when_full`` "wait"), RuntimeError when it is closed,
        or was opened before the process was forked."""
        expect_turns(turns)
        for turn in turns:
            check(self._space, turn.session, turn)
        self._take([turn for turn in turns if turn.text.strip()], self._chunker.add)

    def add_text(self, text: Turn) -> None:
        """Takes a text that is no part of a conversation: it is cut into pieces, numbered from
        0. Give it a ``source`` or ``session`` of its own. ``seq`` is not used. Raises as add."""
        expect_turns([text])
        check(self._space, text.session, text)
        self._take([text] if text.text.strip() else [], self._chunker.add_text)

    def end_session(self, session: str) -> None:
        """Writes the last turns of a conversation, although their window is not full. Otherwise
        this is done by flush and close."""
        check(self._space, session)
        with self._open():
            self._put(lambda: self._chunker.end(session), [session])

    def let_go(self) -> None:
        """Gives out the last turns of all conversations, and holds them no longer for windows to
        come. To be called before memories are erased: what is held would be written again, as
        part of the next window."""
        with self._open():
            self._put(self._chunker.let_go, self._chunker.sessions)

    def flush(self, timeout: float = 30.0) -> IngestReport:
        """Has everything written that was given, windows that are not full included; they grow
        when more turns come. Returns when it is, when the service cannot be reached after the
        retries, or after ``timeout`` seconds: ``pending`` of the report tells which.

        Raises what only a person can set right: a token that is refused (ClientError), an
        embedder of another model than the store's (EmbeddingMismatch), whatever else an embedder
        raises. What waits stays.
        """
        self.drained(timeout)
        return self._told

    def drained(self, timeout: float) -> bool:
        """flush; whether everything is written that was given before. Raises as flush."""
        with self._open():
            self._put(self._chunker.rest, [])
            goal, failures = self._outbox.last_number(), self._failures
            self._rest_until = 0.0
            self._error = None
            self._tell()

            def written() -> bool:
                return not 0 < self._outbox.first_number() <= goal

            def ended() -> bool:
                # Closed meanwhile, the file cannot be asked any more.
                return self._closing or self._failures > failures or written()

            self._changed.wait_for(ended, timeout)
            self._raise_what_is_for_people()
            return not self._closing and written()

    def report(self) -> IngestReport:
        """What became of what was given so far. Waits for nothing."""
        return self._told

    def close(self, timeout: float = 30.0) -> IngestReport:
        """flush, then ends the thread and closes the file. What is pending then stays in the
        file for the next time. Takes up to ten seconds beyond ``timeout`` when a call is under
        way, and then leaves it to itself. Raises as flush, after closing. Once more, and in a
        process that was forked off, it does nothing."""
        if os.getpid() != self._process:
            return self._told  # the file is that of the other process
        with self._closer:
            if self._closed:
                return self._told
            try:
                self.flush(timeout)
            finally:
                report = self._end()
        return report

    def _end(self) -> IngestReport:
        with self._changed:
            self._closing = True
            self._tell()
        # An embedder may hang. What it was asked for stays in the file, as after a crash.
        self._thread.join(CLOSE_GRACE_S)
        with self._changed:
            self._closed = True
            self._tell()
            self._outbox.close()
        if self._told.pending and self._in_memory:
            log.warning("chunks not written and lost: %d; there is no spill", self._told.pending)
        return self._told

    async def aadd(self, *turns: Turn) -> None:
        """add, without blocking the event loop."""
        await asyncio.to_thread(self.add, *turns)

    async def aadd_text(self, text: Turn) -> None:
        """add_text, without blocking the event loop."""
        await asyncio.to_thread(self.add_text, text)

    async def aend_session(self, session: str) -> None:
        """end_session, without blocking the event loop."""
        await asyncio.to_thread(self.end_session, session)

    async def aflush(self, timeout: float = 30.0) -> IngestReport:
        """flush, without blocking the event loop."""
        return await asyncio.to_thread(self.flush, timeout)

    async def aclose(self, timeout: float = 30.0) -> IngestReport:
        """close, without blocking the event loop."""
        return await asyncio.to_thread(self.close, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    # -- taking ------------------------------------------------------------------------

    def _take(self, turns: Sequence[Turn], chunks_of: Callable[[Turn, int], list[Chunk]]) -> None:
        if not turns:
            return
        now_ms = int(self._clock() * 1_000)
        with self._open():
            if self._settings.when_full == "wait":
                self._wait_for_room()
            sessions = list(dict.fromkeys(turn.session for turn in turns))

            def chunked() -> list[Chunk]:
                chunks = [chunk for turn in turns for chunk in chunks_of(turn, now_ms)]
                while session := self._chunker.oldest_beyond(self._settings.max_sessions):
                    chunks += self._chunker.end(session)
                    sessions.append(session)
                return chunks

            self._put(chunked, sessions)

    def _put(self, chunked: Callable[[], Iterable[Chunk]], sessions: list[str]) -> None:
        """Chunks into the file, with the open ends of these sessions as they are then."""
        # Who waits for room has none of it taken away: one call may go beyond it.
        most = self._settings.max_pending if self._settings.when_full == "drop" else None
        try:
            chunks = chunked()
            ends = {session: self._chunker.open_turns(session) for session in sessions}
            dropped = self._outbox.put(chunks, ends, most, self._busy)
        except BaseException:  # a signal, too
            # What the chunker holds must be what the file holds, or turns given again would be
            # taken for known.
            kept = self._outbox.open_turns()
            for session in {*sessions, *kept}:  # flush names none
                self._chunker.restore(session, kept.get(session, []))
            raise
        self._counts["dropped"] += dropped
        if dropped:
            log.warning("chunks dropped: %d; %d wait to be written", dropped, self._outbox.count)
        self._tell()

    def _wait_for_room(self) -> None:
        def room() -> bool:
            return self._closing or self._outbox.count < self._settings.max_pending

        if not self._changed.wait_for(room, WAIT_FOR_ROOM_S):
            count = self._outbox.count
            raise TimeoutError(
                f"{count} {'chunk waits' if count == 1 else 'chunks wait'} to be written, and none "
                f"was for {WAIT_FOR_ROOM_S:g} s: {self._problem}"
            )
        self._check_open()

    def _check_open(self) -> None:
        if self._closing:
            raise RuntimeError("the ingestor is closed")

    @contextmanager
    def _open(self) -> Iterator[None]:
        # Before the lock, which somebody may have had when the process was forked.
        if os.getpid() != self._process:
            raise RuntimeError(
                "this memory was opened before the process was forked: its thread and its file "
                "are those of the other process; open one in each, with a spill file of its own"
            )
        with self._changed:
            self._check_open()
            yield

    def _tell(self) -> None:
        """Something is otherwise than it was."""
        self._told = self._report()
        self._changed.notify_all()

    # -- the thread --------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closing and (not self._outbox.count or self._rest_s() > 0):
                    self._changed.wait(self._rest_s() if self._outbox.count else None)
                if self._closing:
                    return
                try:
                    waiting = self._outbox.first(self._settings.write_batch)
                except SpillError as error:
                    self._failed(error)
                    continue
                self._busy = waiting[-1].number
            delivered = self._delivery.deliver([one.chunk for one in waiting])
            with self._changed:
                self._settle(waiting, delivered)

    def _raise_what_is_for_people(self) -> None:
        if self._error is not None and self._outbox.count:
            raise self._error

    def _rest_s(self) -> float:
        return max(0.0, self._rest_until - time.monotonic())

    def _pause(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._closing, seconds)

    def _settle(self, waiting: Sequence[Waiting], delivered: Delivered) -> None:
        if self._closed:  # without waiting for this batch
            return
        self._busy = 0
        done = []
        let_go = sum(parcel.fate is Fate.SAMPLED_OUT for parcel in delivered.parcels)
        if let_go:
            log.warning("less important chunks let go, the service is overloaded: %d", let_go)
        for one, parcel in zip(waiting, delivered.parcels, strict=True):
            if parcel.fate is None:
                continue
            done.append(one)
            self._counts[parcel.fate.value] += 1
            if parcel.fate is Fate.REFUSED:
                self._refusals.append(f"{one.chunk.key}: {parcel.why}")
                log.warning("refused: %s: %s", one.chunk.key, parcel.why)
            if parcel.fate in (Fate.WRITTEN, Fate.GROWN) and self._has_embedder:
                self._counts["without_vector"] += parcel.vector is None
                self._counts["unchecked"] += parcel.unchecked
        try:
            self._outbox.settle(done)
        except SpillError as error:  # they are sent again, and found to be there
            self._failed(error)
            return
        if delivered.error is not None:
            self._failed(delivered.error)
            return
        self._problem = delivered.note
        self._failures_in_a_row = 0
        self._tell()

    def _failed(self, error: Exception) -> None:
        """Leaves the rest for later."""
        self._problem = str(error)
        self._failures += 1
        self._failures_in_a_row += 1
        passes = isinstance(error, ClientError | EmbedderUnavailable | SpillError)
        self._error = None if passes and not for_people(error) else error
        pause = jittered_backoff_s(self._settings.pause_s, self._failures_in_a_row, random.random)
        pause = min(LONGEST_PAUSE_S, max(pause, asked_pause_s(error)))
        self._rest_until = time.monotonic() + pause
        log.warning("not written, next attempt in %.1f s: %s", pause, error)
        self._tell()

    def _report(self) -> IngestReport:
        counts: dict[str, Any] = dict(self._counts)
        return IngestReport(
            problem=self._problem,
            refusals=tuple(self._refusals),
            pending=self._outbox.count,
            **counts,
        )
