"""memsvc reembed: vectors of another model for the memories there are."""

from __future__ import annotations

import sys

import click
from tqdm import tqdm

from memsvc.cli import options
from memsvc.cli.embedding import model_options
from memsvc.cli.exporting import split_tenant
from memsvc.cli.failures import Failure
from memsvc.cli.output import clean, emit_json
from memsvc.client import Embedder, MemoryClient
from memsvc.client.reembedding import Reembedder


@click.command()
@click.option(
    "-n",
    "--namespace",
    "where",
    type=split_tenant,
    metavar="TENANT[/AGENT]",
    help="Only these memories. Otherwise all of the node.",
)
@click.option(
    "--retries", type=click.IntRange(min=0), default=8, show_default=True, help="For each call."
)
@model_options
@options.json_option
@options.connection
def reembed(
    target: options.Target,
    where: tuple[str, str] | None,
    retries: int,
    embedder: Embedder,
    as_json: bool,
) -> None:
    """Give memories the vectors of a model that they have none of, from their texts.

    This fills a new generation (`memsvc generation create`) before it becomes the default, and
    mends what was written while the model was away. It may be broken off at any time and started
    again: what has a vector is passed over. Clients go on meanwhile. Needs the admin right.

    \b
    Examples:
      memsvc reembed
      memsvc reembed -n acme --model bge-m3 --dimension 1024 --endpoint http://127.0.0.1:8080/v1
    """
    tenant, agent = where or ("", "")
    with (
        target.connect(least_timeout=60.0) as client,
        tqdm(
            total=_lacking(client, embedder.name) if where is None else None,
            unit="memories",
            unit_scale=True,
            disable=None,  # none where standard error is no terminal
        ) as bar,
    ):

        def tell(text: str) -> None:
            bar.write(clean(text), file=sys.stderr)

        work = Reembedder(client, embedder, retries=retries, tell=tell)
        for looked_at in work.run(tenant, agent):
            bar.update(looked_at)
    counts = {name: number for name, number in sorted(work.counts.items()) if number}
    if as_json:
        emit_json(counts)
    else:
        told = ", ".join(f"{name.replace('_', ' ')} {number:,}" for name, number in counts.items())
        click.echo(f"{clean(embedder.name)}: {told or 'nothing was lacking'}")
    if work.counts["refused"] or work.counts["not_allowed"]:
        raise Failure(
            "some memories have no vector of it",
            hint="their ids are told above; a text that the model refuses can be updated to a "
            "shorter one, and memories that are not ACTIVE need the review right",
        )


def _lacking(client: MemoryClient, name: str) -> int | None:
    """How many there are, for the bar."""
    for one in client.admin.generations():
        if one.embedding == name:
            return max(0, one.memories - one.vectors)
    return None
