"""What a restore begins with and what it reads: snapshots, logs, and the point that is wished."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from memsvc.domain.errors import FailedPrecondition
from memsvc.service.snapshots.copying import checked, damaged
from memsvc.service.snapshots.folders import write_durably
from memsvc.service.snapshots.logs import Erased, digest_at, position_at, time_of
from memsvc.service.snapshots.manifest import DATABASE, MANIFEST_NAME
from memsvc.service.snapshots.places import Found, Place
from memsvc.store.env import directory_lock
from memsvc.store.frozen import frozen
from memsvc.store.snapshot import Snapshot


@dataclass(slots=True)
class FoundLog:
    """A log that was found; ``where`` is a snapshot or a data directory."""

    where: str
    log: Snapshot
    snapshot: Found | None


@dataclass(slots=True)
class Plan:
    """``main`` is the newest history; ``base`` the snapshot to begin with."""

    main: FoundLog
    base: FoundLog | None
    position: int
    logs: list[FoundLog]
    epoch: int


def find(source: Place, data_dir: Path | None, scratch: Path, stack: ExitStack) -> list[FoundLog]:
    """Opens every log there is, those of snapshots from the oldest on. Databases that are in an
    object store are fetched into ``scratch``."""
    logs = []
    for number, found in enumerate(source.snapshots(strict=True)):
        # A damaged database may crash whoever maps it. Leaving it out is not for us to decide:
        # it may be the one that says what was erased.
        file = next((file for file in found.manifest.files if file.path == DATABASE), None)
        if file is None:
            raise damaged(found.where, f"{DATABASE} is missing")
        folder = found.place.local(found)
        if folder is None:
            folder = scratch / str(number)
            (folder / "store").mkdir(parents=True, mode=0o700)
            write_durably(folder / DATABASE, checked(found, file), 0o400)
        else:
            for _piece in checked(found, file):
                pass
        logs.append(FoundLog(found.where, stack.enter_context(frozen(folder / "store")), found))
    if data_dir is not None:
        if not (data_dir / DATABASE).is_file():
            raise FailedPrecondition(f"{data_dir} holds no store", reason="NO_STORE")
        stack.enter_context(directory_lock(data_dir))
        opened = stack.enter_context(frozen(data_dir / "store"))
        logs.append(FoundLog(str(data_dir), opened, None))
    if not logs:
        raise FailedPrecondition(
            f"no snapshot in {source}",
            reason="NO_SNAPSHOT",
            hint=f"name a folder with {MANIFEST_NAME}, or one that holds such folders",
        )
    if len({one.log.store_id for one in logs}) > 1:
        raise FailedPrecondition(
            f"{source} holds snapshots of different stores",
            reason="SEVERAL_STORES",
            hint="put those of one store into a folder of their own",
        )
    return logs


def make_plan(logs: list[FoundLog], position: int | None, at_ms: int | None, now_ms: int) -> Plan:
    """Chooses history, snapshot and position. Raises FailedPrecondition (NOT_RESTORABLE) for a
    point that no log has."""
    main = max(logs, key=lambda one: (one.log.epoch, one.log.position))
    # Two restores of one snapshot are two histories: the clock keeps their epochs apart.
    epoch = max(max(one.log.epoch for one in logs) + 1, now_ms)
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
        if one.snapshot is not None
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
    own = sorted(one.log.position for one in plan.logs if one.snapshot is not None)
    also = ", ".join(str(position) for position in own if position < first)
    return FailedPrecondition(
        f"{why}; what can be restored: positions {first} to {log.position}, of the times "
        f"{time_of(log, first)} to {time_of(log, log.position)}"
        + (f", and the snapshots at {also}" if also else ""),
        reason="NOT_RESTORABLE",
        hint="name a point between these, or snapshots or a data directory that hold others",
    )
