"""memsvc rebuild: build segments anew with the present settings, while the service goes on."""

from __future__ import annotations

import time
from typing import Final

import click
from tqdm import tqdm

from memsvc.admin.v1 import admin_service_pb2 as pb
from memsvc.cli import options
from memsvc.cli.exporting import split_tenant
from memsvc.cli.output import clean, emit_json, size
from memsvc.client import ClientError, MemoryClient, to_plain
from memsvc.domain.wording import counted

POLL_S: Final = 0.5
PATIENCE_S: Final = 120.0
"""So long the service may be away while its rebuild is waited for: it goes on after a restart."""

wait_option = click.option("--wait", is_flag=True, help="Wait for the end, with a progress bar.")


@click.group()
def rebuild() -> None:
    """Build segments anew with the present settings. Needs the admin right.

    After a change of index.dtype, index.m or index.ef_construction; with --all also to leave
    out rows that are gone. Reads and writes go on meanwhile, and it goes on after a restart.
    """


@rebuild.command()
@click.argument("where", metavar="[TENANT[/AGENT]]", type=split_tenant, required=False)
@click.option(
    "--all", "everything", is_flag=True, help="Also segments that are as they would be built now."
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be done.")
@wait_option
@options.json_option
@options.connection
@click.pass_context
def start(
    ctx: click.Context,
    target: options.Target,
    where: tuple[str, str] | None,
    everything: bool,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> None:
    """Begin a rebuild of the whole node, a tenant, or an agent.

    \b
    Examples:
      memsvc rebuild start --dry-run
      memsvc rebuild start --wait            # exit code 1 when a segment stayed as it was
      memsvc rebuild start acme/assistant --all
    """
    tenant, agent = where or ("", "")
    with target.connect() as client:
        answer = client.admin.start_rebuild(
            tenant, agent, everything=everything, validate_only=dry_run
        )
        if wait and not dry_run:
            answer = _waited(client)
    if dry_run and not as_json:
        room = f", about {size(answer.needed_bytes)} beside the old files"
        click.echo(f"{counted(answer.segments, 'segment')} to build anew{room}")
        return
    _tell(ctx, answer, as_json)


@rebuild.command()
@wait_option
@options.json_option
@options.connection
@click.pass_context
def status(ctx: click.Context, target: options.Target, wait: bool, as_json: bool) -> None:
    """Tell how far it is, or how the last one ended. Exit code 1 when a segment stayed as it
    was."""
    with target.connect() as client:
        answer = _waited(client) if wait else client.admin.rebuild()
    _tell(ctx, answer, as_json)


@rebuild.command()
@options.json_option
@options.connection
@click.pass_context
def cancel(ctx: click.Context, target: options.Target, as_json: bool) -> None:
    """End it. What was replaced stays so, the other segments stay as they are."""
    with target.connect() as client:
        answer = client.admin.cancel_rebuild()
    _tell(ctx, answer, as_json)


def _waited(client: MemoryClient) -> pb.Rebuild:
    """The rebuild when it has ended."""
    away_since = None
    shape = "{l_bar}{bar}| {postfix} [{elapsed}]"
    with tqdm(total=1.0, bar_format=shape, disable=None, leave=False) as bar:
        while True:
            try:
                answer = client.admin.rebuild()
                away_since = None
            except ClientError as error:
                away_since = away_since or time.monotonic()
                if not error.retriable or time.monotonic() > away_since + PATIENCE_S:
                    raise
                time.sleep(POLL_S)
                continue
            if answer.state != pb.Rebuild.STATE_RUNNING:
                return answer
            bar.n = answer.progress
            bar.set_postfix_str(f"{counted(answer.segments_left, 'segment')} left")
            time.sleep(POLL_S)


def _tell(ctx: click.Context, answer: pb.Rebuild, as_json: bool) -> None:
    if as_json:
        emit_json({"state": "STATE_UNSPECIFIED", **to_plain(answer)})
    else:
        click.echo(_summary(answer))
        for failure in answer.failures:
            where = f"{failure.tenant}/{failure.agent} segment {failure.segment}"
            click.echo(f"  stayed as it was: {clean(where)}: {clean(failure.reason)}")
        if answer.state != pb.Rebuild.STATE_RUNNING and answer.graphs_outdated:
            text = counted(answer.graphs_outdated, "segment")
            click.echo(f"  {text} with graphs of other settings: memsvc rebuild start")
    ctx.exit(1 if answer.state == pb.Rebuild.STATE_FAILED else 0)


def _summary(answer: pb.Rebuild) -> str:
    if answer.state == pb.Rebuild.STATE_UNSPECIFIED:
        return "there was no rebuild yet"
    state = pb.Rebuild.State.Name(answer.state).removeprefix("STATE_").lower()
    done = answer.segments - answer.segments_left
    made = f"dtype {answer.dtype}, m {answer.m}, ef_construction {answer.ef_construction}"
    return (
        f"{state}: {done:,} of {counted(answer.segments, 'segment')}, {answer.progress:.0%} of "
        f"{counted(answer.rows, 'row')} ({made})"
    )
