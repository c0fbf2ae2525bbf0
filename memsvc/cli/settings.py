"""Options that name a configuration. Used by serve, so it loads nothing heavy."""

from __future__ import annotations

from pathlib import Path

import click

config_option = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="MEMSVC_CONFIG",
    show_envvar=True,
    metavar="FILE",
    help="YAML file with settings.",
)
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="One setting, as in --set query.min_score=0.3; wins over file and environment.",
)


def overrides(settings: tuple[str, ...]) -> dict[str, object]:
    """ "key=value" texts by key."""
    chosen: dict[str, object] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"expected KEY=VALUE, not {text!r}", param_hint="--set")
        chosen[name.strip()] = value
    return chosen
