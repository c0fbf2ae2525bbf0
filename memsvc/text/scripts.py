"""Character ranges, written for use inside a regular-expression character class.

Python's ``\\w`` knows letters but not the vowel signs that Indic and South-East Asian scripts
write as combining marks, and it does not know which scripts are written without spaces. Both are
needed to cut text into terms, so the ranges stand here, by Unicode block.
"""

from __future__ import annotations

from typing import Final

HAN: Final = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Ideographs (Chinese characters, wherever they are used)."""

_KANA: Final = (
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\U0001aff0-\U0001b16f"
)
_BOPOMOFO: Final = "\u3105-\u312f\u31a0-\u31bf"
# Korean is written with spaces, but its particles cling to the noun, so that a search for the
# noun has to find it at the start of a longer word: pairs do that, whole words do not.
_HANGUL: Final = "\u1100-\u11ff\u3131-\u318e\ua960-\ua97c\uac00-\ud7fb"
_THAI_LAO: Final = (
    "\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46\u0e81-\u0eb0\u0eb2\u0eb3\u0ebd-\u0ec6\u0edc-\u0edf"
)
_MYANMAR_KHMER: Final = "\u1000-\u102a\u103f\u1050-\u1055\u1780-\u17b3\u17d7"

SPACELESS: Final = HAN + _KANA + _BOPOMOFO + _HANGUL + _THAI_LAO + _MYANMAR_KHMER
"""Base characters of scripts in which a space does not separate words."""

SPACELESS_MARKS: Final = (
    "\u3099\u309a"  # kana voicing marks that have no composed form with their base
    "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e"  # Thai
    "\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"  # Lao
    "\u102b-\u103e\u1056-\u1060\u1062-\u1064\u1067-\u106d\u1071-\u1074"  # Myanmar
    "\u1082-\u108d\u108f\u109a-\u109d"
    "\u17b4-\u17d3\u17dd"  # Khmer
)
"""Marks that belong to the spaceless base character before them."""

WORD_MARKS: Final = (
    "\u0300-\u036f"  # accents left on bases where they make another letter
    "\u0483-\u0487"
    "\u0900-\u0903\u093a-\u094f\u0951-\u0957\u0962\u0963"  # Devanagari
    "\u0981-\u0983\u09bc-\u09cd\u09d7\u09e2\u09e3"  # Bengali
    "\u0a01-\u0a03\u0a3c-\u0a51\u0a70\u0a71\u0a75"  # Gurmukhi
    "\u0a81-\u0a83\u0abc-\u0acd\u0ae2\u0ae3"  # Gujarati
    "\u0b01-\u0b03\u0b3c-\u0b57\u0b62\u0b63"  # Oriya
    "\u0b82\u0bbe-\u0bcd\u0bd7"  # Tamil
    "\u0c00-\u0c04\u0c3c-\u0c56\u0c62\u0c63"  # Telugu
    "\u0c81-\u0c83\u0cbc-\u0cd6\u0ce2\u0ce3"  # Kannada
    "\u0d00-\u0d03\u0d3b-\u0d4d\u0d57\u0d62\u0d63"  # Malayalam
    "\u0d81-\u0d83\u0dca-\u0ddf\u0df2\u0df3"  # Sinhala
    "\u0f18\u0f19\u0f35\u0f37\u0f39\u0f71-\u0f84\u0f86-\u0fbc"  # Tibetan
    "\u0730-\u074a\u07a6-\u07b0\u07eb-\u07f3"  # Syriac, Thaana, N'Ko
)
"""Marks that continue a word in scripts written with spaces (or, in Tibetan, with a tsheg)."""
