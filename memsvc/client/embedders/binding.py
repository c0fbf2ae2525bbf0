"""Which vectors of a store an embedder's belong to."""

from __future__ import annotations

from memsvc.client.embedders.port import Embedder, EmbedderError
from memsvc.v1 import memory_service_pb2 as pb


class EmbeddingMismatch(EmbedderError):
    """The store has no vectors of this model; the message says how to go on."""


def embedding_of(embedder: Embedder, store: pb.StoreFacts) -> str:
    """The name that calls with vectors of this embedder must carry as ``embedding``, by what
    Health says of the store: the embedder's own, or "" for a store whose only model has no name
    and as many numbers. Raises EmbeddingMismatch: vectors of two models cannot be compared,
    and in one index both would look fine and neither be found.
    """
    known = list(store.embeddings)
    for one in known:
        if one.name == embedder.name:
            if one.dimension == embedder.dimension:
                return embedder.name
            raise EmbeddingMismatch(
                f"the store's vectors of {one.name!r} have {one.dimension} numbers, those of the "
                f"embedder {embedder.dimension}; give one of the two models another name"
            )
    unnamed = [one for one in known if not one.name]
    if any(one.dimension == embedder.dimension for one in unnamed):
        return ""
    told = ", ".join(f"{one.name or '(unnamed)'} ({one.dimension} numbers)" for one in known)
    current = " --current OLD-NAME" if unnamed else ""
    raise EmbeddingMismatch(
        f"the store has vectors of {told or 'no model that this token may see'}, not of "
        f"{embedder.name!r} ({embedder.dimension} numbers); use an embedder of that model, or "
        f"move the store: memsvc generation create --embedding {embedder.name} "
        f"--dimension {embedder.dimension}{current}"
    )
