"""The log as another database gets it: entries with the payloads that are still there.

An entry's payloads are stored once, with the rows. Which vectors a payload had when it was
written is told by its hash, since a row may have got late ones afterwards. Once vectors of a
dropped generation are erased, the hash of a payload that had one cannot be computed any more:
then all vectors that are left go with it, and the entries of the late ones among them find them
there already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

from memsvc.domain.log import Effect, Payload, Record
from memsvc.domain.replication import Standing
from memsvc.store import keys
from memsvc.store.snapshot import Snapshot


class PayloadMismatch(Exception):
    """A stored payload is not the one that the log tells of."""


def standing(snapshot: Snapshot) -> Standing:
    """Where the log of a store stands."""
    return Standing(snapshot.store_id, snapshot.epoch, snapshot.position, snapshot.digest)


def log_format(snapshot: Snapshot) -> int:
    """The lowest format that a follower has to know for the entries there are."""
    return max(2 if g.number > 1 else 1 for g in snapshot.all_generations())


def agrees(snapshot: Snapshot, other: Standing) -> bool:
    """Whether the log had another's digest at that position."""
    found = snapshot.entry(other.position)
    return found is not None and found[2] == other.digest


def records(snapshot: Snapshot, after: int) -> Iterator[Record]:
    """The entries behind a position, in order. Raises PayloadMismatch."""
    for position in range(after + 1, snapshot.position + 1):
        found = snapshot.entry(position)
        assert found is not None, position
        entry, data, digest = found
        partition = snapshot.partition(entry.tenant, entry.agent)
        if partition is not None:
            number = partition.number
            effects = (_with_payload(snapshot, number, effect) for effect in entry.effects)
            entry = replace(entry, effects=tuple(effects))
        yield Record(entry, data, digest)


def _with_payload(snapshot: Snapshot, partition: int, effect: Effect) -> Effect:
    """The effect with its payload, if it brought one that is still there."""
    if not effect.payload_hash:
        return effect
    text = snapshot.text(partition, effect.row)
    if text is None:
        return effect
    vectors = snapshot.stored_vectors_of(partition, effect.row)
    payload = Payload(text.head, text.content, text.salt, text.dedup_key, vectors)
    as_of = _as_of(payload, effect.payload_hash)
    if as_of is None and any(g.dropped for g in snapshot.all_generations()):
        as_of = payload
    if as_of is None:
        raise PayloadMismatch(f"row {effect.row} of partition {partition}")
    return effect._replace(payload=as_of)


def _as_of(payload: Payload, hashed: bytes) -> Payload | None:
    """The payload with only the vectors it had at its entry. Those that came later have
    entries of their own; stored twice they would be counted twice. None when it never was."""
    vectors = payload.vectors
    for count in range(len(vectors), -1, -1):
        for numbers in combinations(vectors, count):
            some = {number: vectors[number] for number in numbers}
            if keys.payload_hash(payload.salt, payload.head, payload.content, some) == hashed:
                return payload._replace(vectors=some)
    return None
