"""The readers of a node: started, kept informed, listened to, replaced, ended.

They belong to the serving process and not to the supervisor: they read its files, pass calls on
to it, and must end with it. Each has a thread here, which starts the process, listens to it and
starts the next one when it ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Final

from memsvc import children
from memsvc.config import Settings
from memsvc.domain.backoff import backoff_s
from memsvc.domain.manifest import SegmentMeta, segment_from_json
from memsvc.readers.child import STARTUP_S, Child, answered
from memsvc.readers.early import EarlyReaders
from memsvc.readers.place import MeetingPlace, SharedPort
from memsvc.segments.errors import Damage
from memsvc.service.listening import ListenError
from memsvc.service.metrics_sum import Sample, added, counts
from memsvc.service.node import Node
from memsvc.service.tokens import TokenStore

log = logging.getLogger("memsvc.readers")

TOLD_S: Final = 2.0
"""How long a change waits for all readers to have it. One that takes longer hangs, and will be
replaced by one that has it from the start."""
ROLE_TOLD_S: Final = 0.5
"""The same for a change of role, which other nodes wait for."""
SAMPLES_S: Final = 0.5
"""How long a scrape waits for fresh figures; those of the last second do otherwise."""
SETTLED_S: Final = 10.0
"""A reader that lived this long was well; the next one is started at once."""
BACKOFF_FIRST_S: Final = 0.5
BACKOFF_MAX_S: Final = 10.0
STOP_MARGIN_S: Final = 3.0
STANDING_S: Final = 0.05
"""How often is looked what answers are to be marked with. Readers know of a change that much
later; of a change of role they are told at once."""
STANDING_AGAIN_S: Final = 0.2
"""How often they are told where nothing has changed; well within the shortest lease."""


class Crew:
    """The readers of a node, those begun ``early`` and their successors. ``start`` once, ``stop``
    once. ``tokens`` are those the node asks for; None = it asks for none."""

    def __init__(
        self,
        node: Node,
        tokens: TokenStore | None,
        early: EarlyReaders,
        port: SharedPort,
        place: MeetingPlace,
    ) -> None:
        self._node = node
        self._tokens = tokens
        self._early = early
        self._port = port
        self._place = place
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._children: dict[int, Child] = {}
        self._gone: dict[tuple[str, str], Sample] = {}
        self._deaths = 0
        self._refusal = ""
        # What a reader is told at its start must not be older than what the others know.
        self._telling = threading.Lock()
        # A settle waits for a commit, which must not hold up what else a reader says.
        self._work = ThreadPoolExecutor(2, "memsvc-readers")
        self._threads = [
            threading.Thread(
                target=self._keep, args=(number,), name=f"memsvc-reader-{number}", daemon=True
            )
            for number in range(early.count)
        ]
        self._watch = threading.Thread(target=self._standings, name="memsvc-standing", daemon=True)

    @property
    def ready(self) -> int:
        """Readers that serve."""
        return sum(child.ready for child in list(self._children.values()))

    @property
    def port(self) -> int:
        """The port that they share."""
        return self._port.port

    def start(self, ending: Callable[[], bool]) -> None:
        """Starts all of them and waits until they serve, though not for ever, and not when the
        process is ``ending``: one that keeps ending is started again and again, as later. Raises
        ListenError when one says that it cannot."""
        node = self._node
        node.degradation.on_forced = self._forced
        node.views.on_expected = self._expected
        node.views.on_replaced = self._replaced
        node.leading.on_changed.append(self._role_changed)
        node.metrics.others = self.samples
        node.metrics.readers.set_function(lambda: self.ready)
        for thread in (*self._threads, self._watch):
            thread.start()
        until = time.monotonic() + STARTUP_S
        with self._changed:
            while self.ready < len(self._threads) and not self._refusal:
                if time.monotonic() > until or ending():
                    break
                self._changed.wait(1.0)
        if self._refusal:
            raise ListenError(f"a reader does not start: {self._refusal}")
        log.info("readers that serve port %d: %d", self._port.port, self.ready)

    def reload(self, settings: Settings) -> None:
        """Gives all readers new settings, and has them read the tokens again."""
        self._tell({"do": "settings", "settings": settings.model_dump_json()})

    def samples(self) -> list[Sample]:
        """What all readers have counted, those that are gone too."""
        children = list(self._children.values())
        asked = [child.ask({"do": "samples"}) for child in children if child.ready]
        answered(asked, SAMPLES_S)
        with self._changed:
            total = dict(self._gone)
            for child in self._children.values():
                added(total, child.samples)
        return list(total.values())

    def stop(self, grace_s: float) -> None:
        """Has every reader finish or refuse its calls; ends those that take longer."""
        self._stopping.set()
        until = time.monotonic() + grace_s + STOP_MARGIN_S
        self._send({"do": "stop"})
        for thread in self._threads:
            if thread.ident is None:
                continue
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                for child in list(self._children.values()):
                    child.kill()
                thread.join()
        if self._watch.ident is not None:
            self._watch.join()
        self._work.shutdown()
        self._port.close()
        self._place.close()

    # -- keeping one alive -------------------------------------------------------------

    def _keep(self, number: int) -> None:
        """Runs one reader after the other until the node stops. In a thread that lives as
        long: the system ends a process with the thread that started it."""
        failures = 0
        while not self._stopping.is_set():
            try:
                how, lived, cause = self._one(number)
            except Exception:
                log.exception("a reader could not be started")
                how, lived, cause = "not started", 0.0, ""
            if self._stopping.is_set():
                return
            if cause and not self._served():
                with self._changed:
                    self._refusal = cause
                    self._changed.notify_all()
                return
            self._deaths += 1
            self._node.metrics.reader_deaths.inc()
            failures = 0 if lived >= SETTLED_S else failures + 1
            # The first one is replaced at once.
            delay = backoff_s(failures - 1, BACKOFF_FIRST_S, BACKOFF_MAX_S) if failures > 1 else 0.0
            log.error("reader %d ended (%s); starting another in %g s", number, cause or how, delay)
            self._stopping.wait(delay)

    def _served(self) -> bool:
        return self._deaths > 0 or self.ready > 0

    def _one(self, number: int) -> tuple[str, float, str]:
        """One reader from its start to its end: how it ended, the seconds that it lived, and why
        it refused to start."""
        with self._telling:
            if self._stopping.is_set():
                return "", 0.0, ""
            child = Child(self._early.take(), self._told(), self._heard)
            self._children[number] = child
        try:
            code = child.run()
        except BaseException:
            child.kill()  # nobody listens to it any more
            raise
        finally:
            with self._changed:
                del self._children[number]
                added(self._gone, counts(child.samples))
                self._changed.notify_all()
        how = f"pid {child.pid}, {children.described(code)}"
        return how, time.monotonic() - child.started, child.refused

    def _told(self) -> dict[str, Any]:
        node = self._node
        return {
            "settings": node.settings.model_dump_json(),
            "readers": len(self._threads),
            "listen": self._port.listen,
            "writer": f"unix:{self._place.socket}",
            "limits": str(self._place.limits),
            "costs": asdict(node.costs),
            "forced": _forced(node),
            "standing": _standing(node),
            # The file may be broken by now, which changes nothing for who has read it before.
            "tokens": [e.model_dump_json() for e in self._tokens.entries] if self._tokens else [],
        }

    # -- telling them ------------------------------------------------------------------

    def _tell(self, message: dict[str, Any], seconds: float = TOLD_S) -> None:
        """All of them; waits for those that serve. One that is starting takes it before it
        serves."""
        with self._telling:
            asked = [(child.ready, child.ask(message)) for child in list(self._children.values())]
        answered([future for ready, future in asked if ready], seconds)

    def _forced(self) -> None:
        self._tell({"do": "force", "forced": _forced(self._node)})

    def _standings(self) -> None:
        """Tells of changes of standing, and of the same now and then: readers must know when this
        process no longer does. Who is started meanwhile was told at the start."""
        known, told = _standing(self._node), time.monotonic()
        while not self._stopping.wait(STANDING_S):
            found, now = _standing(self._node), time.monotonic()
            if found != known or now - told >= STANDING_AGAIN_S:
                known, told = found, now
                self._send({"do": "stand", "standing": found})

    def _role_changed(self) -> None:
        """They know before others act on it: a reader that still takes itself for the primary's
        would call a position of the next one lost."""
        self._tell({"do": "stand", "standing": _standing(self._node)}, ROLE_TOLD_S)

    def _expected(self, meta: SegmentMeta) -> None:
        """They prepare while this process does, and nobody waits for them: a query that comes
        too early does the rest."""
        self._send({"do": "expect", "segment": meta.to_json().decode()})

    def _replaced(self, partition: int, drop: bool) -> None:
        self._send({"do": "replaced", "partition": partition, "drop": drop})

    def _send(self, message: dict[str, Any]) -> None:
        """To all of them, without waiting for an answer."""
        with self._telling:
            for child in list(self._children.values()):
                child.send(message)

    # -- listening to them -------------------------------------------------------------

    def _heard(self, child: Child, message: dict[str, Any]) -> None:
        if "ready" in message:
            log.info("reader is up, pid %d", child.pid)
            with self._changed:
                self._changed.notify_all()
        elif "settle" in message:
            self._work.submit(self._settle, child, message["settle"])
        elif "damage" in message:
            self._work.submit(self._damaged, message)
        if message.get("unreadable"):
            self._node.checkup.read(sound=False)
        for tenant, agent, recalled in message.get("recalls", ()):
            self._node.recalls.merge(tenant, agent, recalled)

    def _settle(self, child: Child, number: int) -> None:
        try:
            self._node.writer.settle()
        except Exception as error:  # it stops just now; the reader waits as long as it may
            log.debug("not settled: %s", error)
        child.send({"do": "settled", "for": number})

    def _damaged(self, message: dict[str, Any]) -> None:
        meta = segment_from_json(message["damage"])
        reasons = dict(message["files"])
        damages = tuple(Damage(f, reasons[f.name]) for f in meta.files if f.name in reasons)
        try:
            self._node.maintenance.on_damage(meta, damages)
            # Whoever still has the file open must not go on with it.
            self._node.views.drop(meta.partition)
        except Exception:
            log.exception("damage of segment %s was not taken up", meta.name)


def _forced(node: Node) -> list[Any] | None:
    forced = node.degradation.by_hand
    return None if forced is None else [int(forced.level), forced.reason]


def _standing(node: Node) -> dict[str, Any]:
    mark = node.degradation.standing()
    return {"follows": node.leading.follows, "mark": [int(mark.level), mark.reason]}
