"""What must hold in the tables of a store at any time."""

from __future__ import annotations

from collections import Counter

from memsvc.domain.records import FLAG_CURRENT, FLAG_ERASED, unpack_state
from memsvc.domain.types import Status
from memsvc.service.node import Node
from memsvc.store import keys
from memsvc.store.snapshot import Snapshot


def check_store(node: Node) -> None:
    """Counters agree with the rows they count, and indexes with what they point to."""
    with node.store.read() as snapshot:
        tenants: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for partition in snapshot.partitions():
            memories, active, size = _rows(snapshot, partition.number, partition.next_row)
            found = (partition.memories, partition.active, partition.size)
            assert found == (memories, active, size), f"{found}, counted {(memories, active, size)}"
            tenants[partition.tenant] += memories
            sizes[partition.tenant] += size
        for tenant, memories in tenants.items():
            assert snapshot.tenant(tenant) == (memories, sizes[tenant])
        assert snapshot.memories == tenants.total()
        assert snapshot.accounted_bytes == sizes.total()
        assert snapshot.segment_bytes == sum(s.size for s in snapshot.all_segments())


def _rows(snapshot: Snapshot, number: int, end: int) -> tuple[int, int, int]:
    memories = active = size = 0
    rows, _ = snapshot.state_range(number, 1, end)
    for row, packed in zip(rows.tolist(), snapshot.packed_states(number, rows), strict=True):
        assert packed is not None
        state = unpack_state(packed)
        text, vectors = snapshot.text(number, row), snapshot.vectors_of(number, row)
        assert (text is None) is bool(state.flags & FLAG_ERASED), f"row {row}: text and flags"
        if text is None:
            assert not vectors and state.size == 0, f"row {row} is erased, something is left"
        else:
            wanted = keys.accounted_bytes(text.head, text.content, vectors)
            assert state.size == wanted, f"row {row}: {state.size} bytes, counted {wanted}"
        size += state.size
        current = bool(state.flags & FLAG_CURRENT)
        assert current is (snapshot.locate(state.id) == (number, row)), f"row {row}: ids"
        memories += current and state.status != Status.FORGOTTEN
        active += current and state.status == Status.ACTIVE
    return memories, active, size
