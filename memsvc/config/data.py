"""Settings of what is kept: storage, index, life cycle."""

from pathlib import Path
from typing import Annotated, Literal

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator

from memsvc.config.fields import Section, key
from memsvc.config.object_url import is_object_url, parse_object_url
from memsvc.domain import limits

_MIB = 1024 * 1024


def _check_cron(text: str) -> str:
    if text:
        # The start date is irrelevant: only the expression is checked.
        from datetime import UTC, datetime

        try:
            CronSim(text, datetime(2000, 1, 1, tzinfo=UTC))
        except CronSimError as error:
            raise ValueError(f"not a cron expression: {error}") from None
    return text


def _check_snapshot_dir(text: str) -> str:
    if is_object_url(text):
        parse_object_url(text)
    return text


def _check_attributes(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(names) > limits.MAX_ATTRIBUTES:
        raise ValueError(f"at most {limits.MAX_ATTRIBUTES} attributes can have a column")
    if len(set(names)) != len(names):
        raise ValueError("a name is listed twice")
    for name in names:
        if not name.strip():
            raise ValueError("a name is empty")
        if len(name.encode()) > limits.MAX_ATTRIBUTE_NAME_BYTES:
            raise ValueError(f"{name!r} is over {limits.MAX_ATTRIBUTE_NAME_BYTES} bytes")
    return names


class Storage(Section):
    """Where memories are kept and for how long their history is."""

    data_dir: Path = key(
        Path("memsvc-data"),
        "Directory of everything the node stores; made when missing, used by one process at a "
        "time. A relative path starts at the working directory.",
        reload=False,
        expects="a path",
        strict=False,
    )
    wal_sync: Literal["always", "every_1000ms"] = key(
        "always",
        "always: a write is acknowledged when it is on disk. every_1000ms: it is acknowledged "
        "when it is applied, and put on disk each second, so a crash loses up to that second.",
        reload=False,
    )
    log_retention_days: int = key(
        7,
        "Age at which the payloads of log entries are dropped. Headers, which are the audit "
        "trail, stay. Files in surplus/, what a former primary alone had, are kept as long.",
        reload=True,
        unit="days",
        ge=1,
        le=3650,
    )
    max_bytes: int = key(
        0,
        "Accounted bytes of records and vectors past which a Write is refused with "
        "RESOURCE_EXHAUSTED; Forget still works. Segments and free pages of the database are "
        "not counted: the data directory is larger. 0: until the disk is full.",
        reload=True,
        unit="bytes",
        ge=0,
    )
    snapshot_dir: Annotated[str, AfterValidator(_check_snapshot_dir)] = key(
        "",
        "Directory of the snapshots of this node, best on another disk. Segment files are shared "
        "by hard links on the same file system, and copied to another. Or an S3-compatible "
        "store: s3://BUCKET/PREFIX?endpoint=URL&region=NAME, with credentials from the "
        "environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY); a database as large as that of "
        "the node is then made in storage.data_dir each time. A replica uses a folder in it "
        "that is named after the node. Empty: snapshots in storage.data_dir.",
        reload=True,
        expects="a path, an s3:// address, or empty",
    )
    snapshot_interval_min: int = key(
        30,
        "Time between snapshots; one is left out when nothing was written. 0: none are made by "
        "themselves.",
        reload=True,
        unit="minutes",
        ge=0,
        le=525_600,
    )
    snapshot_keep: int = key(
        3,
        "Snapshots kept; older ones are deleted, and so is one that holds what was erased "
        "nearly lifecycle.purge_within_hours ago.",
        reload=True,
        unit="snapshots",
        ge=1,
        le=1000,
    )
    write_queue_max: int = key(
        5000,
        "Items that may wait for the writer; past it a Write is answered RESOURCE_EXHAUSTED "
        "with a retry delay at once.",
        reload=True,
        unit="items",
        ge=1,
        le=1_000_000,
    )
    reserve_bytes: int = key(
        64 * _MIB,
        "Space kept back from Write so that Forget and the log still work on a full disk.",
        reload=True,
        unit="bytes",
        ge=0,
    )
    tail_budget_bytes: int = key(
        512 * _MIB,
        "Memory for the recent rows of partitions that are in use, searched exactly. The least "
        "recently used are dropped and read again when asked for.",
        reload=True,
        unit="bytes",
        ge=1 * _MIB,
    )
    cold_budget_bytes: int = key(
        256 * _MIB,
        "Memory that the files of cold segments may take (see lifecycle.cold_archive_after_days) "
        "in the page cache; what is over it is dropped within seconds. More: searches wait less "
        "often for the disk.",
        reload=True,
        unit="bytes",
        ge=0,
    )
    reclaim_after_min: float = key(
        5.0,
        "Time after which the files of a segment that a rebuild has replaced are removed; at most "
        "half of lifecycle.purge_within_hours. Erasure removes them at once.",
        reload=True,
        unit="minutes",
        ge=0,
        le=10_080,
    )
    seal_rows: int = key(
        5000,
        "Recent rows of a partition at which they are sealed: they join the last segment until it "
        "has six times as many, at most 32,000, and become one of their own then. A segment has a "
        "graph when 4,000 of its rows have a vector; below, search is exact. Larger values make "
        "writing cheaper and search slower.",
        reload=True,
        unit="rows",
        ge=1,
        le=1_000_000,
    )


class Index(Section):
    """The vector index."""

    type: Literal["hnsw"] = key("hnsw", "Kind of graph. Only hnsw exists.", reload=False)
    dimension: int = key(
        1536,
        "Numbers in a vector; that of the embedding model. A new store is made for it. Later it "
        "must be that of an embedding of the store, the default one at best, else the node does "
        "not start; `memsvc generation` adds another model and makes it the default.",
        reload=True,
        unit="numbers",
        ge=1,
        le=limits.MAX_DIMENSION,
    )
    metric: Literal["cosine"] = key(
        "cosine", "Similarity of two vectors. Only cosine exists.", reload=False
    )
    m: int = key(
        16,
        "Links of a row in the graph. More: better recall, more memory, slower building. "
        "Applies to "
        "segments built from then on; `memsvc rebuild start` builds the others anew.",
        reload=True,
        unit="links",
        ge=limits.MIN_M,
        le=limits.MAX_M,
    )
    ef_construction: int = key(
        200,
        "Candidates looked at when a row is linked. More: better recall, slower building. In a "
        "segment of fewer than 10,000 vectors, which is soon merged, at most 100. Applies to "
        "segments built from then on.",
        reload=True,
        unit="rows",
        ge=limits.MIN_EF_CONSTRUCTION,
        le=limits.MAX_EF_CONSTRUCTION,
    )
    ef_search: int = key(
        64,
        "Breadth of a search through a graph, whose candidates are all scored exactly; two to "
        "four times as much for queries found to be hard. A request may set its own. More: "
        "better recall, slower. `make bench` draws the curve.",
        reload=True,
        unit="rows",
        ge=1,
        le=limits.MAX_EF_SEARCH,
    )
    max_elements: int = key(
        0,
        "Memories that the node admits; past it a Write that would add one is refused. "
        "0: no limit.",
        reload=True,
        unit="memories",
        ge=0,
    )
    attributes: Annotated[tuple[str, ...], AfterValidator(_check_attributes)] = key(
        (),
        "Metadata attributes that get a column in any case, see attribute_columns.",
        reload=False,
        expects=f"a list of at most {limits.MAX_ATTRIBUTES} names",
        strict=False,
    )
    attribute_columns: int = key(
        64,
        "Attributes that get a column in one segment, which makes filters on them fast: those "
        "of attributes, then others in the order of their appearance. Filters on the rest are "
        "matched on the records one by one. A column takes 4 bytes a memory and its different "
        "values. Applies to segments built from then on.",
        reload=False,
        unit="attributes",
        ge=0,
        le=limits.MAX_ATTRIBUTE_COLUMNS,
    )
    build_share: float = key(
        0.3,
        "Share of the time that merging, which nobody waits for, may keep one core busy. More "
        "lets fewer segments stand beside each other while much is written, and takes more from "
        "the queries that run meanwhile. Tails, 16 or more segments of one agent, and what an "
        "operator asks for, are built without a pause.",
        reload=False,
        unit="share",
        gt=0.0,
        le=1.0,
    )
    rebuild_share: float = key(
        0.2,
        "Share of the time that a rebuild (`memsvc rebuild start`) may keep one core busy. More "
        "ends it sooner and takes more from the queries that run meanwhile. A value that is "
        "reloaded applies from the next segment on.",
        reload=True,
        unit="share",
        gt=0.0,
        le=1.0,
    )
    rebuild_min_recall: float = key(
        0.9,
        "Share of the true 10 nearest rows that the graph of a rebuilt segment must find, in 50 "
        "searches for rows of its own with ef_search 64 and exact scores. It must also not find "
        "0.02 less than the graph it replaces. Otherwise the segment stays as it is.",
        reload=True,
        unit="share",
        ge=0.0,
        le=1.0,
    )
    dtype: Literal["f32", "bf16", "f16", "i8"] = key(
        "i8",
        "Number format inside the graph; candidates are scored again with the full float32 "
        "vectors, so the similarity returned does not depend on it. i8 is scaled row by row: a "
        "quarter of the memory of f32, the fastest, and no neighbour lost after scoring again "
        "in our measurements. Applies to "
        "segments built from then on; `memsvc rebuild start` builds the others anew.",
        reload=True,
    )
    embedding: str = key(
        "",
        "Name of the embedding model that a new store is made for. Later it must be that of an "
        "embedding of the store, the default one at best, else the node does not start. Which one "
        "a request means when it names none is in the store (`memsvc generation make-default`). "
        "Empty: whichever has index.dimension.",
        reload=True,
    )


class Lifecycle(Section):
    """How memories age."""

    default_ttl_days: int = key(
        180,
        "Lifetime of a memory written without ttl_ms; then it expires. 0: it does not expire.",
        reload=True,
        unit="days",
        ge=0,
        le=36_500,
    )
    decay_half_life_days: float = key(
        45.0,
        "Time in which the importance of a memory that is not recalled halves; a recall starts "
        "it again. 0: importance does not decay.",
        reload=True,
        unit="days",
        ge=0,
        le=36_500,
    )
    compact_cron: Annotated[str, AfterValidator(_check_cron)] = key(
        "0 3 * * *",
        "When segments are compacted and memories change tiers: minute, hour, day, month, "
        "weekday, in UTC. Empty: only when asked for.",
        reload=True,
        expects="a cron expression of five fields, or empty",
    )
    cold_archive_after_days: int = key(
        120,
        "Time without a recall after which memories move to cold segments, which are not kept "
        "in memory: since they arrived, were last recalled, or were said again. They move when "
        "segments are compacted (lifecycle.compact_cron), and so does back what was recalled. "
        "0: none are cold, and those that are return.",
        reload=True,
        unit="days",
        ge=0,
        le=36_500,
    )
    purge_within_hours: float = key(
        24.0,
        "Time within which a forgotten memory has left every file: records, log, segments and "
        "snapshots. "
        "It is invisible at once in any case. Fractions are allowed: 0.5 is half an "
        "hour. The shorter, the more often segments and database are rewritten.",
        reload=True,
        unit="hours",
        gt=0,
        le=8760,
    )
