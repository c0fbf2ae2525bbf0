"""What two texts must have in common to say the same: numbers, days, and whether it is denied."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import Final

_WORDS: Final = """
no not never none nothing nobody nowhere neither nor without cannot
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred
thousand million billion first second third fourth fifth once twice half
monday tuesday wednesday thursday friday saturday sunday
january february march april may june july august september october november december
today tomorrow yesterday
"""
_TELLING: Final = frozenset(_WORDS.split())
_FIGURES: Final = re.compile(
    r"\d+"
    r"|[a-z]+(?:'t)?"
    r"|(?:周|星期|礼拜)[日天]"
    r"|[零〇一二两三四五六七八九十百千万亿半]+"
    r"|[不没无未别非]"
    r"|[今明昨后前][天日年]"
)


def figures(text: str) -> Counter[str]:
    """The numbers, names of days and months, and denials in a text (English and Chinese words,
    digits of any script), with their counts."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("’", "'")
    found: Counter[str] = Counter()
    for one in _FIGURES.findall(folded):
        if one.endswith("n't"):
            found["not"] += 1
        elif not one[0].isascii() or one.isdigit() or one in _TELLING:
            found[one] += 1
    return found


def same_figures(first: str, second: str) -> bool:
    """Whether two texts that lie near each other may say the same.

    To a model of language "in March 2027" and "in March 2028" are as good as equal (0.98), "on
    Monday" and "on Tuesday" too (0.97): who says the second wants the first replaced, and not
    the second dropped. A paraphrase that is taken for another fact ("3" and "three") only costs
    its room.
    """
    return figures(first) == figures(second)
