"""memsvc forget: erase memories, or let them sink."""

from __future__ import annotations

import click

from memsvc.cli import options
from memsvc.cli.output import emit_json
from memsvc.client import ForgetMode, to_plain
from memsvc.domain.filters import Filter
from memsvc.domain.types import Namespace
from memsvc.domain.wording import counted


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@options.namespace_option
@click.option(
    "--filter",
    "filters",
    type=options.filter_value,
    metavar="JSON",
    help="Those that match; with IDs: and.",
)
@click.option("--hard", is_flag=True, help="Erase for good. Default: lower the importance.")
@click.option(
    "--factor",
    type=options.FiniteRange(0, 1, max_open=True),
    help="What the importance is multiplied by, without --hard. The service takes 0.5.",
)
@click.option("--dry-run", is_flag=True, help="Only tell what would be affected.")
@click.option("--reason", default="", help="Why, for the audit.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before erasing.")
@options.json_option
@options.connection
def forget(
    target: options.Target,
    ids: tuple[str, ...],
    namespace: Namespace,
    filters: Filter | None,
    hard: bool,
    factor: float | None,
    dry_run: bool,
    reason: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Forget memories by ID, by --filter, or by both.

    Without --hard they sink: their importance is multiplied by --factor. With --hard they are
    gone from every answer at once, and from every file within lifecycle.purge_within_hours.

    \b
    Examples:
      memsvc forget -n acme/assistant 0198c2f0-…  --hard
      memsvc forget -n acme/assistant --filter '{"session": "chat-7"}' --hard --dry-run
      memsvc forget -n acme/assistant --filter '{"topic": "small-talk"}' --factor 0.2
    """
    if not ids and filters is None:
        raise click.UsageError("give IDs, a --filter, or both; nothing is forgotten by default")
    if hard and factor is not None:
        raise click.UsageError("--factor lowers the importance; --hard erases: give one of them")
    mode = ForgetMode.HARD if hard else ForgetMode.DECAY
    with target.connect(least_timeout=30.0) as client:
        if hard and not dry_run and not yes:
            trial = client.forget(
                namespace, ids=ids, filters=filters, mode=mode, validate_only=True
            )
            question = f"Erase {counted(trial.matched, 'memory')} for good?"
            if trial.matched and not click.confirm(question, err=True):
                raise click.Abort()
        answer = client.forget(
            namespace,
            ids=ids,
            filters=filters,
            mode=mode,
            factor=factor,
            validate_only=dry_run,
            reason=reason,
        )
    if as_json:
        emit_json(to_plain(answer))
        return
    done = "erased" if hard else "lowered"
    if dry_run:
        click.echo(f"would have {done} {counted(answer.matched, 'memory')}; nothing was changed")
    else:
        click.echo(f"{counted(answer.matched, 'memory')} matched, {answer.changed:,} {done}")
    for one in answer.ids[:20]:
        click.echo(f"  {one}")
    if answer.matched > 20:
        click.echo(f"  … and {answer.matched - 20:,} more")
