"""Changing the embedding model of a store while it serves: what people who run it may ask for.

Everything that is checked before a change is checked here; the changes themselves are entries of
the log (generations.py). See DESIGN.md.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from typing import Final

from memsvc.config import Settings
from memsvc.domain.errors import FailedPrecondition, ResourceExhausted, Unavailable, invalid
from memsvc.domain.generations import (
    Coverage,
    GenerationFacts,
    LackingMemory,
    NewGeneration,
    added,
    check_coverage,
    check_droppable,
    configured,
    eta_ms,
    named,
)
from memsvc.domain.log import Generation
from memsvc.domain.manifest import SegmentMeta
from memsvc.domain.types import Caller
from memsvc.service import coverage, generations
from memsvc.service.builder import BuilderFailed
from memsvc.service.dropped_files import DroppedFiles
from memsvc.service.generations import Generations
from memsvc.service.partition_jobs import CHANGES_MAX
from memsvc.service.rebuild import Rebuilds
from memsvc.service.segment_builds import SegmentBuilds
from memsvc.store import keys
from memsvc.store.store import Store
from memsvc.store.write_txn import WriteTxn
from memsvc.store.writer import Writer

log = logging.getLogger(__name__)

MAX_PAGE: Final = 1_000
DEFAULT_PAGE: Final = 200
ETA_OVER_MS: Final = 600_000
"""Time over which the speed of filling is taken."""
GRAPHS_TRIED: Final = 4
"""Graphs of a generation, the largest, that are tried before it becomes the default."""


class GenerationAdmin:
    """Implements api.GenerationApi on the parts of a node. ``guard`` raises where no changes are
    taken; ``settings()`` are those in force; ``changing`` is told inside the transaction of a
    change, ``confirm`` waits for replicas that are to have it."""

    def __init__(
        self,
        store: Store,
        writer: Writer,
        known: Generations,
        builds: SegmentBuilds,
        rebuilds: Rebuilds,
        dropped: DroppedFiles,
        *,
        settings: Callable[[], Settings],
        clock: Callable[[], int],
        guard: Callable[[], None],
        changing: Callable[[], None],
        confirm: Callable[[], None],
    ) -> None:
        self._store = store
        self._writer = writer
        self._known = known
        self._builds = builds
        self._rebuilds = rebuilds
        self._dropped = dropped
        self._settings = settings
        self._clock = clock
        self._guard = guard
        self._changing = changing
        self._confirm = confirm
        self._samples: dict[int, list[tuple[int, int]]] = {}

    # -- telling -----------------------------------------------------------------------

    def facts(self) -> list[GenerationFacts]:
        """All generations there ever were, by number."""
        with self._store.read() as snapshot:
            known = snapshot.all_generations()
            left = {
                g.number: snapshot.first_vectors(g.number, 1) is not None
                for g in known
                if g.dropped
            }
        counted = self._count([g for g in known if not g.dropped])
        return [
            GenerationFacts(g, erasing=left[g.number] or self._dropped.left(g.number))
            if g.dropped
            else GenerationFacts(g, counted[g.number], self._eta(g.number, counted[g.number]))
            for g in known
        ]

    def lacking(
        self, tenant: str, agent: str, embedding: str, page_size: int, page_token: str
    ) -> tuple[list[LackingMemory], str]:
        """A page of the memories without a vector of an embedding, and the token of the next."""
        if page_size > MAX_PAGE:
            raise invalid("page_size", f"1 to {MAX_PAGE}")
        if agent and not tenant:
            raise invalid("tenant", "required with agent")
        return coverage.lacking(
            self._store,
            named(embedding, self._known.serving).number,
            tenant=tenant,
            agent=agent,
            page_size=page_size or DEFAULT_PAGE,
            page_token=page_token,
            now_ms=self._clock(),
        )

    def _count(self, serving: list[Generation]) -> dict[int, Coverage]:
        default = next(g.number for g in serving if g.is_default)
        numbers = [g.number for g in serving]
        return coverage.coverage(self._store, numbers, default, self._clock())

    def _eta(self, number: int, counted: Coverage) -> int:
        now = self._clock()
        samples = [s for s in self._samples.get(number, []) if s[0] > now - ETA_OVER_MS]
        samples.append((now, counted.vectors))
        self._samples[number] = samples[-100:]
        return eta_ms(samples, counted.lacking)

    # -- changing ----------------------------------------------------------------------

    def create(self, caller: Caller, wish: NewGeneration, validate_only: bool) -> GenerationFacts:
        """Adds a generation beside those there are. Raises ResourceExhausted when the disk would
        not hold it filled."""
        self._guard()
        with self._store.read() as snapshot:
            made = added(snapshot.all_generations(), wish)[-1]
            memories, used = snapshot.memories, snapshot.accounted_bytes
        records = memories * keys.accounted_vector(4 * made.dimension)
        # Its files, and for a while those of a segment twice.
        files = self._builds.estimate(2 * memories, ((made.number, made.dimension),))
        needed = records + files
        self._check_room(needed, used + records)
        if validate_only:
            return GenerationFacts(made, needed_bytes=needed)
        made = self._change(generations.add(wish, caller.actor))
        log.info("embedding %r of %d numbers added", made.embedding, made.dimension)
        return GenerationFacts(made, self._count_one(made), needed_bytes=needed)

    def make_default(
        self,
        caller: Caller,
        embedding: str,
        min_coverage: float,
        force: bool,
        validate_only: bool,
    ) -> GenerationFacts:
        """Makes a generation the one that is meant when a call names none, when enough memories
        have a vector of it (``min_coverage``, 0 to 1) and its graphs find what is there; with
        ``force`` in any case. Nothing changes when it is the default already."""
        if not 0 <= min_coverage <= 1:
            raise invalid("min_coverage", "a number from 0 to 1")
        self._guard()
        wanted = _required(embedding, self._known)
        counted = self._count_one(wanted)
        if not wanted.is_default and not force:
            check_coverage(wanted, counted, min_coverage)
            self._check_built()
            self._check_graphs(wanted)
        if validate_only:
            return GenerationFacts(wanted, counted)
        made = self._change(generations.make_default(embedding, caller.actor))
        if not wanted.is_default:
            log.info("embedding %r is the default now", made.embedding)
        return GenerationFacts(made, counted)

    def drop(
        self, caller: Caller, embedding: str, confirm: str, validate_only: bool
    ) -> GenerationFacts:
        """Drops a generation, for good: its vectors answer nothing from here on, and are erased
        from records and files. ``confirm`` must repeat the name."""
        self._guard()
        found = _required(embedding, self._known)
        check_droppable(found, self._known.serving)
        self._check_configured(found)
        counted = self._count_one(found)
        if validate_only:
            return GenerationFacts(found, counted)
        if confirm != embedding:
            raise invalid("confirm", f"must repeat what is dropped: {embedding}")
        found = self._change(generations.drop(embedding, caller.actor))
        self._samples.pop(found.number, None)
        log.info("embedding %r was dropped", found.embedding)
        return GenerationFacts(found, counted, erasing=True)

    def _change(self, decide: Callable[[WriteTxn], Generation]) -> Generation:
        def run(txn: WriteTxn) -> Generation:
            found = decide(txn)
            self._changing()
            return found

        found = self._writer.run(run)
        # A lazy writer answers before it commits, and calls are to know it now.
        self._writer.settle()
        self._confirm()
        return found

    def _count_one(self, generation: Generation) -> Coverage:
        default = self._known.default.number
        found = coverage.coverage(self._store, [generation.number], default, self._clock())
        return found[generation.number]

    # -- checks ------------------------------------------------------------------------

    def _check_room(self, needed: int, accounted: int) -> None:
        storage = self._settings().storage
        free = max(0, shutil.disk_usage(self._store.data_dir).free - storage.reserve_bytes)
        if free < needed:
            raise ResourceExhausted(
                f"the disk would not hold vectors of both: {free} bytes free, about {needed} "
                "needed",
                reason="DISK_TOO_SMALL",
                hint="make room, or forget memories, before vectors are added",
            )
        if storage.max_bytes and accounted > storage.max_bytes:
            raise ResourceExhausted(
                f"storage.max_bytes is {storage.max_bytes}, vectors of both make it {accounted}",
                reason="STORE_FULL",
                hint="raise storage.max_bytes, or forget memories, before vectors are added",
            )

    def _check_built(self) -> None:
        """Late vectors that no segment has yet are searched one by one: too many are slow."""
        waiting = 0
        with self._store.read() as snapshot:
            oldest: dict[int, int] = {}
            for meta in snapshot.all_segments():
                at = oldest.get(meta.partition, meta.position)
                oldest[meta.partition] = min(at, meta.position)
            for partition, position in oldest.items():
                changes = snapshot.count_changes(partition, position, CHANGES_MAX + 1)
                waiting += changes > CHANGES_MAX
        if waiting:
            raise FailedPrecondition(
                f"segments of {waiting} agents are still to be built with the new vectors",
                reason="SEGMENTS_OUTDATED",
                hint="wait for maintenance (memsvc maintain), or go on with --force: queries are "
                "slower until then",
            )

    def _check_graphs(self, generation: Generation) -> None:
        if self._rebuilds.facts().running:
            raise FailedPrecondition(
                "a rebuild is running",
                reason="REBUILD_RUNNING",
                hint="wait for its end (memsvc rebuild status --wait), or cancel it",
            )
        with self._store.read() as snapshot:
            metas = [m for m in snapshot.all_segments() if m.file("graph", generation.number)]
        for meta in sorted(metas, key=lambda m: -m.count)[:GRAPHS_TRIED]:
            self._check_graph(meta, generation)

    def _check_graph(self, meta: SegmentMeta, generation: Generation) -> None:
        try:
            found = self._rebuilds.try_graph(meta, generation.number)
        except BuilderFailed as error:
            raise Unavailable(
                f"segment {meta.name} could not be tried: {error}",
                reason="BUILDER_FAILED",
                hint="try again; the log of the node has the cause",
                retry_after_ms=5_000,
            ) from error
        least = self._rebuilds.settings.min_recall
        if found is None or found < least:
            told = "cannot be searched" if found is None else f"finds {found:.3f} of what is there"
            raise FailedPrecondition(
                f"the graph of segment {meta.name} {told}, index.rebuild_min_recall is {least:g}",
                reason="RECALL_TOO_LOW",
                hint="raise index.m or index.ef_construction and run memsvc rebuild start, or go "
                "on with --force",
            )

    def _check_configured(self, dropping: Generation) -> None:
        """A node whose configuration means what was dropped would not start again."""
        index = self._settings().index
        left = [g for g in self._known.serving if g.number != dropping.number]
        if configured(left, index.embedding, index.dimension) is None:
            default = self._known.default
            raise FailedPrecondition(
                f"index.dimension {index.dimension} of the configuration is that of "
                f"{dropping.embedding!r}: the node would not start again",
                reason="CONFIG_OUTDATED",
                hint=f"set index.dimension: {default.dimension} and index.embedding: "
                f"{default.embedding} in the configuration of every node, and reload",
            )


def _required(embedding: str, known: Generations) -> Generation:
    if not embedding:
        raise invalid("embedding", "is required")
    return known.named(embedding)
