"""Text to terms: what the keyword index stores, and what a query asks it for.

Both sides go through the same folding (Unicode compatibility forms, case, accents, English
stems), so a query finds a word however it was typed. The sides differ only where they must: a
document carries every form it may be asked for (single characters *and* pairs of them in
scripts written without spaces), a query carries the most selective form it can.

Everything here is a pure function of its argument. Nothing raises, whatever the string holds,
and the work per string is bounded by :data:`MAX_CHARS` and :data:`MAX_TERMS`. DESIGN.md beside
this file has the measurements behind each choice.
"""

from __future__ import annotations

import operator
import re
from itertools import chain, islice, zip_longest
from typing import Final

import Stemmer

from memsvc.text.folding import fold_case, fold_text
from memsvc.text.scripts import HAN, SPACELESS, SPACELESS_MARKS, WORD_MARKS
from memsvc.text.stopwords import STOP_CHARACTERS, STOP_WORDS

ANALYZER_VERSION: Final = f"1/snowball-{Stemmer.version()}"
"""Names the rules that made a set of terms. Postings made under another version must be rebuilt
before they are asked, because equal words may have become different terms."""

MAX_TERM_CHARS: Final = 64
"""Longest term, in code points (so at most 256 bytes of UTF-8). Longer words are cut, on both
sides alike; 64 holds a SHA-256 in hexadecimal."""

MAX_CHARS: Final = 1 << 19
"""Characters of a text that are looked at; what follows is not indexed."""

MAX_TERMS: Final = 1 << 16
"""Terms that one document contributes at most; what follows is not indexed."""

MAX_QUERY_CHARS: Final = 1 << 15
"""Characters of a query that are looked at."""

MAX_QUERY_TERMS: Final = 1 << 10
"""Distinct terms that one query asks for at most."""

_CACHE_ENTRIES: Final = 1 << 16
_CACHED_WORD_CHARS: Final = 32
# A run this short is taken for one word, and only the pair is asked for: "北京" is not "东京".
_WHOLE_WORD_UNITS: Final = 2
_MAX_WORD_CHARS: Final = 1 << 10

# A word may hold separators inside, as paths, addresses, versions and identifiers do. The
# repetition is bounded so that no single match grows without limit.
_SEPARATOR: Final = r"(?:://|::|_+|[-./@:\\'+])"
_ASCII_WORD: Final = re.compile(
    rf"[A-Za-z0-9]++(?:{_SEPARATOR}[A-Za-z0-9]++){{0,31}}+(?:\+\+|\#(?![A-Za-z0-9]))?+"
)
_LETTER: Final = rf"(?:[^\W_{SPACELESS}{SPACELESS_MARKS}]|[{WORD_MARKS}])"
_TOKEN: Final = re.compile(
    rf"({_LETTER}++(?:{_SEPARATOR}{_LETTER}++){{0,31}}+(?:\+\+|\#(?!{_LETTER}))?+)"
    rf"|([{SPACELESS}{SPACELESS_MARKS}]+)"
)
_SEPARATORS: Final = re.compile(rf"({_SEPARATOR})|(?<=[a-z])(?=[A-Z])")
_NUMBERED: Final = re.compile(r"([A-Za-z]+)([0-9]+)|([0-9]+)([A-Za-z]+)")
_VERSION: Final = re.compile(r"(?<=[A-Za-z])[0-9]{1,8}(?:\.[0-9]{1,8}){2,5}")
_SUFFIX: Final = re.compile(r"(?:\+\+|\#)$")
_IDEOGRAPH: Final = re.compile(rf"[{HAN}]")
_CLUSTER: Final = re.compile(rf"[^{SPACELESS_MARKS}][{SPACELESS_MARKS}]*|[{SPACELESS_MARKS}]+")
_HAS_MARK: Final = re.compile(rf"[{SPACELESS_MARKS}]")

_STEMMER: Final = Stemmer.Stemmer("english", 0)


def terms(text: str) -> list[str]:
    """Return the terms under which a document is found, in text order, with repetitions.

    At most :data:`MAX_TERMS` terms of at most :data:`MAX_TERM_CHARS` code points, each of them
    encodable as UTF-8. The number of terms is the document's length for BM25. Never raises.
    """
    if text.isascii():
        words = _ASCII_WORD.findall(text[:MAX_CHARS])
        return list(islice(chain.from_iterable(map(_FORMS.__getitem__, words)), MAX_TERMS))
    found: list[str] = []
    for match in _TOKEN.finditer(fold_text(text[:MAX_CHARS])[:MAX_CHARS]):
        word, run = match.groups()
        if word is not None:
            found += _FORMS[word]
        else:
            units = _units(run)
            found += units
            found += map(operator.add, units, units[1:])
        if len(found) >= MAX_TERMS:
            del found[MAX_TERMS:]
            break
    return found


