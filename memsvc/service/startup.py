"""Checks before a node serves: the settings fit the store, and the index works.

The index is tried on a scratch file, never in the log.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from memsvc.config import Settings
from memsvc.domain.errors import FailedPrecondition
from memsvc.domain.generations import configured, default_of, told
from memsvc.domain.log import Generation
from memsvc.domain.records import RowRecord, State
from memsvc.domain.types import Metadata
from memsvc.segments.build import BuildSpec, build_segment
from memsvc.segments.segment import Segment
from memsvc.segments.topk import unit
from memsvc.store import heads
from memsvc.text.index import invert

log = logging.getLogger(__name__)

_ROWS = 32


def check_generation(settings: Settings, serving: Sequence[Generation]) -> None:
    """Raises FailedPrecondition when the configuration means an embedding that the store has not.

    One that is not the default (any more) is told of, and does: a node that is started again
    right after the default was changed must come up.
    """
    index = settings.index
    if configured(serving, index.embedding, index.dimension) is not None:
        warn_of_generation(settings, serving)
        return
    default = default_of(serving)
    if not any(g.dimension == index.dimension for g in serving):
        raise FailedPrecondition(
            f"index.dimension: the store has vectors of {told(serving)}, the configuration says "
            f"{index.dimension}",
            reason="DIMENSION_MISMATCH",
            hint=f"set index.dimension to {default.dimension}; for vectors of another model add "
            "them beside these (memsvc generation create), or use another storage.data_dir",
        )
    raise FailedPrecondition(
        f"index.embedding: the store has vectors of {told(serving)}, the configuration says "
        f"{index.embedding!r} with {index.dimension} numbers",
        reason="EMBEDDING_MISMATCH",
        hint=f"vectors of different models cannot be compared: set index.embedding to "
        f"{default.embedding!r} and index.dimension to {default.dimension}; for vectors of another "
        "model add them beside these (memsvc generation create)",
    )


def warn_of_generation(settings: Settings, serving: Sequence[Generation]) -> None:
    """Tells when the configuration does not mean the default embedding."""
    index, default = settings.index, default_of(serving)
    found = configured(serving, index.embedding, index.dimension)
    if found is None or not found.is_default:
        log.warning(
            "index.embedding %r and index.dimension %d of the configuration are not those of the "
            "default embedding: set them to %r and %d",
            index.embedding,
            index.dimension,
            default.embedding,
            default.dimension,
        )


def check_index(settings: Settings) -> None:
    """Writes a fixed vector into a scratch segment and recalls it, through the graph and by
    an exact scan. Raises FailedPrecondition when it is not the best, at cosine 1."""
    index = settings.index
    rng = np.random.default_rng(32)
    vectors = rng.standard_normal((_ROWS, index.dimension), np.float32)
    head = heads.build_head("start-up check", "", Metadata())

    def rows() -> list[RowRecord]:
        state = State(bytes(16), 1, 1, 1, 0, 0, 0, 0, 0, 0, 0.5, 0, 0)
        return [
            RowRecord(i + 1, state._replace(id=i.to_bytes(16, "big")), head, "", {1: vector})
            for i, vector in enumerate(vectors)
        ]

    spec = BuildSpec(
        "check",
        0,
        1,
        _ROWS + 1,
        0,
        ((1, index.dimension),),
        index.dtype,
        index.m,
        index.ef_construction,
        graph_min_rows=1,
        scan_min_rows=1,
    )
    with tempfile.TemporaryDirectory(prefix="memsvc-check-") as folder:
        meta = build_segment(spec, iter(rows()), Path(folder), lambda _row: [], invert)
        segment = Segment.open(Path(folder), meta)
        graph, exact = segment.graph(1), segment.rows(1)
        query = unit(vectors[7])
        found = None
        if graph is not None and exact is not None:
            by_graph, _ = graph.search(query, 1, max(index.ef_search, _ROWS))
            by_scan, sims = exact.scan(query, None, 1)
            found = (int(by_graph[0]), int(by_scan[0]), round(float(sims[0]), 3))
    if found != (7, 7, 1.0):
        raise FailedPrecondition(
            f"start-up check: a vector written to a scratch index came back as {found}, "
            f"expected (7, 7, 1.0), with index.dtype {index.dtype}, index.metric "
            f"{index.metric}, index.dimension {index.dimension}",
            reason="INDEX_CHECK_FAILED",
            hint="the usearch library does not work as expected on this machine",
        )
