"""Where paragraphs and sentences end, in Latin scripts and in Chinese and Japanese."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple


class Span(NamedTuple):
    """Part of a text, from ``start`` up to and without ``end``, in characters."""

    start: int
    end: int


_PARAGRAPH_ENDS: Final = re.compile(r"\n[ \t]*\n\s*")

# A sentence ends with its mark and what closes after it. Marks of scripts without spaces end it
# at once; a Latin one only before a space, so that 3.5 and example.com stay whole. A line break
# ends one too: lists and code have no marks. Possessive and from the first mark of a run only, or
# a line of ten thousand dots would be looked at from each of them.
_SENTENCE_ENDS: Final = re.compile(
    r"[。！？｡…]+[」』”’）】》\"')\]]*"
    r"|(?<![.!?؟।])[.!?؟।]++[\"'”’)\]]*+(?=\s|$)"
    r"|\n"
)

# After these a full stop is no end.
_SHORT_FORMS: Final = """
mr mrs ms dr prof sr jr st vs etc e.g i.e cf no vol fig eq approx inc ltd co corp dept est jan
feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun bzw z.b d.h u.a usw
ca nr str env p.ex sra
"""
_ABBREVIATIONS: Final = frozenset(_SHORT_FORMS.split())
_WORD_BEFORE: Final = re.compile(r"[^\s(\[\"']+$")


def paragraphs(text: str) -> list[Span]:
    """Paragraphs, parted by blank lines, without the space around them."""
    return list(_trimmed(text, _between(text, _PARAGRAPH_ENDS.finditer(text))))


def sentences(text: str, within: Span | None = None) -> list[Span]:
    """Sentences with their marks, without the space around them; of all of the text, or of a
    part of it. Together they hold every character that is not a space."""
    within = within or Span(0, len(text))
    ends = _SENTENCE_ENDS.finditer(text, within.start, within.end)
    cuts = _between(text, (m for m in ends if not _abbreviated(text, m, within.start)), within)
    return list(_trimmed(text, cuts, keep_marks=True))


def _between(
    text: str, marks: Iterator[re.Match[str]], within: Span | None = None
) -> Iterator[Span]:
    start, end = within or Span(0, len(text))
    for mark in marks:
        yield Span(start, mark.end())
        start = mark.end()
    yield Span(start, end)


def _trimmed(text: str, spans: Iterator[Span], keep_marks: bool = False) -> Iterator[Span]:
    for start, end in spans:
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
        if start < end:
            yield Span(start, end)


def _abbreviated(text: str, mark: re.Match[str], start: int) -> bool:
    if mark.group() != ".":
        return False
    found = _WORD_BEFORE.search(text, max(start, mark.start() - 12), mark.start())
    if found is None:
        return False
    word = found.group()
    # "J. Smith" is a name; "I." ends a sentence often enough.
    initial = len(word) == 1 and word.isalpha() and word.isupper() and word != "I"
    return initial or word.casefold() in _ABBREVIATIONS
