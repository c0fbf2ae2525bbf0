"""Cutting a long text into pieces that are one thought each."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from memsvc.client.ingest.sentences import Span, paragraphs, sentences

_CLAUSE_ENDS: Final = re.compile(r"[，、；：,;:](?=\s|[^\x00-\x7f])|[，、；：]|\s[-–—]\s")
_SPACES: Final = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class PieceSize:
    """Bounds of a piece, in characters (Unicode code points)."""

    least: int = 200
    """A piece of at least this length ends where its paragraph does."""
    most: int = 500
    """No piece is longer."""
    join_below: int = 100
    """A shorter piece joins its neighbour; only a text that is shorter itself stays so."""

    def __post_init__(self) -> None:
        if not 1 <= self.join_below <= self.least <= self.most or self.most < 2 * self.join_below:
            raise ValueError(
                "piece size: expected 1 <= join_below <= least <= most and most >= 2 * "
                f"join_below, not {self.join_below}, {self.least}, {self.most}"
            )


DEFAULT_SIZE: Final = PieceSize()


def pieces(text: str, size: PieceSize = DEFAULT_SIZE) -> list[str]:
    """The text in pieces of whole paragraphs, else of whole sentences, else cut where a clause
    or a word ends. Nothing is lost but the space between pieces; [] for a text of spaces."""
    return [text[a:b] for a, b in _joined(text, list(_packed(text, size)), size)]


def _packed(text: str, size: PieceSize) -> Iterator[Span]:
    current: Span | None = None
    for paragraph in paragraphs(text):
        fits = paragraph.end - paragraph.start <= size.most
        parts = [paragraph] if fits else list(_sentences(text, paragraph, size))
        for number, part in enumerate(parts):
            if current is not None and (
                part.end - current.start > size.most
                or (number == 0 and current.end - current.start >= size.least)
            ):
                yield current
                current = None
            current = Span(current.start if current else part.start, part.end)
    if current is not None:
        yield current


def _sentences(text: str, paragraph: Span, size: PieceSize) -> Iterator[Span]:
    for start, end in sentences(text, paragraph):
        while end - start > size.most:
            # In the upper half, so that the pieces are not needlessly small.
            cut = _best_cut(text, start + size.most // 2, start + size.most, last=True)
            yield _stripped(text, start, cut)
            start = _stripped(text, cut, end).start
        if start < end:
            yield Span(start, end)


def _joined(text: str, found: list[Span], size: PieceSize) -> list[Span]:
    """Pieces under ``join_below`` with a neighbour; where both together are too long, they are
    parted anew near their middle."""
    joined: list[Span] = []
    for span in found:
        if joined and (_short(span, size) or _short(joined[-1], size)):
            joined += _parted(text, Span(joined.pop().start, span.end), size)
        else:
            joined.append(span)
    return joined


def _short(span: Span, size: PieceSize) -> bool:
    return span.end - span.start < size.join_below


def _parted(text: str, span: Span, size: PieceSize) -> list[Span]:
    length = span.end - span.start
    if length <= size.most:
        return [span]
    low = span.start + max(size.join_below, length - size.most)
    high = span.end - max(size.join_below, length - size.most)
    middle = (span.start + span.end) // 2
    ends = [one.end for one in sentences(text, span) if low <= one.end <= high]
    cut = min(ends, key=lambda at: abs(at - middle), default=0) or _best_cut(text, low, high)
    parts = [_stripped(text, span.start, cut), _stripped(text, cut, span.end)]
    return [part for part in parts if part.start < part.end]


def _best_cut(text: str, low: int, high: int, *, last: bool = False) -> int:
    """A place in [low, high] where a clause ends, else a word, else any that parts no
    character from its accents; the ``last`` such, or the one nearest the middle."""
    middle = (low + high) // 2
    wish: Callable[[int], int] = (lambda at: -at) if last else (lambda at: abs(at - middle))
    for pattern in (_CLAUSE_ENDS, _SPACES):
        cuts = [one.end() for one in pattern.finditer(text, low, high)]
        if found := [at for at in cuts if low <= at <= high]:
            return min(found, key=wish)
    at = high if last else middle
    while at > low and at < len(text) and _belongs_to_the_one_before(text[at]):
        at -= 1
    return at


def _belongs_to_the_one_before(character: str) -> bool:
    return unicodedata.combining(character) > 0 or character in "\u200d\ufe0f"


def _stripped(text: str, start: int, end: int) -> Span:
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return Span(start, end)
