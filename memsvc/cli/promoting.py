"""memsvc promote: make a replica the primary of its group."""

from __future__ import annotations

import click

from memsvc.cli import options
from memsvc.cli.output import emit_json
from memsvc.client import to_plain


@click.command()
@click.option("--force", is_flag=True, help="Do not ask the primary: it is lost, or must go.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="With --force: also when writes that were acknowledged may be missing.",
)
@options.json_option
@options.connection
def promote(target: options.Target, force: bool, accept_loss: bool, as_json: bool) -> None:
    """Make this replica the primary of its group (replication.nodes). Needs the admin right.

    Without --force the primary hands over: no write is lost, reads go on, and for a moment
    writes are refused with HANDING_OVER or NOT_PRIMARY. With --force, after the loss of the
    primary, the other nodes are told to follow this one; it is refused when another replica has
    more of the log, or when writes that were acknowledged may be missing (see
    replication.min_acks).

    \b
    Examples:
      memsvc promote --address replica-2:8848
      memsvc promote --address replica-2:8848 --force
    """
    if accept_loss and not force:
        raise click.UsageError("--accept-loss goes with --force")
    with target.connect() as client:
        made = client.admin.promote(force=force, accept_loss=accept_loss)
    if as_json:
        emit_json(to_plain(made))
        return
    click.echo(f"primary, of epoch {made.epoch} from position {made.position} on")
    if made.may_lack:
        click.echo(f"  what {made.former} alone had, if anything, is given up;")
        click.echo("  once back, it writes that into surplus/ in its data directory")
    for node in made.silent:
        click.echo(f"  {node} did not answer; it follows this node once it is back")
