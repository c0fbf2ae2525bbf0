"""Text to vectors, on the client's side: the service never calls a model."""

from memsvc.client.embedders.batches import BATCH, embed_each
from memsvc.client.embedders.binding import EmbeddingMismatch, embedding_of
from memsvc.client.embedders.endpoint import EndpointEmbedder
from memsvc.client.embedders.hashing import HashingEmbedder
from memsvc.client.embedders.local import (
    LOCAL_DIMENSION,
    LOCAL_MIN_SCORE,
    LOCAL_NAME,
    LocalEmbedder,
    local_embedder,
)
from memsvc.client.embedders.port import (
    Embedder,
    EmbedderError,
    EmbedderMissing,
    EmbedderUnavailable,
    TextRefused,
)

__all__ = [
    "BATCH",
    "LOCAL_DIMENSION",
    "LOCAL_MIN_SCORE",
    "LOCAL_NAME",
    "Embedder",
    "EmbedderError",
    "EmbedderMissing",
    "EmbedderUnavailable",
    "EmbeddingMismatch",
    "EndpointEmbedder",
    "HashingEmbedder",
    "LocalEmbedder",
    "TextRefused",
    "embed_each",
    "embedding_of",
    "local_embedder",
]
