"""Unicode folding: different ways to write the same thing become one.

Full and half width, composed and decomposed, upper and lower case, with and without accents.
Accents are taken off only where they decorate a letter (Latin, Greek, stress marks in Cyrillic,
vowel points in Arabic and Hebrew). Where a mark makes another letter it stays: Japanese voicing
marks (か and が), Indic vowel signs, Cyrillic й, Hangul syllables.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

# Marks behind a base; a run longer than this is cut before normalising, because normalisation
# sorts each run by insertion, which is quadratic. Real text has at most four or five; UAX 15
# ("stream-safe text") allows 30.
_LONGEST_MARK_RUN: Final = 30
_LONG_MARK_RUN: Final = re.compile(rf"([^\w\s\x00-\x7f]{{{_LONGEST_MARK_RUN}}})[^\w\s\x00-\x7f]+")

# Soft hyphen, joiners, byte-order mark, variation selectors; Arabic vowel points and tatweel;
# Hebrew points. Present or absent they spell the same word.
_INVISIBLE: Final = re.compile(
    "[\u00ad\u034f\u200c\u200d\u2060\ufe00-\ufe0f\ufeff\U000e0100-\U000e01ef"
    "\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u0591-\u05bd\u05bf\u05c1\u05c2\u05c7]+"
)
_MAY_HAVE_ACCENT: Final = re.compile("[\u00c0-\u024f\u0300-\u036f\u0370-\u052f\u1e00-\u1fff]")
_ACCENT: Final = re.compile(
    "([A-Za-z\u0250-\u02af\u0370-\u03ff\u1d00-\u1dbf])[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff]+"
    "|([\u0400-\u052f])[\u0300\u0301]+"
    "|([\u0415\u0435])\u0308"
)
# Letters that have no decomposition although everybody types them without their stroke, and the
# typographic forms of the apostrophe and the hyphen.
_LETTERS: Final = str.maketrans(
    {
        **dict(zip("øØłŁđĐħĦŧŦıĸŋŊ", "oOlLdDhHtTiknN", strict=True)),
        **{"æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ð": "d", "Ð": "D", "þ": "th", "Þ": "TH"},
        **dict.fromkeys("\u2018\u2019\u02bc\u02b9\u2032", "'"),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),
    }
)
_HAS_LETTERS: Final = re.compile("[" + "".join(map(chr, _LETTERS)) + "]")


def fold_text(text: str) -> str:
    """Fold width, composition, accents and invisible characters; leave case as it is.

    Case is left because it still tells where ``MemoryService`` has its seam. Text that differs
    only in Unicode normal form (NFC, NFD, NFKC, NFKD) folds to the same string. Never raises.
    """
    if text.isascii():
        return text
    if not unicodedata.is_normalized("NFKC", text):
        text = unicodedata.normalize("NFKC", _LONG_MARK_RUN.sub(r"\1", text))
    text = _INVISIBLE.sub("", text)
    if _MAY_HAVE_ACCENT.search(text) is not None:
        bare = _ACCENT.sub(r"\1\2\3", unicodedata.normalize("NFD", text))
        text = unicodedata.normalize("NFC", bare)
    if _HAS_LETTERS.search(text) is not None:
        text = text.translate(_LETTERS)
    return text


def fold_case(word: str) -> str:
    """Fold the case of a word that went through :func:`fold_text`."""
    return word.lower() if word.isascii() else fold_text(word.casefold())