def query_terms(text: str) -> list[str]:
    """Return the distinct terms that a query asks for, in order of first appearance.

    The text is taken literally: no character in it is an operator. Stop words are left out
    unless nothing else remains. In scripts without spaces pairs of characters are asked for;
    a single character where it stands alone, or where it is an ideograph (and so a word or part
    of one) in a run too long to be one word. At most :data:`MAX_QUERY_TERMS` terms, each
    one that :func:`terms` could have made. Never raises.
    """
    asked: dict[str, None] = {}
    stopped: dict[str, None] = {}
    for match in _TOKEN.finditer(fold_text(text[:MAX_QUERY_CHARS])[:MAX_QUERY_CHARS]):
        word, run = match.groups()
        if word is not None:
            into = stopped if fold_case(word) in STOP_WORDS else asked
            into.update(dict.fromkeys(_FORMS[word]))
        else:
            units = _units(run)
            wanted: list[str] = list(map(operator.add, units, units[1:])) or units
            if len(units) > _WHOLE_WORD_UNITS:
                wanted += filter(_IDEOGRAPH.match, units)
            for term in wanted:
                (stopped if STOP_CHARACTERS.issuperset(term) else asked)[term] = None
        if len(asked) >= MAX_QUERY_TERMS:
            break
    return list(asked or stopped)[:MAX_QUERY_TERMS]


def _units(run: str) -> list[str]:
    """Split a run without spaces into characters, each with the marks that belong to it."""
    if _HAS_MARK.search(run) is None:
        return list(run)
    return [unit[: MAX_TERM_CHARS // 2] for unit in _CLUSTER.findall(run)]


class _Forms(dict[str, tuple[str, ...]]):
    """Word as written -> its terms. A cache: the values depend on the key alone.

    Emptied when full, which costs little and keeps a lookup a plain dictionary access. Threads
    may share it: at worst one computes again what another has just computed.
    """

    def __missing__(self, word: str) -> tuple[str, ...]:
        forms = _forms(word)
        if len(word) <= _CACHED_WORD_CHARS:
            if len(self) >= _CACHE_ENTRIES:
                self.clear()
            self[word] = forms
        return forms


_FORMS: Final = _Forms()


def _forms(word: str) -> tuple[str, ...]:
    """Return the terms of one word: its parts, neighbouring parts joined, and the whole joined.

    Neighbours matter because a query may name the end of a path or of an address (``x.py``,
    ``example.com``).
    """
    if word.isascii() and word.isalpha() and (word.islower() or word.istitle()):
        return (_stem(word.lower()),)  # most words, ten times as fast
    word = word[:_MAX_WORD_CHARS]
    suffix = _SUFFIX.search(word)
    parts, gaps = _parts(word[: suffix.start()] if suffix else word)
    forms = [_stem(part) for part in parts]
    if len(parts) > 1:
        joined = [_join(parts[i : i + 2], gaps[i : i + 1]) for i in range(len(gaps))]
        if len(parts) > 2:
            joined.append(_join(parts, gaps))
        forms += map(_stem, joined)
        # "v2.26.6" is asked for as "2.26.6".
        forms += _VERSION.findall(word)
    if suffix:
        forms.append(parts[-1][: MAX_TERM_CHARS - 2] + suffix.group())
    return tuple(forms)


def _parts(word: str) -> tuple[list[str], list[str]]:
    """Split a word into its parts, case folded, and the separators between them."""
    pieces = _SEPARATORS.split(word)
    parts: list[str] = []
    gaps: list[str] = []
    for piece, gap in zip_longest(pieces[::2], pieces[1::2]):
        numbered = _NUMBERED.fullmatch(piece)
        halves = [half for half in numbered.groups() if half] if numbered else [piece]
        parts += map(fold_case, halves)
        gaps += [""] * (len(halves) - 1)
        gaps.append(gap or "")
    del gaps[-1]
    # The English genitive is not a part: "Ann's" is "Ann".
    kept = [i for i, gap in enumerate(gaps) if not (gap == "'" and parts[i + 1] == "s")]
    return [parts[0], *(parts[i + 1] for i in kept)], [gaps[i] for i in kept]


def _join(parts: list[str], gaps: list[str]) -> str:
    """Join parts without their separators (``wi-fi`` finds ``wifi``).

    Between numbers the separators stay: ``2.26`` must not become ``226``.
    """
    if all(map(str.isdigit, parts)):
        return parts[0] + "".join(map(operator.add, gaps, parts[1:]))
    return "".join(parts)


def _stem(part: str) -> str:
    """Cut to the longest term and take off English endings."""
    part = part[:MAX_TERM_CHARS]
    return _STEMMER.stemWord(part) if part.isascii() and part.isalpha() else part
