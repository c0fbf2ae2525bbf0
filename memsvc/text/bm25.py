"""BM25 arithmetic: from counts to scores.

    score(D, Q) = sum over q in Q of idf(q) * tf / (tf + k1 * (1 - b + b * |D| / avgdl))
    idf(q)      = ln(1 + (N - df + 0.5) / (df + 0.5))

after Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009),
with the idf of Lucene, which is never negative, and without the constant factor k1 + 1, which
changes no order. Without it one term contributes less than its idf, so that the sum of the idf
bounds the score (:func:`upper_bound`); fusion relies on that.

All statistics come from outside, counted over the live documents of a partition, because a
partition's documents lie in several segments and a tail and the answer must not depend on how
they are spread. For the same reason only operations with one correct result are used on arrays
(IEEE 754 sum, product, quotient), never ``numpy.log``, whose last bit differs between processors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

K1: Final = 1.2
"""How slowly repetitions of a term saturate; 0 means that one occurrence says it all."""

B: Final = 0.4
"""How much a long document is held back; 0 not at all, 1 in proportion to its length."""


def idf(documents: int, frequency: int) -> float:
    """Weight of a term found in ``frequency`` of ``documents`` live documents.

    Zero for a term that no document has, since it can tell nothing apart. A frequency above the
    number of documents counts as equal to it.
    """
    if frequency <= 0 or documents <= 0:
        return 0.0
    rest = max(documents - frequency, 0)
    return math.log1p((rest + 0.5) / (frequency + 0.5))


def average_length(total_length: int, documents: int) -> float:
    """Mean number of terms of the live documents; 0.0 when there are none."""
    return total_length / documents if documents > 0 else 0.0


def contributions(
    weight: float,
    tfs: NDArray[Any],
    lengths: NDArray[Any],
    mean_length: float,
    *,
    k1: float = K1,
    b: float = B,
) -> NDArray[np.float64]:
    """What one term adds to the score of each document that has it, shape (n,), float64.

    ``weight`` is the term's :func:`idf`, ``tfs`` how often each document has it (shape (n,), >= 1)
    and ``lengths`` how many terms each document has (shape (n,)), of any integer type.
    Every value lies in (0, weight). A ``mean_length`` of zero switches length off.
    """
    frequencies = tfs.astype(np.float64)
    if mean_length > 0:
        norms = lengths.astype(np.float64)
        norms *= k1 * b / mean_length
        norms += k1 * (1.0 - b)
    else:
        norms = np.full(len(frequencies), k1)
    norms += frequencies
    frequencies *= weight
    frequencies /= norms
    return frequencies


def upper_bound(weights: Iterable[float]) -> float:
    """The score that no document can reach: the sum of the idf of the query's terms."""
    return math.fsum(weights)
