"""Whether a segment holds and finds what is there, before it is taken into service."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memsvc.segments.segment import Segment


def graph_recall(
    segment: Segment, generation: int, samples: int = 20, k: int = 10, ef: int = 64
) -> float | None:
    """Share of the true ``k`` nearest rows that the graph finds, 0 to 1, over ``samples`` of
    the segment's own vectors, evenly spaced; None without a graph or rows. Raises
    SegmentDamaged. Takes a scan of the segment for each sample."""
    graph, rows = segment.graph(generation), segment.rows(generation)
    if graph is None or rows is None:
        return None
    present = rows.present
    local = np.arange(segment.count) if present is None else np.flatnonzero(present)
    local = local[np.linspace(0, len(local) - 1, min(samples, len(local))).astype(np.int64)]
    wanted = found = 0
    for query in rows.unit_vectors(local):
        candidates, _ = graph.search(query, max(4 * k, 40), ef)
        # By similarity, not by row: of equal rows it does not matter which are found.
        best = np.sort(rows.score(candidates, query))[::-1][:k]
        true = rows.scan(query, None, k)[1]
        wanted += len(true)
        found += int(np.count_nonzero(best >= true[-1]))
    return found / wanted if wanted else 1.0


def disagreement(
    old: Segment,
    new: Segment,
    live: NDArray[np.int64],
    elsewhere: Sequence[NDArray[np.int64]] = (),
) -> str:
    """How the rows of a segment differ from what they must be, "" when they do not: all of
    ``live`` (row numbers that the records have now), none that the ``old`` segment of the same
    range did not have, each with the vectors it had there. Rows ``elsewhere``, in segments of
    the other tier, may be missing or come from there."""
    if new.damaged:
        return f"{new.damaged[0].file.name} {new.damaged[0].reason}"
    rows, before = new.row_numbers, old.row_numbers
    if rows is None or len(rows) != new.count:
        return f"{0 if rows is None else len(rows)} row numbers for {new.count} rows"
    other = np.concatenate([np.empty(0, np.int64), *elsewhere])
    lacking = len(np.setdiff1d(live, np.concatenate((rows, other))))
    if lacking:
        return f"{lacking} of {len(live)} rows are missing"
    if before is None:
        return ""
    foreign = len(np.setdiff1d(rows, np.concatenate((before, other))))
    if foreign:
        return f"{foreign} of {len(rows)} rows were not in the segment it is to replace"
    for generation in sorted({f.generation for f in old.meta.files} - {0}):
        had = np.intersect1d(_with_vector(old, generation), rows, assume_unique=True)
        lacking = len(np.setdiff1d(had, _with_vector(new, generation), assume_unique=True))
        if lacking:
            return f"{lacking} of {len(had)} vectors of generation {generation} are missing"
        graph, vectors = new.graph(generation), len(_with_vector(new, generation))
        if graph is not None and graph.vectors != vectors:
            return f"the graph of generation {generation} has {graph.vectors} of {vectors} rows"
    return ""


def _with_vector(segment: Segment, generation: int) -> NDArray[np.int64]:
    """Row numbers of the rows that have a vector."""
    vectors, rows = segment.rows(generation), segment.row_numbers
    if vectors is None or rows is None:
        return np.empty(0, np.int64)
    return rows if vectors.present is None else rows[vectors.present]
