"""``memsvc hermes``: the plugin of the Hermes agent."""

from __future__ import annotations

from pathlib import Path

import click

from memsvc.cli.failures import Failure
from memsvc.integrations.hermes import install as plugin

home_option = click.option(
    "--hermes-home",
    "home",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="HERMES_HOME",
    show_envvar=True,
    default=Path.home() / ".hermes",
    show_default="~/.hermes",
    help="Home of Hermes; each of its profiles has one.",
)


@click.group()
def hermes() -> None:
    """Memory for the Hermes agent: put the plugin where Hermes finds it."""


@hermes.command()
@home_option
def install(home: Path) -> None:
    """Install the plugin, or bring it up to date.

    memsvc itself must be installed in the environment of Hermes; run this command from there.
    """
    if not home.is_dir():
        raise Failure(
            f"{home}: there is no such folder", hint="start Hermes once, or --hermes-home"
        )
    try:
        folder = plugin.install(home)
    except (plugin.NotOurs, OSError) as error:
        raise Failure(str(error)) from None
    click.echo(f"installed: {folder}")
    click.echo("next: hermes memory setup memsvc")


@hermes.command()
@home_option
def uninstall(home: Path) -> None:
    """Remove the plugin; settings, and what waits to be written, stay."""
    try:
        found = plugin.uninstall(home)
    except (plugin.NotOurs, OSError) as error:
        raise Failure(str(error)) from None
    click.echo("removed" if found else "there is no plugin to remove")
    if found:
        click.echo("next: hermes memory off")
