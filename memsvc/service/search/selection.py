"""Memories chosen without a search: by their ids, or everything that passes a filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from memsvc.domain.hits import Hits
from memsvc.domain.ids import parse_id
from memsvc.domain.records import unpack_state
from memsvc.service.search.hydrate import Hydration, hydrate, unscored
from memsvc.service.search.scope import Reader, scope_of
from memsvc.service.search.view import PartitionView
from memsvc.store import keys
from memsvc.store.snapshot import Snapshot

CHECKED_EVERY: Final = 64
"""Records read one by one between two looks at the time."""


def hits_by_id(
    ids: Sequence[str],
    partition: int,
    snapshot: Snapshot,
    reader: Reader,
    how: Hydration,
    check: Callable[[], object],
) -> Hits:
    """Those of some memories that belong to the partition and that the reader may see, in the
    order of the ids. ``check`` raises when the call should stop."""
    rows = []
    for number, text in enumerate(ids):
        if not number % CHECKED_EVERY:
            check()
        id_bytes = parse_id(text)
        place = snapshot.locate(id_bytes) if id_bytes else None
        if place is not None and place[0] == partition:
            rows.append(place[1])
    found = unscored(np.array(rows, np.int64))
    return hydrate(found, snapshot, reader, how, len(rows), judge=True)


def ids_matching(
    view: PartitionView, snapshot: Snapshot, reader: Reader, check: Callable[[], object]
) -> list[bytes]:
    """Ids of all rows that pass, judged on their records where columns cannot tell. ``check``
    raises when the call should stop."""
    found: list[bytes] = []
    for part in view.parts:
        check()
        scope = scope_of(part, reader, snapshot)
        rows = part.rows[scope.mask].tolist()
        states = snapshot.packed_states(view.partition.number, rows)
        if scope.exact:
            found.extend(data[:16] for data in states if data is not None)
            continue
        texts = snapshot.raw_texts(view.partition.number, rows)
        for number, (data, text) in enumerate(zip(states, texts, strict=True)):
            if not number % CHECKED_EVERY:
                check()
            if data is None or text is None:
                continue
            state = unpack_state(data)
            if reader.passes(keys.text_head(text), state):
                found.append(state.id)
    return found
