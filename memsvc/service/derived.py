"""What the parts of a node take from the configuration, in the units they work in."""

from __future__ import annotations

from typing import Final

from memsvc.config import Settings
from memsvc.segments.columns import Indexed
from memsvc.service.acks import AckSettings
from memsvc.service.cores import readers_of
from memsvc.service.querying import CallSettings
from memsvc.service.rebuild import RebuildSettings
from memsvc.service.search.plan import CacheBounds, SearchSettings
from memsvc.service.segment_builds import IndexSettings
from memsvc.service.writing import WriteLimits
from memsvc.store.writer import LAZY_COMMIT_S

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000


def call_settings(settings: Settings) -> CallSettings:
    """What the calls go by."""
    days, limits = settings.lifecycle.default_ttl_days, settings.limits
    return CallSettings(
        write_limits=WriteLimits(
            default_ttl_ms=int(days * DAY_MS),
            max_elements=settings.index.max_elements,
            max_bytes=settings.storage.max_bytes,
            tenant_max_items=limits.tenant_max_items,
            tenant_max_bytes=limits.tenant_max_bytes,
        ),
        default_top_k=settings.query.default_top_k,
        max_top_k=settings.query.max_top_k,
        ef_search=settings.index.ef_search,
        min_score=settings.min_score,
    )


def ack_settings(settings: Settings) -> AckSettings:
    """Which replicas confirm writes."""
    own = settings.replication
    return AckSettings(own.min_acks, own.nodes, own.ack_timeout_ms / 1_000, own.lease_ms / 1_000)


def own_log_wait_s(settings: Settings) -> float:
    """How long a position may take to arrive on the node that writes the log."""
    return 2 * LAZY_COMMIT_S if settings.storage.wal_sync == "every_1000ms" else 0.0


def index_settings(settings: Settings) -> IndexSettings:
    """What segments are built by."""
    index = settings.index
    return IndexSettings(
        dtype=index.dtype,
        m=index.m,
        ef_construction=index.ef_construction,
        indexed=indexed(settings),
        seal_rows=settings.storage.seal_rows,
        build_share=index.build_share,
        cold_after_ms=settings.lifecycle.cold_archive_after_days * DAY_MS,
    )


def rebuild_settings(settings: Settings) -> RebuildSettings:
    """What a rebuild goes by."""
    return RebuildSettings(
        share=settings.index.rebuild_share,
        min_recall=settings.index.rebuild_min_recall,
        keep_ms=int(settings.storage.reclaim_after_min * 60_000),
        reserve_bytes=settings.storage.reserve_bytes,
    )


def indexed(settings: Settings) -> Indexed:
    """Which attributes get a column."""
    return Indexed(settings.index.attributes, settings.index.attribute_columns)


def tail_budget(settings: Settings) -> int:
    """Bytes of private memory that the views of one process may take."""
    return settings.storage.tail_budget_bytes // (readers_of(settings) + 1)


def cache_bounds(settings: Settings) -> CacheBounds | None:
    """What one process keeps of answers: its share, since each keeps those it has given."""
    query, processes = settings.query, readers_of(settings) + 1
    if not query.cache:
        return None
    return CacheBounds(
        query.cache_ms / 1_000,
        max(1, query.cache_entries // processes),
        query.cache_bytes // processes,
    )


def search_settings(settings: Settings) -> SearchSettings:
    """What the searcher goes by."""
    return SearchSettings(
        default_top_k=settings.query.default_top_k,
        ef_search=settings.index.ef_search,
        timeout_ms=settings.query.timeout_ms,
        half_life_ms=int(settings.lifecycle.decay_half_life_days * DAY_MS),
        max_answer_bytes=settings.server.max_message_bytes,
        cache=cache_bounds(settings),
    )
