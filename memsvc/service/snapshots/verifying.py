"""Checking a snapshot: every byte, the chain of the log, and whether the tables agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

from memsvc.domain.log import Action
from memsvc.domain.records import FLAG_CURRENT, FLAG_ERASED
from memsvc.domain.types import Status
from memsvc.service.snapshots.manifest import (
    DATABASE,
    SnapshotManifest,
    checksum_of,
    read_manifest,
)
from memsvc.store import keys
from memsvc.store.codec import UnknownFormat
from memsvc.store.frozen import frozen
from memsvc.store.keys import Partition
from memsvc.store.snapshot import Snapshot

_STEP = 20_000
"""Rows whose states are looked at together."""


@dataclass(slots=True)
class Verdict:
    """What was found: ``problems`` make the snapshot unfit; ``notes`` do not."""

    manifest: SnapshotManifest
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Whether it can be restored from."""
        return not self.problems


def verify(folder: Path, progress: Callable[[int], None] = lambda _bytes: None) -> Verdict:
    """Checks a snapshot folder; ``progress`` is told the bytes that were read.

    Raises FailedPrecondition when it is no snapshot or of an unknown format.
    """
    manifest = read_manifest(folder)
    verdict = Verdict(manifest)
    check_files(folder, verdict, progress)
    # A damaged database may crash whoever maps it.
    if not any(problem.startswith(f"{DATABASE}:") for problem in verdict.problems):
        with frozen(folder / "store") as snapshot:
            _check_database(snapshot, verdict)
    return verdict


def check_files(
    folder: Path, verdict: Verdict, progress: Callable[[int], None] = lambda _bytes: None
) -> None:
    """Compares sizes and checksums with the manifest."""
    if not any(file.path == DATABASE for file in verdict.manifest.files):
        verdict.problems.append(f"{DATABASE}: not in the list of files")
    for file in verdict.manifest.files:
        path = folder / file.path
        try:
            size = path.stat().st_size
            if size != file.bytes:
                verdict.problems.append(f"{file.path}: {size} bytes, {file.bytes} expected")
            elif checksum_of(path) != file.checksum:
                verdict.problems.append(f"{file.path}: the checksum differs")
        except OSError as error:
            verdict.problems.append(f"{file.path}: cannot be read ({error.strerror})")
        progress(file.bytes)
    if verdict.manifest.missing:
        verdict.notes.append(
            f"{len(verdict.manifest.missing)} segment files were damaged when it was taken; a "
            "restored node makes them again"
        )


def _check_database(snapshot: Snapshot, verdict: Verdict) -> None:
    manifest, problems = verdict.manifest, verdict.problems
    for name, found, expected in (
        ("store id", snapshot.store_id, manifest.store_id),
        ("epoch", snapshot.epoch, manifest.epoch),
        ("position", snapshot.position, manifest.position),
        ("digest", snapshot.digest.hex(), manifest.digest),
    ):
        if found != expected:
            problems.append(f"{name} is {found} in the database, {expected} in the manifest")
    dedup_keys = _check_log(snapshot, problems)
    listed = {file.path for file in manifest.files} | set(manifest.missing)
    for meta in snapshot.all_segments():
        names = [f"segments/{meta.partition:08x}/{meta.name}/{f.name}" for f in meta.files]
        problems += [f"{name}: not in the list of files" for name in names if name not in listed]
    _check_tables(snapshot, verdict, dedup_keys)


def _check_log(snapshot: Snapshot, problems: list[str]) -> int:
    """Computes the running digest over all headers anew; returns how many dedup keys were
    given."""
    digest = bytes(16)
    dedups: set[tuple[str, str, bytes]] = set()
    for position in range(1, snapshot.position + 1):
        try:
            found = snapshot.entry(position)
        except UnknownFormat as error:
            problems.append(f"log: {error}")
            break
        if found is None:
            problems.append(f"log: entry {position} is missing")
            break
        entry, data, stored = found
        digest = blake2b(digest + data, digest_size=16).digest()
        if digest != stored or entry.position != position:
            problems.append(f"log: the chain of digests breaks at position {position}")
            break
        dedups.update(
            (entry.tenant, entry.agent, effect.dedup_hash)
            for effect in entry.effects
            if effect.dedup_hash and effect.action is Action.PUT
        )
    else:
        if digest != snapshot.digest:
            problems.append("log: it ends with another digest than the database names")
        if snapshot.count("log") != snapshot.position:
            problems.append(f"log: {snapshot.count('log')} entries, {snapshot.position} expected")
    return len(dedups)


def _check_tables(snapshot: Snapshot, verdict: Verdict, dedup_keys: int) -> None:
    """Counts by different ways must agree: counters, states, ids, dedup keys, texts, vectors."""
    partitions = list(snapshot.partitions())
    kept = size = current = with_text = vectors = 0
    for partition in partitions:
        facts = _count(snapshot, partition)
        if facts.memories != partition.memories or facts.size != partition.size:
            verdict.problems.append(
                f"{partition.tenant}/{partition.agent}: {facts.memories} memories of {facts.size} "
                f"bytes found, {partition.memories} of {partition.size} counted"
            )
        kept, size = kept + facts.memories, size + facts.size
        current, with_text = current + facts.current, with_text + facts.with_text
        vectors += facts.vectors
    tables = {name: snapshot.count(name) for name in keys.TABLES}
    verdict.counts = {
        "memories": kept,
        "partitions": len(partitions),
        "rows": tables["states"],
        "vectors": tables["vectors"],
        "segments": tables["manifest"],
        "log entries": tables["log"],
    }
    for what, found, expected in (
        ("memories", kept, snapshot.memories),
        ("accounted bytes", size, snapshot.accounted_bytes),
        ("ids", tables["ids"], current),
        ("states", tables["states"], tables["ids"] + tables["versions"]),
        ("texts", tables["texts"], with_text),
        ("vectors", tables["vectors"], vectors),
        ("dedup keys", tables["dedup"], dedup_keys),
        ("partition names", tables["names"], tables["partitions"]),
        ("remembered requests", tables["requests"], tables["request_times"]),
    ):
        if found != expected:
            verdict.problems.append(f"{what}: {found} found, {expected} expected")


@dataclass(slots=True)
class _Counted:
    memories: int = 0
    size: int = 0
    current: int = 0
    with_text: int = 0
    vectors: int = 0


def _count(snapshot: Snapshot, partition: Partition) -> _Counted:
    found = _Counted()
    generations = [generation.number for generation in snapshot.generations()]
    for low in range(1, partition.next_row, _STEP):
        high = min(low + _STEP, partition.next_row)
        rows, states = snapshot.state_range(partition.number, low, high)
        current = states["flags"] & FLAG_CURRENT != 0
        found.current += int(np.count_nonzero(current))
        found.memories += int(np.count_nonzero(current & (states["status"] != Status.FORGOTTEN)))
        found.size += int(states["size"].sum())
        with_text = rows[states["flags"] & FLAG_ERASED == 0]
        found.with_text += len(with_text)
        for generation in generations:
            given = snapshot.vector_range(generation, partition.number, low, high)
            # Of rows that have a text; any other is one too many.
            found.vectors += int(np.isin([row for row, _ in given], with_text).sum())
    return found
