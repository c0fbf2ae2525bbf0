"""Finding the least similarity that means something with an embedder, from pairs of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from memsvc.client.embedders import BATCH, Embedder, embed_each

LEAST_PAIRS: Final = 20
"""Of each kind. With fewer the figures say nothing."""
RESAMPLES: Final = 400
SEPARATES: Final = 0.7
"""Below this area the embedder hardly tells related pairs from others."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts, and whether one is an answer to the other, or says the same."""

    first: str
    second: str
    related: bool


@dataclass(frozen=True, slots=True)
class Share:
    """What a threshold does: the share of related pairs at or above it, and of the others."""

    min_score: float
    related: float
    unrelated: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found. Similarities are cosines."""

    chosen: Share
    low: float
    high: float
    """The threshold of nine in ten resamples of the pairs lies between these."""
    area: float
    """How often a related pair is nearer than another one: 1 = always, 0.5 = as by chance."""
    related: NDArray[np.float64]
    unrelated: NDArray[np.float64]

    def at(self, min_score: float) -> Share:
        """What another threshold would do."""
        return _share(self.related, self.unrelated, min_score)

    @property
    def separates(self) -> bool:
        """Whether the embedder tells the two kinds apart well enough to set a threshold."""
        return self.area >= SEPARATES


def similarities(embedder: Embedder, pairs: Sequence[Pair]) -> NDArray[np.float64]:
    """The cosine of each pair, shape (len(pairs),). Raises EmbedderError, TextRefused with
    the text at fault among them."""
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.first, pair.second)))
    rows = []
    for row in embed_each(embedder, texts, BATCH):
        if isinstance(row, Exception):
            raise row
        rows.append(np.asarray(row, np.float64))
    units = {
        text: row / max(float(np.linalg.norm(row)), 1e-12)
        for text, row in zip(texts, rows, strict=True)
    }
    return np.array([float(units[pair.first] @ units[pair.second]) for pair in pairs])


def calibrate(
    values: NDArray[np.float64], pairs: Sequence[Pair], *, keep: float | None = None
) -> Calibration:
    """Chooses the threshold with the greatest distance between the share of related pairs at or
    above it and that of the others (Youden's index); with ``keep`` the greatest one that leaves
    at least this share of the related pairs. In hundredths.

    ValueError with fewer than 20 pairs of either kind.
    """
    kinds = np.array([pair.related for pair in pairs], dtype=bool)
    related, unrelated = np.sort(values[kinds]), np.sort(values[~kinds])
    for name, found in (("related", related), ("unrelated", unrelated)):
        if len(found) < LEAST_PAIRS:
            raise ValueError(f"expected {LEAST_PAIRS} {name} pairs or more, found {len(found)}")
    chosen = _threshold(related, unrelated, keep)
    rng = np.random.default_rng(1)
    again = [
        _threshold(
            np.sort(rng.choice(related, len(related))),
            np.sort(rng.choice(unrelated, len(unrelated))),
            keep,
        )
        for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(again, (5, 95), method="inverted_cdf")
    below = np.searchsorted(unrelated, related, "left") + np.searchsorted(
        unrelated, related, "right"
    )
    return Calibration(
        _share(related, unrelated, chosen),
        float(low),
        float(high),
        float(below.mean() / 2 / len(unrelated)),
        related,
        unrelated,
    )


def _threshold(
    related: NDArray[np.float64], unrelated: NDArray[np.float64], keep: float | None
) -> float:
    steps = np.arange(-100, 101) / 100
    kept = 1 - np.searchsorted(related, steps) / len(related)
    if keep is not None:
        return float(steps[kept >= keep].max())
    distance = kept - (1 - np.searchsorted(unrelated, steps) / len(unrelated))
    # The middle of a plateau is furthest from either kind.
    best = np.flatnonzero(distance >= distance.max() - 1e-12)
    return float(steps[best[len(best) // 2]])


def _share(related: NDArray[np.float64], unrelated: NDArray[np.float64], min_score: float) -> Share:
    return Share(
        min_score, float((related >= min_score).mean()), float((unrelated >= min_score).mean())
    )
