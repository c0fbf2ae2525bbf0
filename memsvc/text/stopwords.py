"""Words that a query asks for without meaning them.

They are dropped from queries only. Documents keep them, so that a query of nothing but such words
("The Who", "it") still finds what it says.
"""

from __future__ import annotations

from typing import Final

STOP_WORDS: Final = frozenset(
    # Articles, pronouns, auxiliaries, conjunctions, prepositions, question words and a few
    # adverbs of English, case folded. Left out are those that are also names or things ("will",
    # "may", "can", "us", "own", "same").
    """
    a an the this that these those some any each both all few more most other such
    i me my we our you your he him his she her it its they them their
    what which who whom whose when where why how
    am is are was were be been being do does did doing have has had having would could should
    and or but nor if because so than as while until
    of at by for with about into through during before after to from in on off over under
    then once here there again no not only too very just now
    """.split()  # noqa: SIM905 - reads better than a hundred quotes
)

STOP_CHARACTERS: Final = frozenset(
    # The same for Chinese, by character: a term made of nothing else is a stop word.
    "的地得了着过是在有没不也都就还又才只很太更最"  # particles, copula, adverbs
    "我你您他她它们咱自己这那哪其此"  # pronouns
    "什么怎样谁何为几吗呢吧啊呀嘛"  # questions
    "和与跟同或及但而且因所以如若虽则"  # conjunctions
    "从到对把被给让向于由按比"  # prepositions
    "会能可要想该应曾经已将"  # auxiliaries
    "一个些次种"  # "a", measure words
)
