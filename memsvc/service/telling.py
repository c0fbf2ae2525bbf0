"""What a node tells of itself: Health for callers, readings for Prometheus."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from memsvc.domain.errors import StoreUnreadable
from memsvc.domain.types import HealthAnswer, Load
from memsvc.service.certificates import days_left
from memsvc.service.readings import NodeReadings
from memsvc.service.stored import Stored, stored
from memsvc.version import __version__

if TYPE_CHECKING:
    from memsvc.service.node import Node


class Telling:
    """Looks at the parts of a node. Keeps what the store said when it could last be read."""

    def __init__(self, node: Node) -> None:
        """Raises StoreUnreadable."""
        self._node = node
        self._seen = self._look()

    def health(self) -> HealthAnswer:
        """How the node is. Never raises; waits for nothing but the database file to be replaced."""
        node = self._node
        reasons = [] if node.ready else ["stopping"]
        if node.displaced:
            reasons.append("the data directory is no longer there: changes are refused")
        if node.reserve.full:
            reasons.append("the disk is full: writes are refused")
        if node.erasures.overdue:
            reasons.append(node.erasures.overdue)
        if node.snapshots.trouble:
            reasons.append(node.snapshots.trouble)
        primary = node.leading.primary()
        reasons += node.leading.troubles
        until = node.certificate_until()
        if until and (soon := days_left(until, node.clock())):
            reasons.append(soon)
        if node.checkup.stalled:
            reasons.append("the disk of the data directory does not answer: changes are refused")
        try:
            self._seen = self._look()
        except StoreUnreadable as error:
            node.checkup.read(sound=False)
            reasons.append(error.message)
        facts = replace(
            self._seen.facts,
            damaged_files=node.maintenance.damaged_files,
            cold_resident_bytes=node.cold_pages.resident,
        )
        takes_calls = node.ready and not node.displaced
        return HealthAnswer(
            ready=takes_calls and not node.leading.skewed,
            takes_calls=takes_calls,
            role=self._role(),
            position=self._seen.text,
            degraded=node.degradation.current,
            load=Load(
                node.writer.queued, node.settings.storage.write_queue_max, node.memory.active_calls
            ),
            store=facts,
            version=__version__,
            store_id=node.store.store_id,
            reasons=tuple(reasons),
            lag_positions=primary.lag_positions,
            lag_ms=primary.lag_ms,
            epoch=self._seen.epoch,
        )

    def readings(self) -> NodeReadings:
        """What Prometheus is told."""
        node = self._node
        health, rebuild = self.health(), node.rebuilds.facts()
        return NodeReadings(
            ready=health.ready,
            degraded_level=int(health.degraded.level),
            degraded_forced=node.degradation.forced,
            write_queue=health.load.write_queue,
            write_queue_max=health.load.write_queue_max,
            memories=health.store.memories,
            partitions=health.store.partitions,
            segments=health.store.segments,
            store_bytes=health.store.bytes,
            store_max_bytes=health.store.max_bytes,
            index_segment_bytes=health.store.segment_bytes,
            cold_segments=health.store.cold_segments,
            cold_rows=health.store.cold_rows,
            cold_bytes=health.store.cold_bytes,
            cold_resident_bytes=health.store.cold_resident_bytes,
            cold_budget_bytes=node.cold_pages.budget,
            index_tail_bytes=node.views.nbytes,
            index_budget_bytes=node.settings.storage.tail_budget_bytes,
            query_cache_bytes=node.searcher.cache.nbytes,
            builder_running=node.maintenance.running,
            builder_waiting=node.maintenance.waiting,
            damaged_files=health.store.damaged_files,
            disk_free_bytes=shutil.disk_usage(node.store.data_dir).free,
            log_position=self._seen.position,
            rebuild_progress=rebuild.progress.share,
            rebuild_segments_left=rebuild.progress.segments_left if rebuild.running else 0,
            graphs_outdated=rebuild.survey.to_rebuild,
            snapshot_time=node.snapshots.last_time / 1_000,
            snapshot_interval=node.snapshots.settings.interval_ms / 1_000,
            snapshot_failing=int(bool(node.snapshots.trouble)),
            replica_lag_ms=health.lag_ms if node.leading.follows else None,
            replica_lag_positions=health.lag_positions if node.leading.follows else None,
            leads=None if health.role == "standalone" else int(not node.leading.follows),
            lease=int(node.feed.acks.lease),
            epoch=health.epoch,
            followers=len(node.feed.acks.followers),
            follower_lag_positions=node.feed.behind,
        )

    def _role(self) -> str:
        node = self._node
        if node.settings.node.role == "standalone":
            return "standalone"
        return "replica" if node.leading.follows else "primary"

    def _look(self) -> Stored:
        node, settings = self._node, self._node.settings
        with node.store.read() as snapshot:
            return stored(
                snapshot,
                node.generations.serving,
                settings.index.dtype,
                settings.storage.max_bytes,
            )
