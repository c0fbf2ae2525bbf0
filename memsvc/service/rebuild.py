"""Rebuilding segments with the present settings, beside the ones that serve.

One rebuild at a time, on a thread and a builder process of its own: it takes long, and
sealing, merging and erasure must not wait for it. See DESIGN.md.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from memsvc.domain.errors import FailedPrecondition, ResourceExhausted, Unavailable
from memsvc.domain.manifest import SegmentMeta
from memsvc.domain.merging import Job
from memsvc.domain.rebuild import (
    Plan,
    Progress,
    RebuildState,
    Step,
    StepState,
    outcome,
    progress_of,
    unfit,
)
from memsvc.domain.wording import counted
from memsvc.service import rebuild_plan
from memsvc.service.builder import Builder, BuilderFailed
from memsvc.service.rebuild_plan import PLAN, Steps, Survey, by_key, step_name
from memsvc.service.search.registry import partition_dir
from memsvc.service.segment_builds import SegmentBuilds
from memsvc.store.store import Store

log = logging.getLogger(__name__)

RETRY_S: Final = 5.0
"""Pause after a builder failed."""
TRIES: Final = 3
"""So often a segment is begun until it counts as failed."""
SURVEY_EVERY_S: Final = 60.0
"""How often outdated graphs are counted again, while there are any."""
WAIT_S: Final = 2.0
"""How long a call waits for a compaction of the database file."""


@dataclass(frozen=True, slots=True)
class RebuildSettings:
    """``share`` of the time that a builder is busy; ``min_recall`` that a new graph must have;
    ``keep_ms`` for which replaced files stay; ``reserve_bytes`` of the disk not to be used."""

    share: float = 0.2
    min_recall: float = 0.9
    keep_ms: int = 300_000
    reserve_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RebuildFacts:
    """A rebuild and how far it is; ``plan`` None when there was none yet. ``needed_bytes`` is
    known when it is begun, ``survey`` as of the last count."""

    plan: Plan | None
    progress: Progress
    survey: Survey
    needed_bytes: int = 0

    @property
    def running(self) -> bool:
        """Whether it is being carried out."""
        return self.plan is not None and self.plan.state is RebuildState.RUNNING


class Rebuilds:
    """The rebuild of a node. ``clock`` gives UTC ms; ``purge_delay_ms()`` is how long erased
    rows may stay in files; ``on_built`` is told of each segment whether it went well."""

    def __init__(
        self,
        store: Store,
        builds: SegmentBuilds,
        builder: Builder,
        settings: RebuildSettings,
        *,
        clock: Callable[[], int],
        purge_delay_ms: Callable[[], int],
        on_built: Callable[[bool], None] = lambda _ok: None,
    ) -> None:
        self._store = store
        self._builds = builds
        self._builder = builder
        self.settings = settings
        self._clock = clock
        self._purge_delay_ms = purge_delay_ms
        self._on_built = on_built
        self._lock = threading.RLock()
        self._plan: Plan | None = None
        self._steps: Steps = {}
        self._share = 0.0
        self._survey = Survey()
        self._count_wanted = self._tell_wanted = True
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memsvc-rebuild", daemon=True)

    def begin(self) -> None:
        """Goes on with what a stop or crash cut off."""
        self._plan, self._steps = rebuild_plan.load(self._store)
        if self._running:
            self._builds.hold(True)
            log.info("rebuild: goes on with what was begun before the start")
        self._wake.set()
        self._thread.start()

    def stop(self) -> None:
        """Ends at once; the next start goes on."""
        self._stopping.set()
        self._wake.set()
        self._builder.stop()
        if self._thread.is_alive():
            self._thread.join()

    # -- calls -------------------------------------------------------------------------

    def start(
        self, tenant: str = "", agent: str = "", everything: bool = False, *, only_tell: bool
    ) -> RebuildFacts:
        """Writes the plan down and begins; ``only_tell`` what would be done. Raises
        FailedPrecondition while another runs, ResourceExhausted when the disk would not hold
        old and new files, Unavailable while the database file is compacted."""
        with self._lock:
            try:
                return self._start(tenant, agent, everything, only_tell)
            finally:
                self._builds.hold(self._running)

    def _start(self, tenant: str, agent: str, everything: bool, only_tell: bool) -> RebuildFacts:
        if self._running and not only_tell:
            raise FailedPrecondition(
                "a rebuild is running",
                reason="REBUILD_RUNNING",
                hint="wait for its end (memsvc rebuild status --wait), or cancel it",
            )
        graph = self._builds.settings.graph
        if not only_tell:
            self._builds.hold(True)
        metas = rebuild_plan.to_rebuild(self._store, graph, tenant, agent, everything)
        needed = rebuild_plan.bytes_needed(self._builds, self._store, metas)
        steps = by_key(Step(m.partition, m.name, m.count) for m in metas)
        now = self._clock()
        plan = Plan(f"{now:x}", now, graph, tenant, agent, everything)
        if only_tell:
            plan = replace(plan, id="")
            return RebuildFacts(plan, progress_of(steps.values()), self._survey, needed)
        self._check_room(needed)
        records = rebuild_plan.records(plan, steps.values(), self._steps.values())
        self._builds.write_down(records, WAIT_S)
        self._plan, self._steps, self._share = plan, steps, 0.0
        log.info("rebuild: %d segments, about %d bytes", len(steps), needed)
        self._wake.set()
        return replace(self.facts(), needed_bytes=needed)

    def cancel(self) -> RebuildFacts:
        """Ends it: segments that were replaced stay so, the others stay as they are. Raises
        FailedPrecondition when none is running, Unavailable while the database file is
        compacted."""
        with self._lock:
            plan = self._plan
            if plan is None or not self._running:
                raise FailedPrecondition(
                    "no rebuild is running",
                    reason="NO_REBUILD",
                    hint="see memsvc rebuild status",
                )
            self._end(plan, RebuildState.CANCELLED)
        self._builder.break_off()
        return self.facts()

    def facts(self) -> RebuildFacts:
        """The rebuild that runs, or the last one."""
        with self._lock:
            share = self._share if self._running else 0.0
            return RebuildFacts(self._plan, progress_of(self._steps.values(), share), self._survey)

    def try_graph(self, meta: SegmentMeta, generation: int) -> float | None:
        """The share of what is there that a graph finds, 0 to 1; None when it cannot be searched.
        Waits for the builder, so not to be called while a rebuild runs. Raises BuilderFailed."""
        found: float | None = self._builder.run(
            {
                "job": "recall",
                "root": str(partition_dir(self._store.data_dir, meta.partition)),
                "segment": json.loads(meta.to_json()),
                "generation": generation,
            },
            idle=True,
        )
        return found

    def settings_changed(self) -> None:
        """The settings of graphs may be others now: tells what is built with other ones."""
        self._count_wanted = self._tell_wanted = True
        self._wake.set()

    @property
    def survey(self) -> Survey:
        """The graphs there are, as of the last count."""
        return self._survey

    @property
    def _running(self) -> bool:
        return self._plan is not None and self._plan.state is RebuildState.RUNNING

    def _check_room(self, needed: int) -> None:
        free = shutil.disk_usage(self._store.data_dir).free - self.settings.reserve_bytes
        if free < needed:
            raise ResourceExhausted(
                f"the disk would not hold old and new files: {max(0, free)} bytes free, about "
                f"{needed} needed",
                reason="DISK_TOO_SMALL",
                hint="make room, or rebuild one tenant or agent at a time",
            )

    # -- carrying out ------------------------------------------------------------------

    def _run(self) -> None:
        pause: float | None = None
        while not self._stopping.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            try:
                self._carry_out()
                self._count()
                pause = SURVEY_EVERY_S if self._survey.to_rebuild else None
            except Unavailable:  # the database file is being compacted
                pause = RETRY_S
            except Exception:
                pause = RETRY_S
                if not self._stopping.is_set():
                    log.exception("rebuild failed; it is tried again in %g s", RETRY_S)

    def _count(self) -> None:
        """Counts outdated graphs, when there may be any, and tells of them when asked to."""
        if self._stopping.is_set() or not (self._count_wanted or self._survey.to_rebuild):
            return
        graph = self._builds.settings.graph
        self._count_wanted = False
        self._survey = found = rebuild_plan.survey(self._store, graph)
        tell, self._tell_wanted = self._tell_wanted, False
        if tell and found.to_rebuild and not self._running:
            log.warning(
                "%d of %d graphs were built with other settings than index.dtype %s, index.m %d, "
                "index.ef_construction %d (%d of them by a version that did not write them "
                "down); they serve as before: memsvc rebuild start builds them anew",
                found.to_rebuild,
                found.graphs,
                graph.dtype,
                graph.m,
                graph.ef_construction,
                found.unknown,
            )

    def _carry_out(self) -> None:
        while not self._stopping.is_set():
            with self._lock:
                plan = self._plan
                if plan is None or plan.state is not RebuildState.RUNNING:
                    return
                if plan.graph != self._builds.settings.graph:
                    plan = self._replan(plan)
                waiting = (s for s in self._steps.values() if s.state is StepState.WAITING)
                step = next(waiting, None)
                if step is None:
                    state = outcome(self._steps.values())
                    self._end(plan, state)
                    log.info("rebuild: %s", state.value.lower())
                    self._count_wanted = True
                    return
            self._share = 0.0
            self._carry_out_step(plan, step)

    def _replan(self, plan: Plan) -> Plan:
        """The settings are others than when it was begun: what was built before is outdated."""
        plan = replace(plan, graph=self._builds.settings.graph)
        metas = rebuild_plan.to_rebuild(
            self._store, plan.graph, plan.tenant, plan.agent, plan.everything
        )
        steps = by_key(Step(m.partition, m.name, m.count) for m in metas)
        records = rebuild_plan.records(plan, steps.values(), self._steps.values())
        self._builds.write_down(records, WAIT_S)
        self._plan, self._steps = plan, steps
        log.info("rebuild: the settings have changed; %d segments", len(steps))
        return plan

    def _end(self, plan: Plan, state: RebuildState) -> None:
        ended = replace(plan, state=state, ended=self._clock())
        self._builds.write_down({PLAN: ended.to_json()}, WAIT_S)
        self._plan = ended
        self._builds.hold(False)

    def _goes_on(self, plan: Plan) -> bool:
        return self._plan is plan and not self._stopping.is_set()

    def _carry_out_step(self, plan: Plan, step: Step) -> None:
        reason = ""
        for attempt in range(TRIES):
            if attempt and self._stopping.wait(RETRY_S):
                return
            try:
                after = self._rebuilt(plan, step)
            except (BuilderFailed, OSError) as error:
                if not self._goes_on(plan):
                    return
                reason = str(error)
                log.warning("rebuild of segment %s failed: %s", step.name, reason)
                self._on_built(False)
                continue
            if after is not None:
                self._ended(plan, after)
            return
        self._ended(plan, step.ended(StepState.FAILED, reason))

    def _ended(self, plan: Plan, step: Step) -> None:
        if step.state is not StepState.DONE and self._goes_on(plan):
            # Without the lock, since it may have to wait. (DONE comes with the swap.)
            self._builds.write_down({step_name(step): step.to_json()})
        with self._lock:
            if self._plan is not plan:
                return
            self._steps[step.partition, step.name] = step
            self._share = 0.0

    def _rebuilt(self, plan: Plan, step: Step) -> Step | None:
        """The step carried out; None when the rebuild was broken off, or it is to be looked at
        again. Raises BuilderFailed, OSError."""
        with self._store.read() as snapshot:
            metas = [m for m in snapshot.segments(step.partition) if m.name == step.name]
            generations = tuple((g.number, g.dimension) for g in snapshot.generations())
        if not metas:
            return step.ended(StepState.GONE)
        old = metas[0]
        began = time.monotonic()
        job = Job(old.row_lo, old.row_hi, (old.name,), "rebuild", calmly=True, tier=old.tier)
        spec = self._builds.spec(step.partition, job, generations, self.settings.share)
        new = self._builds.build(self._builder, spec, idle=True, progress=self._progressed)
        try:
            problem = self._problem(old, new, spec.others)
        except BuilderFailed:
            self._builds.discard(new)
            raise
        if problem or not self._goes_on(plan):
            self._builds.discard(new)
            with self._store.read() as snapshot:
                known = tuple((g.number, g.dimension) for g in snapshot.generations())
            if not problem or known != generations:
                return None
            log.error("rebuild of segment %s: not taken: %s", old.name, problem)
            self._on_built(False)
            return step.ended(StepState.FAILED, problem)
        done = step.ended(StepState.DONE)
        if not self._builds.swap(
            step.partition,
            job.replaces,
            new,
            relies=spec.others,
            keep_ms=min(self.settings.keep_ms, self._purge_delay_ms()),
            also=lambda txn: txn.keep(step_name(done), done.to_json()),
        ):
            return None
        self._on_built(True)
        log.info(
            "rebuild: segment %s of %s in place of %s after %.1f s",
            new.name,
            counted(new.count, "row"),
            old.name,
            time.monotonic() - began,
        )
        return done

    def _progressed(self, share: float) -> None:
        self._share = share

    def _problem(self, old: SegmentMeta, new: SegmentMeta, others: tuple[str, ...]) -> str:
        """Why the new segment must not be taken, "" when it may. ``others``: segments of the
        other tier, whose rows it may have or lack."""
        found = self._builder.run(
            {
                "job": "check",
                "root": str(partition_dir(self._store.data_dir, new.partition)),
                "old": json.loads(old.to_json()),
                "new": json.loads(new.to_json()),
                "others": others,
            },
            idle=True,
        )
        return unfit(found["problem"], found["recalls"], self.settings.min_recall)
