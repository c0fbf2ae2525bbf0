"""Whether texts given on the command line get a vector, and from whom."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from memsvc.cli.failures import Misused
from memsvc.cli.output import note
from memsvc.client import Embedder, EndpointEmbedder, LocalEmbedder, MemoryClient
from memsvc.client.embedders import LOCAL_DIMENSION, LOCAL_NAME, EmbedderMissing
from memsvc.domain.limits import MAX_DIMENSION

F = TypeVar("F", bound=Callable[..., Any])


def model_options(command: F) -> F:
    """Adds the options that name an embedding model and where it runs; passes the embedder as
    ``embedder``."""

    @click.option(
        "--model",
        default=LOCAL_NAME,
        show_default=True,
        help="The model; the default one runs here and needs no network.",
    )
    @click.option(
        "--endpoint",
        metavar="URL",
        help="OpenAI-compatible endpoint that has the model, without the final /embeddings. "
        "A key is taken from OPENAI_API_KEY.",
    )
    @click.option(
        "--dimension", type=click.IntRange(1, MAX_DIMENSION), help="Numbers in a vector of it."
    )
    @click.option(
        "--embedding", default="", metavar="NAME", help="Its name in the store, if another."
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        model: str,
        endpoint: str | None,
        dimension: int | None,
        embedding: str,
        **kwargs: Any,
    ) -> Any:
        embedder: Embedder
        if endpoint is None:
            if model != LOCAL_NAME or dimension not in (None, LOCAL_DIMENSION) or embedding:
                raise click.UsageError(f"--endpoint is needed for another model than {LOCAL_NAME}")
            embedder = LocalEmbedder()
        elif dimension is None or model == LOCAL_NAME:
            raise click.UsageError("--endpoint needs --model and --dimension")
        else:
            try:
                embedder = EndpointEmbedder(model, dimension, base_url=endpoint, name=embedding)
            except ValueError as error:
                raise click.UsageError(str(error)) from None
        return command(*args, embedder=embedder, **kwargs)

    return cast(F, wrapped)


def choose_embedder(client: MemoryClient, choice: str) -> Embedder | None:
    """The embedder to use; None = words only, after saying why."""
    embedder, lacking = find_embedder(client, choice)
    if lacking:
        note(f"words only: {lacking}")
    return embedder


def find_embedder(client: MemoryClient, choice: str) -> tuple[Embedder | None, str]:
    """The embedder to use; or None and why there is none, "" when none is wanted.

    Vectors of two models must never meet in one store: both would look fine and neither be
    found. So a store that names another model, or has another dimension, gets none of ours.
    Raises Misused or EmbedderMissing when there must be one.
    """
    if choice == "none":
        return None, ""
    try:
        embedder = LocalEmbedder()
    except EmbedderMissing:
        if choice == "local":
            raise
        return None, "the local embedder is not installed (pip install 'memsvc[local]')"
    facts = client.health().store
    dimension = next(
        (e.dimension for e in facts.embeddings if e.name == client.embedding and e.name),
        facts.dimension,
    )
    problem = ""
    if dimension and dimension != LOCAL_DIMENSION:
        problem = (
            f"the store's vectors have {dimension} numbers, those of the local embedder "
            f"{LOCAL_DIMENSION}"
        )
    elif not client.embedding and facts.embedding not in ("", LOCAL_NAME):
        problem = f"the store's vectors are of the model {facts.embedding!r}, not {LOCAL_NAME!r}"
    if not problem:
        return embedder, ""
    if choice == "local":
        raise Misused(
            problem,
            hint="give vectors of the right model with --vector-file, or use --embedder none "
            "for words only",
        )
    return None, problem
