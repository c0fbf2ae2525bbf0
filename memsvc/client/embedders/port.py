"""What an embedder is, and how it fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Embedder(Protocol):
    """Turns texts into vectors of one model. Safe to use from several threads."""

    @property
    def name(self) -> str:
        """Name of the model, as in the setting index.embedding: it selects the generation of
        the store that the vectors belong to."""

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""

    @property
    def min_score(self) -> float:
        """Least cosine similarity that means something with this model."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row for each text, shape (len(texts), dimension), float32.

        Raises TextRefused when one of the texts is at fault (``embed_each`` finds out which),
        EmbedderUnavailable when another try later may succeed, EmbedderError otherwise.
        """


class EmbedderError(RuntimeError):
    """No vectors, and trying again will not help: the message says what to change."""


class EmbedderMissing(EmbedderError):
    """An embedder cannot be used here; the message says what to install."""


class EmbedderUnavailable(EmbedderError):
    """The model did not answer, or has too much to do. The same texts may succeed later."""


class TextRefused(EmbedderError):
    """At least one of the texts is what the model does not take: too long, for instance."""
