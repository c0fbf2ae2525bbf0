"""Whether texts given on the command line get a vector, and from whom."""

from __future__ import annotations

from memsvc.cli.failures import Misused
from memsvc.cli.output import note
from memsvc.client import Embedder, LocalEmbedder, MemoryClient
from memsvc.client.embedders import LOCAL_DIMENSION, LOCAL_NAME, EmbedderMissing


def choose_embedder(client: MemoryClient, choice: str) -> Embedder | None:
    """The embedder to use; None = words only, after saying why.

    Vectors of two models must never meet in one store: both would look fine and neither be
    found. So a store that names another model, or has another dimension, gets none of ours.
    """
    if choice == "none":
        return None
    try:
        embedder = LocalEmbedder()
    except EmbedderMissing:
        if choice == "local":
            raise
        note("words only: the local embedder is not installed (pip install 'memsvc[local]')")
        return None
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
        return embedder
    if choice == "local":
        raise Misused(
            problem,
            hint="give vectors of the right model with --vector-file, or use --embedder none "
            "for words only",
        )
    note(f"words only: {problem}")
    return None
