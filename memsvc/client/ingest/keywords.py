"""The words of a text that say what it is about."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Final

_LATIN: Final = re.compile(r"[^\W\d_](?:[\w'’-]*\w)?")
_HAN_RUN: Final = re.compile(r"[\u3400-\u9fff]+")
_SCRIPTS_WITHOUT_SPACES: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")

_FUNCTION_WORDS: Final = """
a about after again all also am an and any are as at back be because been before being but by
can can't come could did didn't do does doesn't doing don't done down each even ever every few
for from get getting give go going gonna good got great had has have haven't having he hear
her here hers hey hi him his how i'd i'll i'm i've if in into is isn't it it's its just kind
know last let let's like little lol look looks lot made make many may maybe me mean might more
most much must my need never new next nice no not now of off oh ok okay on once one only or
other our out over own people please pretty put quite real really right said same say see she
should so some someone something still such sure take tell than thank thanks that that's the
their them then there there's these they they're thing things think this those though through
time to today too took tomorrow totally try two up us use user assistant very wait wanna want
wanted was wasn't way we we're we've well went were what what's when where which while who why
will with won't wonderful wow would wouldn't yeah year years yes yesterday yet you you'd
you'll you're you've your yours awesome amazing glad happy hope feel feeling felt love loved
great system tool
"""
_STOP: Final = frozenset(_FUNCTION_WORDS.split())
_HAN_STOP: Final = frozenset(
    "的了是我你他她它们在有和就不也都很这那吗呢吧啊哦嗯要会能可以去来说看什么怎样么"
    "个为与及或但而被把让给对从到向还又再更最太真好请帮想得地着过没吃做用一二三些点下上里中"
)
LONGEST: Final = 40
"""Characters of a keyword; longer runs are identifiers or noise."""


def keywords(text: str) -> Counter[str]:
    """Words with their counts: of scripts with spaces the words of three letters and more
    that are no function words, folded; of Chinese the pairs of neighbouring characters
    between function characters."""
    found: Counter[str] = Counter()
    for word in _LATIN.findall(text):
        if _SCRIPTS_WITHOUT_SPACES.search(word):
            continue
        folded = word.casefold().replace("’", "'").removesuffix("'s")
        if 3 <= len(folded) <= LONGEST and folded not in _STOP:
            found[folded] += 1
    for run in _HAN_RUN.findall(text):
        for pair in itertools.pairwise(run):
            if not _HAN_STOP.intersection(pair):
                found["".join(pair)] += 1
    return found
