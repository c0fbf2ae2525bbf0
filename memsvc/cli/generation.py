"""memsvc generation: change the embedding model, while the service goes on."""

from __future__ import annotations

import json

import click

from memsvc.admin.v1 import admin_service_pb2 as pb
from memsvc.cli import options
from memsvc.cli.exporting import split_tenant
from memsvc.cli.failures import Misused
from memsvc.cli.output import age, clean, emit_json, size, table
from memsvc.client import to_plain
from memsvc.domain.generations import MIN_COVERAGE
from memsvc.domain.limits import (
    GRAPH_DTYPES,
    MAX_DIMENSION,
    MAX_EF_CONSTRUCTION,
    MAX_M,
    MIN_EF_CONSTRUCTION,
    MIN_M,
)
from memsvc.domain.wording import counted


@click.group()
def generation() -> None:
    """Change the embedding model. Needs the admin right.

    A generation is the vectors of one model. A new one is created beside the one that serves,
    filled by late vectors, made the default, and then the old one is dropped. Clients of both
    models go on meanwhile: each names its own with --embedding.
    """


@generation.command()
@click.option("--embedding", required=True, metavar="NAME", help="Name of the new model.")
@click.option(
    "--dimension",
    required=True,
    type=click.IntRange(1, MAX_DIMENSION),
    help="Of its vectors.",
)
@click.option(
    "--current", default="", metavar="NAME", help="A name for the present model, if it has none."
)
@click.option("--dtype", type=click.Choice(GRAPH_DTYPES), help="Of its graphs, not index.dtype.")
@click.option("--m", type=click.IntRange(MIN_M, MAX_M), help="Of its graphs, not index.m.")
@click.option(
    "--ef-construction",
    type=click.IntRange(MIN_EF_CONSTRUCTION, MAX_EF_CONSTRUCTION),
    help="Of its graphs, not index.ef_construction.",
)
@click.option("--dry-run", is_flag=True, help="Only tell whether it can be, and the room it takes.")
@options.json_option
@options.connection
def create(
    target: options.Target,
    embedding: str,
    dimension: int,
    current: str,
    dtype: str | None,
    m: int | None,
    ef_construction: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Add a model, whose vectors are kept beside those there are.

    \b
    Examples:
      memsvc generation create --embedding new-model --dimension 1024 --dry-run
      memsvc generation create --embedding new-model --dimension 1024
      memsvc generation create --embedding new-model --dimension 1024 --current old-model
    """
    with target.connect() as client:
        made = client.admin.create_generation(
            embedding,
            dimension,
            current=current,
            dtype=dtype or "",
            m=m or 0,
            ef_construction=ef_construction or 0,
            validate_only=dry_run,
        )
    if as_json:
        emit_json(to_plain(made))
        return
    verb = "can be created" if dry_run else "created"
    room = f"about {size(made.needed_bytes)} once it is filled"
    click.echo(f"{clean(made.embedding)} of {made.dimension} numbers {verb}: {room}")


@generation.command("list")
@options.json_option
@options.connection
def list_(target: options.Target, as_json: bool) -> None:
    """List the models, and how far each is filled with vectors."""
    with target.connect() as client:
        found = client.admin.generations()
    if as_json:
        emit_json([{"is_default": False, "vectors": 0, **to_plain(one)} for one in found])
        return
    table(
        ("", "model", "numbers", "vectors", "of", "coverage", "filled in", "state"),
        [_row(one) for one in found],
        right=frozenset({2, 3, 4, 5, 6}),
    )


def _row(one: pb.Generation) -> tuple[str, ...]:
    state = pb.Generation.State.Name(one.state).removeprefix("STATE_").lower()
    name = clean(one.embedding) or "(unnamed)"
    if one.state != pb.Generation.STATE_SERVING:
        return "", name, str(one.dimension), "", "", "", "", state
    return (
        "*" if one.is_default else "",
        name,
        str(one.dimension),
        f"{one.vectors:,}",
        f"{one.memories:,}",
        f"{one.coverage:.1%}",
        age(one.eta_ms, 0) if one.eta_ms else "",
        state,
    )


@generation.command("make-default")
@click.argument("embedding", metavar="NAME")
@click.option(
    "--min-coverage",
    type=options.FiniteRange(0, 1),
    default=MIN_COVERAGE,
    show_default=True,
    help="Share of the memories found by vector that must have a vector of it.",
)
@click.option("--force", is_flag=True, help="Whatever its coverage, segments and graphs are.")
@click.option("--dry-run", is_flag=True, help="Only check.")
@options.json_option
@options.connection
def make_default(
    target: options.Target,
    embedding: str,
    min_coverage: float,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make a model the one that is meant when a call names none. Can be turned back."""
    with target.connect() as client:
        made = client.admin.set_default_generation(
            embedding, min_coverage=min_coverage, force=force, validate_only=dry_run
        )
    if as_json:
        emit_json({"is_default": False, **to_plain(made)})
        return
    verb = "can be made the default" if dry_run else "is the default"
    click.echo(f"{clean(made.embedding)} {verb}, coverage {made.coverage:.1%}")
    if not dry_run:
        click.echo(
            f"set index.embedding: {clean(made.embedding)} and index.dimension: {made.dimension} "
            "in the configuration of every node"
        )


@generation.command()
@click.argument("embedding", metavar="NAME")
@click.option("--dry-run", is_flag=True, help="Only tell what would be dropped.")
@click.option("--confirm", metavar="NAME", help="The same name again, instead of being asked.")
@options.json_option
@options.connection
def drop(
    target: options.Target, embedding: str, dry_run: bool, confirm: str | None, as_json: bool
) -> None:
    """Drop a model with all its vectors, for good. Memories stay, and so do other vectors.

    Calls that name it are refused from then on. Its files go at once, and what the database
    holds within lifecycle.purge_within_hours (`memsvc maintain --purge` does it now).
    """
    with target.connect() as client:
        if not dry_run:
            if confirm is None:
                told = client.admin.drop_generation(embedding, validate_only=True)
                confirm = click.prompt(
                    f"{counted(told.vectors, 'vector')} of {clean(embedding)} will be dropped for "
                    "good. Type its name to go on",
                    err=True,
                )
            if confirm != embedding:
                raise Misused(f"{confirm!r} is not {embedding!r}; nothing was dropped")
        dropped = client.admin.drop_generation(embedding, validate_only=dry_run)
    if as_json:
        emit_json({"vectors": 0, **to_plain(dropped)})
        return
    verb = "would be dropped" if dry_run else "dropped"
    click.echo(f"{clean(embedding)} with {counted(dropped.vectors, 'vector')} {verb}")


@generation.command()
@click.argument("where", metavar="[TENANT[/AGENT]]", type=split_tenant, required=False)
@options.embedding_option
@click.option("--limit", type=click.IntRange(min=1), help="Most memories; default: all.")
@options.connection
def lacking(
    target: options.Target, where: tuple[str, str] | None, embedding: str, limit: int | None
) -> None:
    """Print memories without a vector of a model as JSON lines, with their texts.

    A vector for one is a late vector: `{"vector": {"id": ..., "if_version": ..., "vector": [...]}}`
    in a Write that names the model.
    """
    tenant, agent = where or ("", "")
    left, token = limit, ""
    with target.connect() as client:
        while True:
            page = client.admin.lacking(
                embedding, tenant, agent, page_size=min(left or 1_000, 1_000), page_token=token
            )
            for memory in page.memories:
                click.echo(json.dumps(to_plain(memory), ensure_ascii=False))
            token = page.next_page_token
            left = None if left is None else left - len(page.memories)
            if not token or left == 0:
                return
