"""Browsing by time: newest first, page by page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from memsvc.domain.hits import Hits
from memsvc.domain.types import QueryRequest
from memsvc.service.positions import format_page, parse_page
from memsvc.service.search.hydrate import Hydration, hydrate, unscored
from memsvc.service.search.parts import Part
from memsvc.service.search.scope import Reader, Scope
from memsvc.store.snapshot import Snapshot


def browse(
    parts: Sequence[Part],
    scopes: Sequence[Scope],
    reader: Reader,
    snapshot: Snapshot,
    how: Hydration,
    request: QueryRequest,
    top_k: int,
    check: Callable[[], object],
) -> tuple[Hits, str]:
    """One page, and the token of the next ("" at the end).

    The order is by time, newest first, then by row; the token names the last row of the page,
    so that what is written or changed meanwhile does not bring back what was seen.
    """
    pairs = list(zip(parts, scopes, strict=True))
    nothing = [np.empty(0, np.int64)]
    rows = np.concatenate([p.rows[s.mask] for p, s in pairs] or nothing)
    times = np.concatenate([p.mutable.ts[s.mask] for p, s in pairs] or nothing)
    identity = repr(
        (request.namespace.tenant, request.namespace.agent, request.filters, request.as_of)
    ).encode()
    if request.page_token:
        last_time, last_row = parse_page(request.page_token, identity)
        older = (times < last_time) | ((times == last_time) & (rows < last_row))
        rows, times = rows[older], times[older]
    check()
    judge = not all(scope.exact for scope in scopes)
    wanted = top_k + 1
    if not judge and len(rows) > 4 * wanted:
        # Only the newest need sorting; equal times at the edge all come along.
        edge = np.partition(times, len(times) - wanted)[len(times) - wanted]
        newest = times >= edge
        rows, times = rows[newest], times[newest]
    order = np.lexsort((-rows, -times))
    hits = hydrate(unscored(rows[order]), snapshot, reader, how, wanted, judge=judge)
    if len(hits) <= top_k:
        return hits, ""
    hits = hits.first(top_k)
    last_time, last_row = int(hits.states["ts"][-1]), int(hits.rows[-1])
    return hits, format_page(identity, last_time, last_row)
