"""A reader: a process that answers Query on the port of its node, and passes the rest on.

It reads the store and the segment files of the serving process, which starts it, and never
writes. A query takes its snapshot when it begins, so it finds what was committed by then,
whichever process took the write.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import memsvc
from memsvc import pinning  # noqa: F401  (for its effect on numpy)
from memsvc.config import Settings
from memsvc.domain.errors import MemsvcError, Unavailable
from memsvc.domain.manifest import SegmentMeta, segment_from_json
from memsvc.domain.types import Degraded, DegradedLevel
from memsvc.readers.early import HELD
from memsvc.readers.following import FollowingGenerations, FollowingProgress
from memsvc.readers.link import Lines, LinkBroken, Sender
from memsvc.rpc.forwarding import Forwarder
from memsvc.rpc.server import RpcOptions, RpcServer
from memsvc.segments.costs import ScanCosts
from memsvc.segments.errors import Damage
from memsvc.service import allocator, logs, traces
from memsvc.service.access import Access, Gate
from memsvc.service.degradation import REPLICA_LAGGING, STALE, Degradation
from memsvc.service.derived import (
    call_settings,
    indexed,
    own_log_wait_s,
    search_settings,
    tail_budget,
)
from memsvc.service.limits import CallPool
from memsvc.service.listening import ListenError
from memsvc.service.metrics import Metrics
from memsvc.service.querying import QueryService
from memsvc.service.readings import NodeReadings
from memsvc.service.recalls import RecallBuffer
from memsvc.service.search.cold_pages import ColdPages
from memsvc.service.search.costs import CostBook
from memsvc.service.search.registry import Views
from memsvc.service.search.searcher import Searcher
from memsvc.service.shared_limits import SharedRateLimiter
from memsvc.service.tokens import TokenEntry, TokenStore
from memsvc.store.following import FollowingStore

log = logging.getLogger("memsvc.reader")

BEAT_S: Final = 1.0
EXIT_REFUSED: Final = 78
SWITCH_INTERVAL_S: Final = 0.0001
"""See memsvc/server.py."""
_PR_SET_PDEATHSIG: Final = 1


class _Api:
    """What the gate of a reader calls; everything but Query was passed on before it."""

    def __init__(self, queries: QueryService) -> None:
        self.query = queries.query

    def _elsewhere(self, *_: object) -> NoReturn:
        raise Unavailable("a reader answers Query alone")

    write = forget = health = _elsewhere


class Reader:
    """One reader, put together from what its node told at the start (``told``)."""

    def __init__(self, told: dict[str, Any], sender: Sender) -> None:
        settings = Settings.model_validate_json(told["settings"])
        self._settings = settings
        self._sender = sender
        self._ids = itertools.count(1)
        self._asked: dict[int, Future[None]] = {}
        self._settling = threading.Lock()
        self._lazy = settings.storage.wal_sync == "every_1000ms"
        self._follows = False
        self._mark = Degraded()
        self._stood = time.monotonic()
        self._work = ThreadPoolExecutor(1, "memsvc-follow")
        self.store = FollowingStore(settings.storage.data_dir)
        self.views = Views(self.store, tail_budget(settings), indexed(settings))
        self.views.on_damage = self._found
        self.searcher = Searcher(
            self.views,
            search_settings(settings),
            CostBook(ScanCosts(**told["costs"])),
            told["readers"],
        )
        self.cold_pages = ColdPages(self.views, settings.storage.cold_budget_bytes)
        self.degradation = Degradation()
        self.degradation.mark = self._standing_mark
        self.recalls = RecallBuffer()
        self.queries = QueryService(
            self.store,
            self.searcher,
            FollowingGenerations(self.store),
            self.degradation,
            self.recalls,
            FollowingProgress(self.store, self._settle),
            call_settings(settings),
            clock=lambda: time.time_ns() // 1_000_000,
            own_log_wait_s=lambda: None if self._follows else own_log_wait_s(settings),
        )
        self._unreadable = threading.Event()
        self.queries.on_unreadable = self._unreadable.set
        self.metrics = Metrics()
        self.searcher.on_searched = self.metrics.searched
        self.searcher.on_cache = self.metrics.cached
        self.metrics.bind(
            lambda: NodeReadings(
                index_tail_bytes=self.views.nbytes, query_cache_bytes=self.searcher.cache.nbytes
            )
        )
        self.tokens: TokenStore | None = None
        if settings.auth.mode == "token":
            self.tokens = TokenStore(
                settings.tokens_path,
                namespace_scope=settings.auth.namespace_scope,
                in_force=tuple(TokenEntry.model_validate_json(one) for one in told["tokens"]),
            )
        self.limiter = SharedRateLimiter(
            Path(told["limits"]), settings.limits.requests_per_second, settings.limits.burst
        )
        server = settings.server
        self._tracing = traces.start(settings.telemetry.otlp_endpoint, memsvc.__version__)
        gate = Gate(
            _Api(self.queries),
            access=Access(self.tokens, header=settings.auth.token_header),
            limiter=self.limiter,
            metrics=self.metrics,
        )
        self._pool = CallPool(server.workers, server.max_connections)
        self._forward = Forwarder(
            told["writer"],
            max_message_bytes=server.max_message_bytes,
            workers=server.workers,
            max_calls=server.max_connections,
        )
        options = RpcOptions.on_shared_port(settings, lambda: self._settings, told["listen"])
        self._rpc = RpcServer(gate, self._pool, options, self._tracing, self._forward)
        self._force(told["forced"])
        self._stand(told["standing"])

    def start(self) -> int:
        """Listens; returns the port. Raises ListenError."""
        # Who connects first is told what is so, and not that nothing was found out yet.
        self._rpc.look_now()
        port = self._rpc.start()
        self._rpc.follow_health()
        return port

    def stop(self, grace_s: float) -> None:
        """Finishes or refuses every call, and hands over what was counted."""
        until = time.monotonic() + grace_s
        self._rpc.stop(grace_s)
        self._pool.close(max(1.0, until - time.monotonic()))
        self._forward.close()
        self._work.shutdown(cancel_futures=True)
        self.beat()
        self.searcher.close()
        self.views.clear()
        self.store.close()
        self._tracing.close()

    @property
    def grace_s(self) -> float:
        """Time that running calls get to finish."""
        return self._settings.server.graceful_shutdown_ms / 1_000

    def beat(self) -> None:
        """Says that it is well, and what it has counted. The read notices a replaced
        database file, which would else stay on the disk for as long as nobody asks."""
        with contextlib.suppress(Unavailable), self.store.read():
            pass
        unreadable = self._unreadable.is_set()
        self._unreadable.clear()
        self._sender.send(
            {
                "beat": self.queries.active_calls,
                "samples": self.metrics.samples(),
                "recalls": self.recalls.take(),
                "unreadable": unreadable,
            }
        )

    # -- what the node says ------------------------------------------------------------

    def handle(self, message: dict[str, Any]) -> None:
        """Does what a message says. Quick, since others wait behind it."""
        do = message["do"]
        if do == "settings":
            self._apply(Settings.model_validate_json(message["settings"]))
        elif do == "force":
            self._force(message["forced"])
        elif do == "stand":
            self._stand(message["standing"])
        elif do == "replaced":
            renew = self.views.drop if message["drop"] else self.views.settle
            self._work.submit(self._do, partial(renew, message["partition"]))
        elif do == "expect":
            meta = segment_from_json(message["segment"])
            self._work.submit(self._do, partial(self.views.expect, meta))
        elif do == "settled":
            asked = self._asked.pop(message["for"], None)
            if asked is not None:
                asked.set_result(None)
        if "id" in message:
            samples = self.metrics.samples() if do == "samples" else None
            self._sender.send({"done": message["id"], "samples": samples})

    def _apply(self, settings: Settings) -> None:
        self._settings = settings
        self.queries.settings = call_settings(settings)
        self.searcher.settings = search_settings(settings)
        self.views.budget = tail_budget(settings)
        self.cold_pages.budget = settings.storage.cold_budget_bytes
        self.limiter.configure(settings.limits.requests_per_second, settings.limits.burst)
        logs.set_level(settings.log.level)
        if self.tokens is not None:
            self.tokens.reload()

    def _force(self, forced: list[Any] | None) -> None:
        self.degradation.force(
            None if forced is None else DegradedLevel(forced[0]), forced[1] if forced else ""
        )

    def _stand(self, standing: dict[str, Any]) -> None:
        level, reason = standing["mark"]
        self._mark = Degraded(DegradedLevel(level), reason)
        self._follows = standing["follows"]
        self._stood = time.monotonic()

    def _standing_mark(self) -> Degraded:
        """What the node told last. When it has been silent for longer than its lease, or than a
        replica may lag, it would have to tell this: a process that is stopped does not even
        know that another node leads by now."""
        own = self._settings.replication
        most_ms, mark = (own.lease_ms if own.min_acks else 0), STALE
        if self._follows:
            most_ms, mark = own.max_lag_ms, REPLICA_LAGGING
        silent_ms = 1_000 * (time.monotonic() - self._stood)
        return mark if 0 < most_ms < silent_ms else self._mark

    @staticmethod
    def _do(work: Callable[[], None]) -> None:
        try:
            work()
        except MemsvcError as error:  # the next query finds out
            log.warning("a view was not renewed: %s", error)
        except Exception:
            log.exception("a view was not renewed")

    # -- what it asks and tells --------------------------------------------------------

    def _settle(self, seconds: float) -> bool:
        """Has the node commit what it acknowledged, when it does so before committing; whether
        it did in time. Calls that wait meanwhile share the next time."""
        # A follower acknowledges nothing, and commits what it is sent before it goes on.
        if not self._lazy or self._follows:
            return True
        until = time.monotonic() + seconds
        if not self._settling.acquire(timeout=max(0.0, seconds)):
            return False
        try:
            number, asked = next(self._ids), Future[None]()
            self._asked[number] = asked
            self._sender.send({"settle": number})
            asked.result(timeout=max(0.0, until - time.monotonic()))
            return True
        except FutureTimeout:
            return False
        finally:
            self._asked.pop(number, None)
            self._settling.release()

    def _found(self, meta: SegmentMeta, damages: tuple[Damage, ...]) -> None:
        """The node sets damaged files aside and builds them anew."""
        files = [[damage.file.name, damage.reason] for damage in damages]
        self._sender.send({"damage": meta.to_json().decode(), "files": files})


def main() -> int:
    """Serves until told to stop, or until the node is gone. The only argument is the data
    directory, so that one sees in a list of processes whose reader it is."""
    # What is printed by mistake must not get into the messages.
    out = os.dup(1)
    os.dup2(2, 1)
    stop = threading.Event()
    _ignore_signals(stop)
    _die_with_parent()
    messages = _messages()
    first = next(messages, None)
    if first is None:
        return 0
    told = first["start"]
    settings = Settings.model_validate_json(told["settings"])
    logs.configure(settings.log.level, settings.log.format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    allocator.tune()
    _raise_open_files()
    sender = Sender(out)
    access_lines = logs.AccessWriter()
    try:
        reader = Reader(told, sender)
        access_lines.start()
        # Before the first call comes, since the node takes them for answered from then on.
        threading.Thread(
            target=_listen, args=(reader, messages, stop), name="memsvc-node", daemon=True
        ).start()
        port = reader.start()
    except (ListenError, MemsvcError) as error:
        sender.send({"refused": str(error)})
        return EXIT_REFUSED
    allocator.settle()
    returner = allocator.Returner()
    with contextlib.suppress(LinkBroken):
        sender.send({"ready": port})
        for count in itertools.count():
            reader.beat()
            reader.cold_pages.tick()
            reader.searcher.cache.drop_old()
            if stop.wait(BEAT_S):
                break
            if count % 20 == 0:
                returner.tick()
        reader.stop(reader.grace_s)
    access_lines.stop()
    return 0


def _messages() -> Iterator[dict[str, Any]]:
    """What the node says, until it is gone. Unbuffered: a buffer has a lock, and the end of
    the process would wait for the thread that reads."""
    lines = Lines()
    while data := os.read(0, 1 << 16):
        yield from lines.feed(data)


def _listen(reader: Reader, messages: Iterator[dict[str, Any]], stop: threading.Event) -> None:
    for message in messages:
        if message["do"] == "stop":
            stop.set()
            continue
        try:
            reader.handle(message)
        except LinkBroken:
            break
        except Exception:
            log.exception("%s was not done", message["do"])
    os._exit(0)


def _ignore_signals(stop: threading.Event) -> None:
    """SIGTERM ends a reader in good order, to be replaced. Ctrl-C and SIGHUP are for the
    serving process, which tells its readers."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD)


def _die_with_parent() -> None:
    """Linux kills this process the moment the node is gone, so that nobody answers from a
    store that the next node may be about to replace; elsewhere the end of the input has to do."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _raise_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
