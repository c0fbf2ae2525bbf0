"""Commands for whoever runs a node: health, inspect, degrade, maintain, reload."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click
import yaml

from memsvc.cli import options
from memsvc.cli.failures import Failure
from memsvc.cli.output import clean, emit_json, size
from memsvc.client import ClientError, to_plain
from memsvc.domain.types import Namespace
from memsvc.domain.wording import counted
from memsvc.v1 import memory_service_pb2 as pb


@click.command()
@click.option(
    "--wait",
    type=options.duration,
    metavar="DURATION",
    default="0s",
    help="Wait so long until it is ready.",
)
@click.option(
    "--max-lag",
    type=options.duration,
    metavar="DURATION",
    help="A replica counts as ready only when it is no further behind its primary; 0s: level.",
)
@options.json_option
@options.connection
@click.pass_context
def health(
    ctx: click.Context, target: options.Target, wait: int, max_lag: int | None, as_json: bool
) -> None:
    """Tell how the service is. Exit code 0 ready, 1 not ready, 3 not reachable.

    A replica is ready as soon as it was level with its primary once; how far it is behind now
    needs a token. Before the next node of a group is stopped, wait for this one with --max-lag.

    \b
    Examples:
      memsvc health
      memsvc health --wait 30s --json
      memsvc health --wait 10m --max-lag 0s --address node-3:8848
    """
    answer = _health(target, max_lag, time.monotonic() + wait / 1000)
    near = _near(answer, max_lag)
    if as_json:
        emit_json({"ready": False, **to_plain(answer)})
    else:
        _show_health(answer, () if near else ("it is further behind than --max-lag",))
    ctx.exit(0 if answer.ready and near else 1)


def _near(answer: pb.HealthResponse, max_lag: int | None) -> bool:
    """Whether a node is no further behind than asked for. A primary is behind nobody."""
    if max_lag is None or answer.role != pb.ROLE_REPLICA:
        return True
    return answer.lag_ms <= max_lag and (max_lag > 0 or not answer.lag_positions)


def _health(target: options.Target, max_lag: int | None, until: float) -> pb.HealthResponse:
    while True:
        try:
            with target.connect() as client:
                answer = client.health()
            if max_lag is not None and answer.ready and not answer.HasField("store"):
                raise Failure(
                    "the lag of a replica is told to a token only",
                    hint="put one into MEMSVC_TOKEN, or name it by --token",
                )
            if (answer.ready and _near(answer, max_lag)) or time.monotonic() >= until:
                return answer
        except ClientError as error:
            if not error.retriable or time.monotonic() >= until:
                raise
        time.sleep(0.1)


def _show_health(answer: pb.HealthResponse, more: Sequence[str] = ()) -> None:
    plain = to_plain(answer)
    click.secho("ready" if answer.ready else "not ready", fg="green" if answer.ready else "red")
    rows: list[tuple[str, str]] = [("role", plain.get("role", "?").lower())]
    rows += [("because", reason) for reason in (*answer.reasons, *more)]
    if answer.degraded.level:
        rows.append(("degraded", f"level {answer.degraded.level}, {answer.degraded.reason}"))
    if answer.HasField("store"):
        store = answer.store
        others = [e for e in store.embeddings if not e.is_default]
        rows += [
            ("memories", f"{store.memories:,} in {counted(store.partitions, 'namespace')}"),
            (
                "vectors",
                f"{store.dimension} numbers, {store.dtype}"
                + (f", model {store.embedding}" if store.embedding else ""),
            ),
            *(("", f"{e.dimension} numbers, model {e.name}, beside it") for e in others),
            (
                "stored",
                size(store.bytes) + (f" of {size(store.max_bytes)}" if store.max_bytes else ""),
            ),
            ("segments", f"{counted(store.segments, 'file')}, {size(store.segment_bytes)}"),
        ]
        if store.cold_segments:
            cold = f"{store.cold_segments} of them with {counted(store.cold_rows, 'row')}"
            kept = f"{size(store.cold_resident_bytes)} of {size(store.cold_bytes)} in memory"
            rows.append(("cold", f"{cold}, {kept}"))
        if store.damaged_files:
            rows.append(("damaged", counted(store.damaged_files, "file")))
    if answer.HasField("load"):
        load = answer.load
        rows.append(("queue", f"{load.write_queue} of {load.write_queue_max} items"))
    # Without a token it is not told, and 0 would be a guess.
    followed = answer.role == pb.ROLE_REPLICA and answer.HasField("store")
    if followed or answer.lag_ms or answer.lag_positions:
        rows.append(("lag", f"{counted(answer.lag_positions, 'position')}, {answer.lag_ms} ms"))
    rows += [("position", answer.position), ("store", answer.store_id)]
    rows.append(("version", answer.version))
    for name, value in rows:
        if value:
            click.echo(f"  {name:<10}{clean(value)}")
    if not answer.HasField("store"):
        click.echo("  (facts about the store need a token)")


@click.command()
@click.argument("where", metavar="[TENANT/AGENT]", type=options.namespace_value, required=False)
@click.option("--verify", is_flag=True, help="Check the checksums of the segment files now.")
@click.option("--log", "log_tail", type=click.IntRange(0, 1000), default=0, help="Last entries.")
@click.option("--memory", "memory_id", default="", metavar="ID", help="The life of one memory.")
@options.json_option
@options.connection
def inspect(
    target: options.Target,
    where: Namespace | None,
    verify: bool,
    log_tail: int,
    memory_id: str,
    as_json: bool,
) -> None:
    """Look inside: log, segments, partitions, or what happened to one memory.

    Needs the admin right. Without --json only what was asked for is shown.

    \b
    Examples:
      memsvc inspect
      memsvc inspect acme/assistant --verify
      memsvc inspect --log 20
      memsvc inspect acme/assistant --memory 0198c2f0-…
    """
    with target.connect() as client:
        facts = client.admin.inspect(
            where.tenant if where else "",
            where.agent if where else "",
            verify=verify,
            log_tail=log_tail,
            memory_id=memory_id,
        )
    if as_json:
        emit_json(facts)
        return
    click.echo(clean_yaml(asked_for(facts, where, verify, log_tail, memory_id)), nl=False)


def asked_for(
    facts: dict[str, Any], where: Namespace | None, verify: bool, log_tail: int, memory_id: str
) -> dict[str, Any]:
    """The part of the facts that the options name, all of them when they name none."""
    if memory_id and not facts.get("memory", True):
        raise Failure(f"nothing is known of a memory {memory_id}", hint="see the id and namespace")
    if where and facts.get("partition", True) is None:
        name = f"{where.tenant}/{where.agent}"
        raise Failure(f"there is no agent {name}", hint="see memsvc tenant list")
    wanted: dict[str, object] = {"memory": memory_id}
    if not memory_id:
        check = where and verify
        wanted = {"partition": where, "log": log_tail, "damaged_found": check, "damaged": check}
    asked = {key: facts[key] for key, want in wanted.items() if want and key in facts}
    shown: dict[str, Any] = _readable(asked or facts)
    return shown


def utc(time_ms: int) -> str:
    """A time as in a log."""
    seconds, ms = divmod(time_ms, 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{ms:03}Z"


def _readable(facts: Any) -> Any:
    """Facts with times for people."""
    if isinstance(facts, dict):
        return {
            key: utc(value) if key == "time" and isinstance(value, int) else _readable(value)
            for key, value in facts.items()
        }
    return [_readable(one) for one in facts] if isinstance(facts, list) else facts


def clean_yaml(facts: dict[str, Any]) -> str:
    """Facts as text. YAML escapes what a terminal would obey."""
    text: str = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=100)
    return text


@click.command()
@click.argument("level", type=click.Choice(["0", "1", "2", "3", "4", "auto"]))
@click.option("--reason", default="", help="Why; shown in log and answers.")
@options.json_option
@options.connection
def degrade(target: options.Target, level: str, reason: str, as_json: bool) -> None:
    """Force a level of degradation, or give control back with "auto".

    A forced level holds until it is given back, across restarts too.

    \b
    Levels:
      0  full service        1  as if out of time: empty, marked answers
      2  reads fall back     3  no vectors: exact scan or words
      4  no memory at all: reads are empty
    Needs the admin right.

    \b
    Examples:
      memsvc degrade 3 --reason "rebuilding on new hardware"
      memsvc degrade auto
    """
    with target.connect() as client:
        answer = client.admin.set_degraded(None if level == "auto" else int(level), reason)
    if as_json:
        emit_json({"forced": False, **to_plain(answer)})
        return
    how = "forced" if answer.forced else "automatic"
    click.echo(f"level {answer.degraded.level} ({how}) {clean(answer.degraded.reason)}".rstrip())


@click.command()
@click.option(
    "--seal", "seal_min_rows", type=click.IntRange(min=1), help="Seal tails of at least so many."
)
@click.option("--merge", is_flag=True, help="Merge the segments of each partition into one.")
@click.option("--purge", is_flag=True, help="Erase from every file what waits for it.")
@click.option(
    "--wait",
    type=options.duration,
    metavar="DURATION",
    default="0s",
    help="Wait at most so long for the end.",
)
@options.json_option
@options.connection
def maintain(
    target: options.Target,
    seal_min_rows: int | None,
    merge: bool,
    purge: bool,
    wait: int,
    as_json: bool,
) -> None:
    """Start maintenance now instead of on schedule. Needs the admin right.

    \b
    Examples:
      memsvc maintain --purge --wait 5m      # after an erasure
      memsvc maintain --seal 1000 --merge
    """
    if not (seal_min_rows or merge or purge):
        raise click.UsageError("say what to do: --seal ROWS, --merge, --purge")
    with target.connect() as client:
        answer = client.admin.maintain(
            seal_min_rows=seal_min_rows or 0,
            merge_all=merge,
            purge=purge,
            wait_seconds=wait / 1000,
        )
    if as_json:
        emit_json({"started": 0, "idle": False, **to_plain(answer)})
        return
    rest = "nothing is left to do" if answer.idle else "still going on"
    click.echo(f"{counted(answer.started, 'job')} started; {rest}")


@click.command()
@options.json_option
@options.connection
def reload(target: options.Target, as_json: bool) -> None:
    """Make the service read its configuration and tokens again. Needs the admin right."""
    with target.connect() as client:
        answer = client.admin.reload()
    if as_json:
        emit_json(to_plain(answer))
        return
    names = f": {', '.join(answer.changed)}" if answer.changed else ""
    click.echo(f"{counted(len(answer.changed), 'setting')} changed{names}")
    if answer.needs_restart:
        click.echo(f"a restart is needed for: {', '.join(answer.needs_restart)}")
