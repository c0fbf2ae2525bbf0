"""The thread that keeps a replica's log a beginning of its primary's."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Final, Protocol

import grpc

from memsvc.domain.log import Record
from memsvc.domain.replication import Lag, Skew, Standing
from memsvc.replication.v1 import replication_service_pb2 as pb
from memsvc.store.codec import UnknownFormat, decode_record
from memsvc.store.write_txn import Diverged
from replicas.course import Course, Step
from replicas.outbox import Outbox
from replicas.source import Answer, Source, Stream, told_by

log = logging.getLogger(__name__)

SILENT_S: Final = 5.0
"""Without a sign of life for so long the connection is given up."""


class Target(Protocol):
    """The store that follows."""

    def standing(self) -> Standing:
        """Where its log stands."""

    def apply(self, records: list[Record]) -> None:
        """Applies entries in one transaction; on disk when it returns. Raises Diverged."""


class Follower:
    """Follows until it is stopped. ``clock`` gives UTC ms; ``lag`` is kept up to date.
    ``on_restore(reason)`` is called when the log is not a beginning of the primary's and
    everything must be copied anew; then the thread ends, unless it raises. ``on_answer`` is told
    what the primary said to a probe, ``on_lost`` that it cannot be followed now."""

    def __init__(
        self,
        source: Source,
        target: Target,
        lag: Lag,
        outbox: Outbox,
        clock: Callable[[], int],
        on_restore: Callable[[str], None],
        on_answer: Callable[[Answer], None] = lambda _answer: None,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        self._target = target
        self._lag = lag
        self._outbox = outbox
        self._clock = clock
        self._on_restore = on_restore
        self._on_answer = on_answer
        self._on_lost = on_lost
        self._stopping = threading.Event()
        self._stream: Stream | None = None
        self._lock = threading.Lock()
        self.skew = Skew()
        self.course = Course()
        self._thread = threading.Thread(target=self._run, name="memsvc-follower", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends; what was received and not applied is received again."""
        self._stopping.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()
        self._source.abort()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        course = self.course
        while not self._stopping.is_set():
            if course.step in (Step.HALT, Step.RESTORE):
                log.error("no longer following %s: %s", self._source.address, course.reason)
                if course.step is Step.HALT or self._restored():
                    return
                continue
            if course.step is Step.PAUSE:
                # Half of it at random, so that followers do not all come back at once.
                self._stopping.wait(course.pause_s * (0.5 + random.random() / 2))
                course.paused()
                continue
            try:
                self._follow_once()
            except Diverged as error:
                course.differs(str(error))
            except UnknownFormat as error:
                course.unknown(str(error))
            except grpc.RpcError as error:
                self._lost(told_by(error))
            except Exception as error:
                log.exception("following failed; it is tried again")
                self._lost(str(error))

    def _restored(self) -> bool:
        try:
            self._on_restore(self.course.reason)
        except (grpc.RpcError, OSError) as error:
            # What is to be given up was not written out to its end.
            log.warning("not begun anew yet: %s", error)
            self.course.lost(str(error))
            return False
        return True

    def _lost(self, reason: str) -> None:
        if not self._stopping.is_set():
            if self.course.pause_s == 0.0:
                log.warning("the primary at %s is not reached: %s", self._source.address, reason)
            self.course.lost(reason)
            self._on_lost()

    def _follow_once(self) -> None:
        with self._source.connected() as stub:
            standing = self._target.standing()
            answer = self._source.probe(stub, standing)
            self._on_answer(answer)
            self.course.probed(answer.verdict, answer.reason)
            if self.course.step is not Step.FOLLOW:
                if self.course.step is Step.PAUSE:
                    log.warning("not following yet: %s", answer.reason)
                    self._on_lost()
                return
            self._lag.heard(answer.standing.position, self._clock())
            stream = self._source.follow(stub, standing)
            with self._lock:
                self._stream = stream
                if self._stopping.is_set():
                    stream.close()
            log.info("following %s from position %d", self._source.address, standing.position)
            watchdog = _Watchdog(SILENT_S, stream.close)
            self._outbox.opened(stream.recalled)
            try:
                for message in stream:
                    watchdog.fed()
                    self._take(message, stream)
            finally:
                watchdog.end()
                self.skew.forget()
                self._outbox.closed()
                stream.close()
                with self._lock:
                    self._stream = None
        self._lost("the stream ended")

    def _take(self, message: pb.FollowResponse, stream: Stream) -> None:
        now = self._clock()
        if message.records:
            records = [decode_record(record) for record in message.records]
            self._target.apply(records)
            position = records[-1].entry.position
            self._lag.reached(position)
            self.course.applied()
        elif message.position <= self._lag.applied:
            # Nothing was before it that had to be applied first.
            self.skew.heard(message.time, now)
        # A sign of life is answered too: a primary with min_acks counts whom it hears of.
        stream.applied(self._lag.applied)
        self._lag.heard(message.position, now)
        self._outbox.taken(message.recalls_taken)


class _Watchdog:
    """Calls ``bark`` when it was not fed for ``seconds``. A peer that is frozen, or behind a
    network that swallows everything, ends no stream by itself."""

    def __init__(self, seconds: float, bark: Callable[[], None]) -> None:
        self._seconds = seconds
        self._bark = bark
        self._fed = threading.Event()
        self._ended = False
        threading.Thread(target=self._watch, name="memsvc-watchdog", daemon=True).start()

    def fed(self) -> None:
        self._fed.set()

    def end(self) -> None:
        self._ended = True
        self._fed.set()

    def _watch(self) -> None:
        while self._fed.wait(self._seconds):
            if self._ended:
                return
            self._fed.clear()
        self._bark()
