"""Gauges of a node: what it knows when it is scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(slots=True)
class NodeReadings:
    """What the node knows when it is scraped; None = not known here. Bytes and counts."""

    ready: bool | None = None
    degraded_level: int | None = None
    degraded_forced: bool | None = None
    write_queue: int | None = None
    write_queue_max: int | None = None
    memories: int | None = None
    partitions: int | None = None
    segments: int | None = None
    store_bytes: int | None = None
    store_max_bytes: int | None = None
    index_segment_bytes: int | None = None
    cold_segments: int | None = None
    cold_rows: int | None = None
    cold_bytes: int | None = None
    cold_resident_bytes: int | None = None
    cold_budget_bytes: int | None = None
    index_tail_bytes: int | None = None
    index_budget_bytes: int | None = None
    query_cache_bytes: int | None = None
    builder_running: int | None = None
    builder_waiting: int | None = None
    damaged_files: int | None = None
    disk_free_bytes: int | None = None
    log_position: int | None = None
    snapshot_time: float | None = None
    snapshot_interval: float | None = None
    snapshot_failing: int | None = None
    replica_lag_ms: int | None = None
    replica_lag_positions: int | None = None
    leads: int | None = None
    lease: int | None = None
    epoch: int | None = None
    followers: int | None = None
    follower_lag_positions: int | None = None
    rebuild_progress: float | None = None
    rebuild_segments_left: int | None = None
    graphs_outdated: int | None = None


_READINGS: Final = {
    "ready": ("memsvc_ready", "1 when the node takes calls"),
    "degraded_level": ("memsvc_degraded_level", "Degradation of the whole node, 0 to 4"),
    "degraded_forced": ("memsvc_degraded_forced", "1 when that level was set by hand"),
    "write_queue": ("memsvc_write_queue_items", "Items waiting to be written"),
    "write_queue_max": ("memsvc_write_queue_max_items", "Most items that may wait"),
    "memories": ("memsvc_memories", "Memories stored and not forgotten"),
    "partitions": ("memsvc_partitions", "Tenant/agent pairs"),
    "segments": ("memsvc_segments", "Sealed segments"),
    "store_bytes": ("memsvc_store_bytes", "Accounted bytes of records and vectors"),
    "store_max_bytes": ("memsvc_store_max_bytes", "storage.max_bytes, 0 = unlimited"),
    "index_segment_bytes": ("memsvc_index_segment_bytes", "Bytes of mapped segment files"),
    "cold_segments": ("memsvc_cold_segments", "Sealed segments of the cold tier"),
    "cold_rows": ("memsvc_cold_rows", "Rows in cold segments, as of when these were built"),
    "cold_bytes": ("memsvc_cold_bytes", "Bytes of the files of cold segments"),
    "cold_resident_bytes": (
        "memsvc_cold_resident_bytes",
        "Of these, bytes in memory, of segments that are in use",
    ),
    "cold_budget_bytes": ("memsvc_cold_budget_bytes", "storage.cold_budget_bytes"),
    "index_tail_bytes": ("memsvc_index_tail_bytes", "Memory held by loaded tails"),
    "index_budget_bytes": ("memsvc_index_budget_bytes", "storage.tail_budget_bytes"),
    "query_cache_bytes": ("memsvc_query_cache_bytes", "Memory held by kept answers"),
    "builder_running": ("memsvc_builder_jobs_running", "Builder jobs that run"),
    "builder_waiting": ("memsvc_builder_jobs_waiting", "Builder jobs that wait"),
    "damaged_files": ("memsvc_damaged_files", "Segment files set aside as damaged"),
    "disk_free_bytes": ("memsvc_disk_free_bytes", "Free bytes on the disk of the data"),
    "log_position": ("memsvc_log_position", "Position of the last entry of the log"),
    "snapshot_time": (
        "memsvc_snapshot_last_timestamp_seconds",
        "When the newest snapshot was current, seconds since 1970; 0 = there is none",
    ),
    "snapshot_interval": (
        "memsvc_snapshot_interval_seconds",
        "storage.snapshot_interval_min in seconds, 0 = none on schedule",
    ),
    "snapshot_failing": (
        "memsvc_snapshot_failing",
        "1 while the last snapshot failed or the store of snapshots does not answer",
    ),
    "replica_lag_ms": ("memsvc_replica_lag_ms", "Milliseconds behind the primary"),
    "replica_lag_positions": ("memsvc_replica_lag_positions", "Log entries behind the primary"),
    "leads": ("memsvc_leads", "1 on the node that takes changes, 0 on one that follows another"),
    "lease": (
        "memsvc_lease",
        "0 while this primary hears of fewer replicas than replication.min_acks",
    ),
    "epoch": ("memsvc_epoch", "Epoch of the history; it rises with each promotion"),
    "followers": ("memsvc_followers", "Replicas whose streams are open"),
    "follower_lag_positions": (
        "memsvc_follower_lag_positions",
        "Log entries that the slowest of them has not acknowledged",
    ),
    "rebuild_progress": (
        "memsvc_rebuild_progress",
        "Share of the rebuild that runs, or of the last one, that is done, 0 to 1",
    ),
    "rebuild_segments_left": ("memsvc_rebuild_segments_left", "Segments still to be rebuilt"),
    "graphs_outdated": (
        "memsvc_graphs_outdated",
        "Segments whose graph was built with other settings than the present ones",
    ),
}
assert set(_READINGS) == {f.name for f in fields(NodeReadings)}


class NodeCollector(Collector):
    """The readings as gauges. ``read`` is called at each scrape, and must be quick."""

    def __init__(self) -> None:
        self.read: Callable[[], NodeReadings] = NodeReadings

    def collect(self) -> Iterator[Metric]:
        """A gauge for each reading that is known."""
        readings = self.read()
        for attribute, (name, text) in _READINGS.items():
            value = getattr(readings, attribute)
            if value is not None:
                yield GaugeMetricFamily(name, text, value=float(value))

    def describe(self) -> Iterable[Metric]:
        """All of them."""
        return [GaugeMetricFamily(name, text) for name, text in _READINGS.values()]
