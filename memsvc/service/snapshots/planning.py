"""What a restore begins with and what it reads: snapshots, logs, and the point that is wished."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from memsvc.domain.errors import FailedPrecondition
from memsvc.service.snapshots.logs import Erased, digest_at, position_at, time_of
from memsvc.service.snapshots.manifest import (
    DATABASE,
    MANIFEST_NAME,
    SnapshotManifest,
    checksum_of,
    snapshots_in,
)
from memsvc.store.env import directory_lock
from memsvc.store.frozen import frozen
from memsvc.store.snapshot import Snapshot


@dataclass(slots=True)
class FoundLog:
    """A log that was found; ``path`` is a snapshot or a data directory."""

    path: Path
    log: Snapshot
    manifest: SnapshotManifest | None


@dataclass(slots=True)
class Plan:
    """``main`` is the newest history; ``base`` the snapshot to begin with."""

    main: FoundLog
    base: FoundLog | None
    position: int
    logs: list[FoundLog]
    epoch: int


def find(source: Path, data_dir: Path | None, stack: ExitStack) -> list[FoundLog]:
    """Opens every log there is, those of snapshots from the oldest on."""
    found = []
    for path, manifest in snapshots_in(source, strict=True):
        # A damaged database may crash whoever maps it. Leaving it out is not for us to decide:
        # it may be the one that says what was erased.
        stored = next((file for file in manifest.files if file.path == DATABASE), None)
        if not (path / DATABASE).is_file():
            raise damaged(path, f"{DATABASE} is missing")
        if stored is None or checksum_of(path / DATABASE) != stored.checksum:
            raise damaged(path, f"{DATABASE} differs from its checksum")
        found.append(FoundLog(path, stack.enter_context(frozen(path / "store")), manifest))
    if data_dir is not None:
        if not (data_dir / DATABASE).is_file():
            raise FailedPrecondition(f"{data_dir} holds no store", reason="NO_STORE")
        stack.enter_context(directory_lock(data_dir))
        found.append(FoundLog(data_dir, stack.enter_context(frozen(data_dir / "store")), None))
    if not found:
        raise FailedPrecondition(
            f"no snapshot in {source}",
            reason="NO_SNAPSHOT",
            hint=f"name a folder with {MANIFEST_NAME}, or one that holds such folders",
        )
    if len({one.log.store_id for one in found}) > 1:
        raise FailedPrecondition(
            f"{source} holds snapshots of different stores",
            reason="SEVERAL_STORES",
            hint="put those of one store into a folder of their own",
        )
    return found


def damaged(path: Path, why: str) -> FailedPrecondition:
    """The error for a snapshot that cannot be relied on."""
    return FailedPrecondition(
        f"the snapshot {path} is damaged: {why}",
        reason="SNAPSHOT_DAMAGED",
        hint="see memsvc verify; to restore from the others without it, move it away",
    )


def make_plan(logs: list[FoundLog], position: int | None, at_ms: int | None, now_ms: int) -> Plan:
    """Chooses history, snapshot and position. Raises FailedPrecondition (NOT_RESTORABLE) for a
    point that no log has."""
    main = max(logs, key=lambda one: (one.log.epoch, one.log.position))
    # Two restores of one snapshot are two histories: the clock keeps their epochs apart.
    epoch = max(max(one.log.epoch for one in logs) + 1, now_ms // 1_000)
    last = main.log.position
    wanted = last if position is None else position
    plan = Plan(main, None, wanted, logs, epoch)
    if at_ms is not None:
        plan.position = wanted = position_at(main.log, at_ms)
        if wanted == 0:
            raise not_restorable(f"nothing was written by the time {at_ms}", plan)
    if not min(1, last) <= wanted <= last:
        raise not_restorable(f"position {wanted} is not in any log that was found", plan)
    before = [
        one
        for one in logs
        if one.manifest is not None
        and one.log.position <= wanted
        and digest_at(main.log, one.log.position) == one.log.digest
    ]
    plan.base = max(before, key=lambda one: one.log.position, default=None)
    return plan


def not_restorable(why: str, plan: Plan, known: Erased | None = None) -> FailedPrecondition:
    """The error that tells which points can be restored. ``known`` is what the main log says
    was dropped, when it has been read."""
    log = plan.main.log
    if known is None:
        known = Erased()
        known.read(log, 0, lambda _entries: None)
    first = max((known.replaced_at.get(key, 0) for key in known.truncated), default=0) or 1
    own = sorted(one.log.position for one in plan.logs if one.manifest is not None)
    also = ", ".join(str(position) for position in own if position < first)
    return FailedPrecondition(
        f"{why}; what can be restored: positions {first} to {log.position}, of the times "
        f"{time_of(log, first)} to {time_of(log, log.position)}"
        + (f", and the snapshots at {also}" if also else ""),
        reason="NOT_RESTORABLE",
        hint="name a point between these, or snapshots or a data directory that hold others",
    )
