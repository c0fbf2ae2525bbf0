"""One score from two: how well the words match and how close the vectors are.

    score = w * bm25 / bound + (1 - w) * max(cosine, 0)

Both halves are on an absolute scale. BM25 is divided by the score that this query could reach at
most (the sum of its terms' idf), the cosine is one already. So a candidate's score depends on the
candidate, the query and the partition's statistics, and not on which other candidates were
fetched: asking for more, filtering, or another segment layout never reorders what was there.
Ranks (reciprocal rank fusion) and scales taken from the list (min-max, z) lack that, and measured
no better; see DESIGN.md.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

KEYWORD_WEIGHT: Final = 0.5
"""Share of the words in the score; the rest is the vectors'."""


def fuse(
    bm25: NDArray[Any],
    bound: float,
    cosine: NDArray[Any],
    *,
    keyword_weight: float = KEYWORD_WEIGHT,
) -> NDArray[np.float64]:
    """Fused score of each candidate, shape (n,), float64, within [0, 1].

    ``bm25``: shape (n,), >= 0, and 0 for candidates without any of the words. ``bound``: what
    :func:`memsvc.text.bm25.upper_bound` gives for the query; with 0 (no word of the query occurs
    in the partition) the words count nothing. ``cosine``: shape (n,), within [-1, 1], NaN for
    a candidate without a vector, which counts as 0: the words alone must carry it.

    Raises ValueError when the shapes differ.
    """
    if bm25.shape != cosine.shape:
        raise ValueError(f"bm25 has shape {bm25.shape}, cosine {cosine.shape}")
    words = bm25.astype(np.float64)
    if bound > 0:
        words = np.clip(words, 0.0, bound) / bound
    else:
        words[:] = 0.0
    vectors = np.clip(np.nan_to_num(cosine.astype(np.float64), nan=0.0), 0.0, 1.0)
    return keyword_weight * words + (1.0 - keyword_weight) * vectors
