"""What must hold in the tables of a store at any time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

from memsvc.domain.manifest import COLD, HOT
from memsvc.domain.records import FLAG_CURRENT, FLAG_ERASED, unpack_state
from memsvc.domain.types import Status
from memsvc.segments.tiers import rows_of
from memsvc.service.node import Node
from memsvc.service.search.registry import partition_dir
from memsvc.store import keys
from memsvc.store.env import Env
from memsvc.store.feed import records
from memsvc.store.snapshot import Snapshot
from memsvc.store.write_txn import WriteTxn


def check_store(node: Node) -> None:
    """Counters agree with the rows they count, and indexes with what they point to."""
    # The files of a segment that is replaced meanwhile go before the snapshot that names it.
    assert node.maintenance.wait_idle(60)
    with node.store.read() as snapshot:
        tenants: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for partition in snapshot.partitions():
            memories, active, size = _rows(snapshot, partition.number, partition.next_row)
            found = (partition.memories, partition.active, partition.size)
            assert found == (memories, active, size), f"{found}, counted {(memories, active, size)}"
            _check_segments(node, snapshot, partition)
            tenants[partition.tenant] += memories
            sizes[partition.tenant] += size
        for tenant, memories in tenants.items():
            assert snapshot.tenant(tenant) == (memories, sizes[tenant])
        assert snapshot.memories == tenants.total()
        assert snapshot.accounted_bytes == sizes.total()
        assert snapshot.segment_bytes == sum(s.size for s in snapshot.all_segments())
        cold = [s for s in snapshot.all_segments() if s.tier == COLD]
        counted = (len(cold), sum(s.count for s in cold), sum(s.size for s in cold))
        assert snapshot.cold == counted


def _check_segments(node: Node, snapshot: Snapshot, partition: keys.Partition) -> None:
    """Every live row before the tail is in a file of some segment; those of one tier have none
    in common."""
    root = partition_dir(node.store.data_dir, partition.number)
    seen: dict[str, set[int]] = {HOT: set(), COLD: set()}
    for meta in snapshot.segments(partition.number):
        rows = rows_of(root, meta.name)
        assert rows is not None and len(rows) == meta.count
        assert not seen[meta.tier] & set(rows.tolist())
        seen[meta.tier] |= set(rows.tolist())
    live = snapshot.current_rows(partition.number, 1, partition.sealed_row)
    assert set(live.tolist()) <= seen[HOT] | seen[COLD]


def _rows(snapshot: Snapshot, number: int, end: int) -> tuple[int, int, int]:
    memories = active = size = 0
    rows, _ = snapshot.state_range(number, 1, end)
    for row, packed in zip(rows.tolist(), snapshot.packed_states(number, rows), strict=True):
        assert packed is not None
        state = unpack_state(packed)
        text, vectors = snapshot.text(number, row), snapshot.stored_vectors_of(number, row)
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


ALIKE = ("log", "names", "tenants", "ids", "versions", "states", "texts", "vectors", "dedup",
         "audit", "generations")  # fmt: skip
"""Tables that a replay must give to the byte."""
UPKEEP = ("requests", "request_times", "expiry", "expired", "replaced")
"""Tables from which upkeep drops, without an entry, what has served its purpose."""
COUNTERS = ("position", "time", "epoch", "digest", "memories", "bytes")


def check_replay(node: Node, folder: Path) -> None:
    """The log, applied to an empty store, gives the same tables."""
    copy = Env(folder, readonly=False)
    try:
        with copy.lmdb.begin(write=True) as txn:
            txn.put(b"epoch", keys.U64.pack(1), db=copy.tables["meta"])
        position = 0
        while True:
            with node.store.read() as snapshot:
                found = list(islice(records(snapshot, position), 200))
            if not found:
                break
            with copy.lmdb.begin(write=True) as txn:
                target = WriteTxn(copy, txn, 0)
                for record in found:
                    target.follow(record.entry, record.digest)
                target.flush()
            position = found[-1].entry.position
        ours, theirs = _tables(node.store.env), _tables(copy)
    finally:
        copy.close()
    for table in ALIKE:
        _same_table(table, ours[table], theirs[table])
    for table in UPKEEP:
        assert ours[table].items() <= theirs[table].items(), f"{table}: the replay lacks some"
    for name in COUNTERS:
        key = name.encode()
        assert ours["meta"].get(key) == theirs["meta"].get(key), f"counter {name}"
    assert len(ours["partitions"]) == len(theirs["partitions"])
    for number, packed in ours["partitions"].items():
        a = keys.unpack_partition(0, packed)
        b = keys.unpack_partition(0, theirs["partitions"][number])
        local = {"manifest": 0, "sealed_row": 1, "pruned": 0}
        assert replace(a, **local) == replace(b, **local), f"{a} is not {b}"


def _tables(env: Env) -> dict[str, dict[bytes, bytes]]:
    with env.lmdb.begin() as txn:
        return {name: dict(txn.cursor(db)) for name, db in env.tables.items()}


def _same_table(name: str, ours: dict[bytes, bytes], theirs: dict[bytes, bytes]) -> None:
    differing = [k.hex() for k in ours.keys() | theirs.keys() if ours.get(k) != theirs.get(k)]
    assert not differing, f"{name}: {len(differing)} rows differ, for example {differing[:3]}"
