"""What of an item is searched: its text, and the vector of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

import numpy as np
from langgraph.store.base import (
    Embeddings,
    IndexConfig,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
)

from memsvc.client import Embedder
from memsvc.domain.limits import MAX_DIMENSION
from memsvc.domain.types import Vector

WHOLE: Final = "$"


class Texts:
    """Texts of items by the paths of an index configuration, and vectors where it has an
    embedder."""

    def __init__(self, index: IndexConfig | None) -> None:
        """ValueError for what cannot be."""
        config: Mapping[str, Any] = index or {}
        self._paths = [_path(field) for field in config.get("fields") or [WHOLE]]
        self.embedder: Embedder | None = None
        self._embeddings: Embeddings | None = None
        self.dimension = 0
        embed = config.get("embed")
        if index is None:
            return
        if embed is not None and hasattr(embed, "min_score") and hasattr(embed, "dimension"):
            embedder = cast(Embedder, embed)
            self.embedder = embedder
            self.dimension = embedder.dimension
            self._embeddings = ensure_embeddings(lambda texts: embedder.embed(texts).tolist())
        else:
            self.dimension = int(config.get("dims") or 0)
            self._embeddings = ensure_embeddings(embed)
        if not 1 <= self.dimension <= MAX_DIMENSION:
            raise ValueError(f"index: dims: expected 1 to {MAX_DIMENSION}, not {self.dimension}")

    @property
    def by_meaning(self) -> bool:
        """Whether queries search vectors; otherwise words."""
        return self._embeddings is not None

    def of(self, value: Mapping[str, Any], index: Literal[False] | list[str] | None) -> list[str]:
        """The texts of a value, at each of its paths and of each element; [] = it is not
        searched."""
        if index is False:
            return []
        paths = self._paths if index is None else [_path(field) for field in index]
        return [text for path in paths for text in get_text_at_path(value, path) if text]

    def embed_texts(self, texts: Sequence[str]) -> list[Vector]:
        """Of items."""
        if not texts or self._embeddings is None:
            return []
        return self._checked(self._embeddings.embed_documents(list(texts)), len(texts))

    async def aembed_texts(self, texts: Sequence[str]) -> list[Vector]:
        """The same, without blocking the event loop."""
        if not texts or self._embeddings is None:
            return []
        return self._checked(await self._embeddings.aembed_documents(list(texts)), len(texts))

    def embed_queries(self, queries: Sequence[str]) -> list[Vector]:
        """Of queries."""
        if self._embeddings is None:
            return []
        rows = [self._embeddings.embed_query(query) for query in queries]
        return self._checked(rows, len(queries))

    async def aembed_queries(self, queries: Sequence[str]) -> list[Vector]:
        """The same, without blocking the event loop."""
        if self._embeddings is None:
            return []
        rows = [await self._embeddings.aembed_query(query) for query in queries]
        return self._checked(rows, len(queries))

    def _checked(self, rows: Sequence[Sequence[float]], count: int) -> list[Vector]:
        vectors = [np.asarray(row, dtype=np.float32) for row in rows]
        if len(vectors) != count or any(one.shape != (self.dimension,) for one in vectors):
            shapes = sorted({one.shape for one in vectors})
            raise ValueError(
                f"index: {count} vectors of {self.dimension} numbers were expected, and "
                f"{len(vectors)} of shapes {shapes} came; is dims that of the model?"
            )
        return vectors


def _path(field: str) -> str | list[str]:
    return field if field == WHOLE else tokenize_path(field)
