"""How many tokens a text takes, without a model."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

TokenCounter = Callable[[str], int]
"""Tokens of a text. Give the tokenizer of your model where the budget must be used to the full;
it is called in the thread of the caller, some hundred times for each recall."""

_RUNS: Final = re.compile(r"[A-Za-z]+|[0-9]+|[ \t]+|[^\x00-\x7f]|.", re.DOTALL)
_LETTERS: Final = 7
_DIGITS: Final = 3


def conservative_tokens(text: str) -> int:
    """An upper estimate of what common tokenizers make of a text: one token for a word and for
    each seven letters more of it, for three digits, for a mark of punctuation, and five for four
    characters that are not ASCII.

    Measured against the tokenizers cl100k, o200k, Claude 2 and DeepSeek V2, ten turns of real
    conversations together: at least what they say in 99 of 100 cases, for the one that makes
    the most tokens 7 % (English) and 5 % (Chinese) more on average. Newer ones make half as many
    of Chinese.
    """
    quarters = 0
    for run in _RUNS.findall(text):
        first = run[0]
        if not first.isascii():
            quarters += 5
        elif first.isalpha():
            quarters += 4 * (1 + (len(run) - 1) // _LETTERS)
        elif first.isdigit():
            quarters += 4 * -(-len(run) // _DIGITS)
        elif first not in " \t" or len(run) > 1:
            quarters += 4
    return -(-quarters // 4)
