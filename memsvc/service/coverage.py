"""Counting how far the generations of a store are filled, and listing what is lacking.

Both read the records a few thousand rows at a time, with a snapshot each, so that a large store
neither keeps old pages nor holds up queries.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import numpy as np

from memsvc.domain.errors import invalid
from memsvc.domain.generations import Coverage, LackingMemory
from memsvc.domain.types import Status
from memsvc.store import heads
from memsvc.store.keys import Partition, name_key
from memsvc.store.snapshot import Snapshot
from memsvc.store.store import Store

STEP: Final = 4_096
"""Rows looked at in one snapshot: some 5 ms."""
PAUSE_S: Final = 0.002
"""Between two of them: counting takes the interpreter from queries."""
SCAN_MAX: Final = 20_000
"""Rows that one page is looked for in. A page may be empty, and another follow."""
PARTITION_COST: Final = 16
"""What looking at a partition counts among these, however few its rows are."""
PAGE_BYTES: Final = 1 << 20
"""Texts of a page, about: at least one memory is on it."""
_PARTITIONS_AT_ONCE: Final = 500


def coverage(
    store: Store, generations: Sequence[int], default: int, now_ms: int
) -> dict[int, Coverage]:
    """How far each of the generations (numbers) is filled. Expired memories do not count."""
    found = {number: Coverage() for number in generations}
    for partition in _partitions(store, b"", b""):
        for low in range(1, partition.next_row, STEP):
            high = min(low + STEP, partition.next_row)
            with store.read() as snapshot:
                rows = snapshot.living_rows(partition.number, low, high, now_ms)
                if not len(rows):
                    continue
                has = {
                    number: _with_vector(snapshot, number, partition.number, low, high, rows)
                    for number in {default, *generations}
                }
            for number in generations:
                found[number] = found[number].plus(
                    len(rows),
                    int(has[number].sum()),
                    int(has[default].sum()),
                    int((has[number] & has[default]).sum()),
                )
            if high - low == STEP:
                time.sleep(PAUSE_S)
    return found


def lacking(
    store: Store,
    generation: int,
    *,
    tenant: str,
    agent: str,
    page_size: int,
    page_token: str,
    now_ms: int,
) -> tuple[list[LackingMemory], str]:
    """A page of the memories without a vector of a generation, in order of tenant, agent and
    age of their text, and the token of the next page ("" = the end).

    A memory whose text is changed gets behind those that were looked at, so whoever reads all
    pages has seen every memory that was there at the first. Raises InvalidArgument for a token
    that is none.
    """
    start, first = _place(page_token)
    prefix = f"{tenant}\0{agent}".encode() if tenant else b""
    found: list[LackingMemory] = []
    looked = size = 0
    for partition in _partitions(store, start, prefix):
        if agent and partition.agent != agent:
            continue
        key = name_key(partition.tenant, partition.agent)
        low = first if key == start else 1
        looked += PARTITION_COST
        while low < partition.next_row:
            if looked >= SCAN_MAX or len(found) >= page_size or size >= PAGE_BYTES:
                return found, _token(key, low)
            high = min(low + STEP, partition.next_row)
            with store.read() as snapshot:
                rows = snapshot.living_rows(partition.number, low, high, now_ms)
                has = _with_vector(snapshot, generation, partition.number, low, high, rows)
                for row in rows[~has].tolist():
                    if len(found) >= page_size or size >= PAGE_BYTES:
                        return found, _token(key, row)
                    memory = _memory(snapshot, partition, row)
                    if memory is not None:
                        found.append(memory)
                        size += len(memory.content.encode()) + len(memory.summary.encode())
            looked += high - low
            low = high
    return found, ""


def _memory(snapshot: Snapshot, partition: Partition, row: int) -> LackingMemory | None:
    state, text = snapshot.state(partition.number, row), snapshot.text(partition.number, row)
    if state is None or text is None:
        return None
    head = heads.parse_head(text.head)
    return LackingMemory(
        partition.tenant,
        partition.agent,
        head.session,
        state.id,
        state.version,
        Status(state.status),
        head.summary,
        text.content,
    )


def _with_vector(
    snapshot: Snapshot, generation: int, partition: int, lo: int, hi: int, rows: np.ndarray
) -> np.ndarray:
    """Of each of the rows whether it has a vector, bool (n,)."""
    given = snapshot.rows_with_vector(generation, partition, lo, hi)
    return np.isin(rows, given, assume_unique=True)


def _partitions(store: Store, start: bytes, prefix: bytes) -> Iterator[Partition]:
    while True:
        with store.read() as snapshot:
            batch = list(islice(snapshot.partitions(start, prefix), _PARTITIONS_AT_ONCE))
        yield from batch
        if len(batch) < _PARTITIONS_AT_ONCE:
            return
        start = name_key(batch[-1].tenant, batch[-1].agent) + b"\0"


def _token(name: bytes, row: int) -> str:
    return f"{name.hex()}.{row:x}"


def _place(token: str) -> tuple[bytes, int]:
    """Where a page begins: name key of a partition, and row."""
    if not token:
        return b"", 1
    name, _, row = token.partition(".")
    try:
        return bytes.fromhex(name), max(1, int(row, 16))
    except ValueError:
        raise invalid("page_token", "not a token of ListLacking") from None
