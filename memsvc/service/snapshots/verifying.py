"""Checking a snapshot: every byte, the chain of the log, and whether the tables agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import xxhash

from memsvc.domain.log import Action
from memsvc.domain.records import FLAG_CURRENT, FLAG_ERASED
from memsvc.domain.types import Status
from memsvc.service.snapshots.manifest import DATABASE, SnapshotFile, SnapshotManifest
from memsvc.service.snapshots.places import Found
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


def verify(found: Found, progress: Callable[[int], None] = lambda _bytes: None) -> Verdict:
    """Checks a snapshot; ``progress`` is told the bytes that were read. The database of one that
    is in an object store is fetched to the folder for temporary files.

    Raises what places raise.
    """
    verdict = Verdict(found.manifest)
    with ExitStack() as stack:
        local = found.place.local(found)
        folder = local or Path(stack.enter_context(TemporaryDirectory(prefix="memsvc-verify-")))
        for file in found.manifest.files:
            pieces = found.read(file)
            if local is None and file.path == DATABASE:
                pieces = _kept(pieces, folder / DATABASE)
            _check_file(file, pieces, verdict)
            progress(file.bytes)
        if not any(file.path == DATABASE for file in found.manifest.files):
            verdict.problems.append(f"{DATABASE}: not in the list of files")
        if found.manifest.missing:
            verdict.notes.append(
                f"{len(found.manifest.missing)} segment files were damaged when it was taken; a "
                "restored node makes them again"
            )
        # A damaged database may crash whoever maps it.
        if not any(problem.startswith(f"{DATABASE}:") for problem in verdict.problems):
            with frozen(folder / "store") as snapshot:
                _check_database(snapshot, verdict)
    return verdict


def _check_file(file: SnapshotFile, pieces: Iterator[memoryview], verdict: Verdict) -> None:
    """Compares size and checksum with the manifest."""
    digest, size = xxhash.xxh3_128(), 0
    try:
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
    except OSError as error:
        why = error.strerror or "it is not there"
        verdict.problems.append(f"{file.path}: cannot be read ({why})")
        return
    if size != file.bytes:
        verdict.problems.append(f"{file.path}: {size} bytes, {file.bytes} expected")
    elif digest.hexdigest() != file.checksum:
        verdict.problems.append(f"{file.path}: the checksum differs")


def _kept(pieces: Iterator[memoryview], path: Path) -> Iterator[memoryview]:
    path.parent.mkdir()
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            yield piece


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
    generations = [generation.number for generation in snapshot.all_generations()]
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
