"""memsvc token: who may call, in the tokens file; works without a running service."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from memsvc.cli.failures import Failure
from memsvc.cli.options import duration, json_option
from memsvc.cli.output import emit_json, table
from memsvc.cli.settings import config_option
from memsvc.config import load
from memsvc.service.tokens import Right
from memsvc.service.tokens_edit import add_token, list_tokens, revoke_token

file_option = click.option(
    "--file",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The tokens file. Default: that of the configuration.",
)


def _path(file: Path | None, config: Path | None) -> Path:
    return file or load(config, os.environ).settings.tokens_path


@click.group()
def token() -> None:
    """Add, revoke and list access tokens.

    A token says which namespaces its holder may use and what it may do there. Only its hash is
    stored. A running service sees a change within a second. Tokens are asked for once
    auth.mode is "token".
    """


@token.command()
@click.argument("name")
@click.option(
    "-p",
    "--prefix",
    "prefixes",
    multiple=True,
    required=True,
    metavar="PREFIX",
    help='tenant, tenant/agent, or "*" for everything. May be repeated.',
)
@click.option(
    "-r",
    "--right",
    "rights",
    multiple=True,
    type=click.Choice([str(right) for right in Right]),
    default=["read", "write", "forget"],
    show_default=True,
    help="May be repeated; none implies another.",
)
@click.option("--expires", type=duration, metavar="DURATION", help="Valid for so long, as in 90d.")
@file_option
@config_option
def add(
    name: str,
    prefixes: tuple[str, ...],
    rights: tuple[str, ...],
    expires: int | None,
    file: Path | None,
    config: Path | None,
) -> None:
    """Make a token called NAME and print it, once.

    \b
    Examples:
      memsvc token add assistant-prod -p acme/assistant
      memsvc token add ops -p "*" -r admin -r read --expires 90d
    """
    path = _path(file, config)
    expires_at = None if expires is None else int(time.time() * 1000) + expires
    click.echo(add_token(path, name, prefixes, rights, expires_at=expires_at))
    click.echo(f"added to {path}; this is the only time the token is shown", err=True)


@token.command()
@click.argument("name")
@file_option
@config_option
def revoke(name: str, file: Path | None, config: Path | None) -> None:
    """Take the token called NAME away."""
    path = _path(file, config)
    if not revoke_token(path, name):
        raise Failure(f"{path}: there is no token named {name!r}", hint="see memsvc token list")
    click.echo(f"revoked {name}; a running service refuses it within a second")


@token.command("list")
@file_option
@config_option
@json_option
def list_(file: Path | None, config: Path | None, as_json: bool) -> None:
    """List names, namespaces and rights (tokens themselves are stored nowhere)."""
    path = _path(file, config)
    entries = list_tokens(path)
    if as_json:
        emit_json([entry.model_dump(mode="json", exclude_none=True) for entry in entries])
        return
    if not entries:
        click.echo(f"no tokens in {path}")
        return
    now = int(time.time() * 1000)
    table(
        ("name", "rights", "expires", "namespaces"),
        [
            (
                entry.name,
                ",".join(entry.rights),
                _expiry(entry.expires_at, now),
                " ".join(entry.prefixes),
            )
            for entry in entries
        ],
    )


def _expiry(expires_at: int | None, now: int) -> str:
    if expires_at is None:
        return "never"
    if expires_at <= now:
        return "expired"
    return time.strftime("%Y-%m-%d", time.gmtime(expires_at / 1000))
