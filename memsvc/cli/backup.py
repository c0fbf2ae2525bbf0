"""memsvc backup, verify, restore: a store as files that can be carried away."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from memsvc.cli import options
from memsvc.cli.failures import Failure
from memsvc.cli.operate import utc
from memsvc.cli.output import clean, emit_json, size
from memsvc.domain.errors import MemsvcError
from memsvc.domain.wording import counted

_DIRECTORY = click.Path(path_type=Path)
_PLACE = "DIR|s3://BUCKET/PREFIX"


@contextmanager
def _told() -> Iterator[None]:
    """What the store refuses is told like what the service refuses."""
    try:
        yield
    except MemsvcError as error:
        raise Failure(f"{error.message} [{error.reason}]", hint=error.hint) from None


class _Bar:
    """A progress bar that changes its name and its end with what is done."""

    def __init__(self, unit: str = "B") -> None:
        self._unit = unit
        self._what = ""
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, what: str, more: int, of: int) -> None:
        if self._bar is None or what != self._what:
            self.__exit__()
            self._what = what
            unit = "B" if what in ("copying", "checking") else " entries"
            self._bar = tqdm(
                total=of or None, desc=what, unit=unit, unit_scale=True, disable=None, leave=False,
                file=sys.stderr,
            )  # fmt: skip
        self._bar.update(more)


@click.command()
@click.option("--to", "to", required=True, metavar=_PLACE, help="Put it here.")
@click.option(
    "--data-dir",
    type=_DIRECTORY,
    metavar="DIR",
    help="Of a node that does not run, instead of asking one that does.",
)
@options.json_option
@options.connection
def backup(target: options.Target, to: str, data_dir: Path | None, as_json: bool) -> None:
    """Back a store up into a new folder below DIR or an address, while it is used or stopped.

    A running node takes a snapshot into its storage.snapshot_dir, which is copied from there:
    run this on its machine, or where that folder is mounted. Needs the admin right for the whole
    node. What people ask to have forgotten later is still in a backup: see the manual.

    \b
    Examples:
      memsvc backup --to /mnt/backup
      memsvc backup --to s3://backups/memsvc?endpoint=https://store.example
      memsvc backup --to /mnt/backup --data-dir /var/lib/memsvc   # the node is stopped
    """
    from memsvc.service.snapshots.copying import copy_snapshot
    from memsvc.service.snapshots.manifest import name_of
    from memsvc.service.snapshots.places import place_of
    from memsvc.service.snapshots.taking import take
    from memsvc.store.store import Store

    with _told(), _Bar() as bar, ExitStack() as stack:
        place = place_of(to)
        if data_dir is not None:
            if not (data_dir / "store" / "data.mdb").is_file():
                raise Failure(f"{data_dir} holds no store")
            store = stack.enter_context(closing(Store(data_dir)))
            now = int(time.time() * 1_000)
            folder = place.workshop(name_of(now), data_dir)
            manifest = take(
                store, folder, now_ms=now, share=place.remote,
                progress=lambda more: bar("copying", more, 0),
            )  # fmt: skip
            made = place.adopt(folder.name, folder, manifest)
        else:
            with target.connect() as client:
                where = client.admin.take_snapshot(target.timeout or 3_600.0).path
            source = place_of(where).snapshots()
            if not source:
                raise Failure(
                    f"the node took the snapshot {where}, which is not seen from here",
                    hint="run memsvc backup on the machine of the node, as one who may read "
                    "the folder",
                )
            (found,) = source
            made = copy_snapshot(
                found, place, name_of(found.manifest.time),
                lambda more: bar("copying", more, found.manifest.size),
            )  # fmt: skip
    manifest = made.manifest
    if as_json:
        emit_json(
            {"path": made.where, "position": manifest.position, "epoch": manifest.epoch,
             "time": manifest.time, "bytes": manifest.size, "store_id": manifest.store_id}
        )  # fmt: skip
        return
    click.echo(f"{made.where}: {size(manifest.size)}, position {manifest.position}")


@click.command()
@click.argument("where", metavar=_PLACE)
@options.json_option
def verify(where: str, as_json: bool) -> None:
    """Check a snapshot or backup, or every one in a place. Exit code 1 when one is not sound.

    Reads every byte against its checksum, computes the digests of the log anew, and counts
    records, ids, dedup keys and vectors by different ways.

    \b
    Example:
      memsvc verify /mnt/backup
    """
    from memsvc.service.snapshots.places import place_of
    from memsvc.service.snapshots.verifying import verify as check

    with _told(), _Bar() as bar:
        found = place_of(where).snapshots(strict=True)
        if not found:
            raise Failure(f"no snapshot in {where}", hint="name what memsvc backup made")
        total = sum(one.manifest.size for one in found)
        verdicts = [(one.where, check(one, lambda more: bar("checking", more, total)))
                    for one in found]  # fmt: skip
    if as_json:
        emit_json(
            [
                {"path": path, "sound": v.sound, "problems": v.problems, "notes": v.notes,
                 "position": v.manifest.position, "time": v.manifest.time, "counts": v.counts}
                for path, v in verdicts
            ]
        )  # fmt: skip
    for path, verdict in () if as_json else verdicts:
        manifest = verdict.manifest
        click.secho(
            f"{clean(path)}: {'sound' if verdict.sound else 'NOT SOUND'}",
            fg="green" if verdict.sound else "red",
        )
        click.echo(f"  position {manifest.position}, {utc(manifest.time)}, {size(manifest.size)}")
        if verdict.counts:
            click.echo("  " + ", ".join(f"{n:,} {what}" for what, n in verdict.counts.items()))
        for text in (*verdict.problems, *verdict.notes):
            click.echo(f"  {clean(text)}")
    if not all(verdict.sound for _, verdict in verdicts):
        click.get_current_context().exit(1)


@click.command()
@click.argument("source", metavar="FROM")
@click.option("--to", "to", type=_DIRECTORY, required=True, metavar="DIR", help="New data_dir.")
@click.option("--position", type=click.IntRange(min=1), help="As of this position of the log.")
@click.option("--at", "at_ms", type=options.time_ms, metavar="UTC_MS", help="As of this time.")
@click.option(
    "--log", "log_dir", type=_DIRECTORY, metavar="DIR",
    help="The data directory of the stopped node, for what came after the last snapshot.",
)  # fmt: skip
@options.json_option
def restore(
    source: str,
    to: Path,
    position: int | None,
    at_ms: int | None,
    log_dir: Path | None,
    as_json: bool,
) -> None:
    """Make a new data directory from a snapshot, or from a folder or address of several.

    Without --position or --at: the newest state. What was forgotten HARD, erased or dropped
    after its time since then is erased again, as far as the snapshots in FROM and --log tell.
    The restored store begins a new epoch: positions that clients hold of what is given up are
    answered with POSITION_LOST.

    \b
    Examples:
      memsvc restore /mnt/backup --to /var/lib/memsvc-new
      memsvc restore /mnt/backup --to ./then --at 1796040000000
      memsvc restore /mnt/backup --to ./all --log /var/lib/memsvc
      memsvc restore s3://backups/memsvc --to /var/lib/memsvc-new
    """
    from memsvc.service.snapshots.places import place_of
    from memsvc.service.snapshots.restoring import restore as make

    if position is not None and at_ms is not None:
        raise click.UsageError("give --position or --at, not both")
    with _told(), _Bar() as bar:
        done = make(
            place_of(source), to, now_ms=int(time.time() * 1_000), position=position, at_ms=at_ms,
            data_dir=log_dir, progress=bar,
        )  # fmt: skip
    if as_json:
        emit_json(
            {"path": str(to), "position": done.position, "time": done.time, "end": done.end,
             "epoch": done.epoch, "base": done.base,
             "replayed": done.replayed, "erased": done.erased, "memories": done.memories}
        )  # fmt: skip
        return
    click.echo(f"{to}: {counted(done.memories, 'memory')}, position {done.position}")
    click.echo(f"  as of {utc(done.time)}")
    begun = f"snapshot {done.base}" if done.base else "the log alone"
    click.echo(f"  from {clean(begun)} and {done.replayed:,} later entries")
    if done.erased:
        click.echo(f"  {done.erased:,} payloads that were erased since are erased again")
    click.echo(f"  epoch {done.epoch} begins after it; the log ends at {done.end}")
