"""Whether a graph finds what is there, before it is taken into service."""

from __future__ import annotations

import numpy as np

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
