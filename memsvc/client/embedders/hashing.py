"""A deterministic embedder without a model, for tests and for trying things out."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from memsvc.domain.limits import MAX_DIMENSION

HASHING_DIMENSION: Final = 256
HASHING_MIN_SCORE: Final = 0.15
"""Texts that share no word lie below it in 256 numbers: chance puts them around 0, with a
standard deviation of 1 / sqrt(256) = 0.06."""

# A word, or a single character of scripts that are written without spaces.
_TOKENS: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W_]+")


class HashingEmbedder:
    """Texts with the same words lie near each other, whatever they mean: words and pairs of
    neighbouring words are hashed to directions and added up. The same text always gives the
    same vector, on every machine."""

    min_score: Final = HASHING_MIN_SCORE

    def __init__(self, dimension: int = HASHING_DIMENSION, name: str = "") -> None:
        """``dimension`` 8 to 8,192 (ValueError otherwise); ``name`` defaults to
        ``hashing-DIMENSION``."""
        if not 8 <= dimension <= MAX_DIMENSION:
            raise ValueError(f"dimension: expected 8 to {MAX_DIMENSION}, not {dimension}")
        self.dimension = dimension
        self.name = name or f"hashing-{dimension}"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One unit vector for each text. A text without a word has a direction too."""
        rows = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            words = _TOKENS.findall(text.casefold()) or [""]
            for feature in (*words, *map(" ".join, itertools.pairwise(words))):
                row += _signs(feature, self.dimension)
            row /= np.linalg.norm(row) or 1.0
        return rows


def _signs(feature: str, dimension: int) -> NDArray[np.float32]:
    digest = hashlib.shake_128(feature.encode(errors="replace")).digest(-(-dimension // 8))
    bits = np.unpackbits(np.frombuffer(digest, dtype=np.uint8), count=dimension)
    return np.asarray(bits, dtype=np.float32) * 2 - 1
