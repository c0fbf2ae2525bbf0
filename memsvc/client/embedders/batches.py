"""Many texts in batches, so that one that the model refuses does not take others with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from memsvc.client.embedders.port import Embedder, EmbedderError, TextRefused
from memsvc.domain.limits import MIN_VECTOR_NORM

BATCH: Final = 24
"""Texts that are given to a model at once."""

Row = NDArray[np.float32]


def embed_each(
    embedder: Embedder, texts: Sequence[str], batch: int = BATCH
) -> list[Row | TextRefused]:
    """A vector for each text, or why it has none.

    A batch that is refused is halved until the texts at fault stand alone: of n texts, one bad
    one costs about 2 log2(n) calls. Vectors that the service would refuse (not finite, without
    a direction) count as refused. Raises EmbedderUnavailable and EmbedderError when the fault
    is not with a text, and EmbedderError for rows of another shape than the model states.
    """
    found: list[Row | TextRefused] = []
    for start in range(0, len(texts), batch):
        found += _isolated(embedder, texts[start : start + batch])
    return found


def _array(embedder: Embedder, rows: object) -> NDArray[np.float32]:
    """Also of lists, which embedders of other libraries give. As float32, before it is looked at:
    what is finite as float64 may not be so here."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise EmbedderError(
            f"{embedder.name}: expected an array of shape (texts, dimension) from embed, and a "
            f"{type(rows).__name__} came that is none ({error})"
        ) from error


def _isolated(embedder: Embedder, texts: Sequence[str]) -> list[Row | TextRefused]:
    try:
        rows = embedder.embed(texts)
    except TextRefused as error:
        if len(texts) == 1:
            return [error]
        half = len(texts) // 2
        return [*_isolated(embedder, texts[:half]), *_isolated(embedder, texts[half:])]
    rows = _array(embedder, rows)
    expected = (len(texts), embedder.dimension)
    if rows.shape != expected:
        raise EmbedderError(
            f"{embedder.name}: vectors of shape {rows.shape} came where {expected} were expected; "
            "is the dimension that of the model?"
        )
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(rows.astype(np.float64), axis=1)
    usable = np.isfinite(norms) & (norms > MIN_VECTOR_NORM)
    return [
        row if good else TextRefused(f"{embedder.name}: a vector without a direction came back")
        for row, good in zip(rows, usable, strict=True)
    ]
