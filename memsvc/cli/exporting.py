"""memsvc export: everything of a tenant, or of one agent, into a JSONL file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click
from tqdm import tqdm

from memsvc.cli import options
from memsvc.cli.failures import Failure
from memsvc.client import MemoryClient
from memsvc.domain.wording import counted


def split_tenant(text: str) -> tuple[str, str]:
    """ "tenant" or "tenant/agent" as both."""
    tenant, slash, agent = text.partition("/")
    if not tenant or (slash and not agent) or "/" in agent:
        raise click.BadParameter(f"expected TENANT or TENANT/AGENT, not {text!r}")
    return tenant, agent


def export_to(
    client: MemoryClient, tenant: str, agent: str, file: str, *, vectors: bool
) -> tuple[int, int]:
    """Writes the export; memories written, and counted at the start. The file appears when it
    is complete and on disk, and replaces an older one only then."""
    if file == "-":
        return _stream(client, tenant, agent, vectors, sys.stdout.write)
    path = Path(file)
    partial = path.with_name(f".{path.name}.part")
    try:
        # Whoever may read the file reads everything the tenant said.
        with open(
            os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as out:
            counts = _stream(client, tenant, agent, vectors, out.write)
            out.flush()
            os.fsync(out.fileno())
        partial.replace(path)
    finally:
        with suppress(FileNotFoundError):
            partial.unlink()
    return counts


def _stream(
    client: MemoryClient, tenant: str, agent: str, vectors: bool, write: Callable[[str], object]
) -> tuple[int, int]:
    sent = total = 0
    with tqdm(unit=" memories", disable=None, leave=False) as bar:
        for one in client.admin.export_tenant(tenant, agent, vectors=vectors):
            write(one.json + "\n")
            sent, total = sent + 1, one.total
            if bar.total != total:
                bar.total = total
            bar.update()
    return sent, total


def run_export(target: options.Target, where: tuple[str, str], file: str, vectors: bool) -> None:
    """The command, under both of its names."""
    tenant, agent = where
    name = f"{tenant}/{agent}" if agent else tenant
    if file != "-" and Path(file).is_dir():
        raise Failure(f"{file} is a directory; give a file name")
    with target.connect() as client:
        sent, total = export_to(client, tenant, agent, file, vectors=vectors)
    place = "standard output" if file == "-" else file
    click.echo(f"exported {counted(sent, 'memory')} of {name} to {place}", err=True)
    if sent != total:
        click.echo(f"{total:,} were counted at the start: some changed meanwhile", err=True)


vectors_option = click.option(
    "--vectors", is_flag=True, help="With vectors: much larger, but nothing to embed again."
)


@click.command()
@click.argument("file", type=click.Path(allow_dash=True))
@click.option(
    "-n",
    "--namespace",
    "where",
    type=split_tenant,
    required=True,
    metavar="TENANT[/AGENT]",
    help="A whole tenant, or one of its agents.",
)
@vectors_option
@options.connection
def export(target: options.Target, file: str, where: tuple[str, str], vectors: bool) -> None:
    """Write everything of a tenant or agent into a JSONL file ("-": standard output).

    Every status is in it but FORGOTTEN. Needs the admin right. `memsvc import` reads it.

    \b
    Examples:
      memsvc export acme.jsonl -n acme --vectors
      memsvc export - -n acme/assistant | gzip > assistant.jsonl.gz
    """
    run_export(target, where, file, vectors)
