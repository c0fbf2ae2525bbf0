"""What to search for: the current input alone, unless it is too short to carry intent.

The whole history as a query finds what was talked about most, not what is asked now.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MAX_CHARACTERS: Final = 2_000
"""Longer queries keep their beginning and their end: what is asked stands before or behind what
was pasted. Also within the service's bound of 8,192 bytes, four bytes a character."""

SHORT_BELOW: Final = 2.5
"""Words below which an input carries no intent by itself; an ideograph counts as half of one."""

# Han, kana and Hangul: written without spaces, or with a syllable a character.
_DENSE: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_WORD: Final = re.compile(r"\w+")
_RECENT: Final = re.compile(
    r"\b(?:just (?:now|sa(?:y|id)|t(?:ell|old)|mention(?:ed)?|ask(?:ed)?|wr(?:ite|ote))|"
    r"a (?:moment|minute|second) ago|"
    r"(?:said|mentioned|told you|asked) (?:earlier|before|above)|"
    r"(?:last|previous) (?:message|question|answer|reply|turn)|"
    r"(?:say|said) (?:that|it) again|come again)\b|"
    r"刚才|刚刚|刚说|方才|上一[句条个]|前一[句条]|上面(?:说|提)|再说一[遍次]",
    re.IGNORECASE,
)


def carries_intent(text: str) -> bool:
    """False for inputs as "ok", "嗯" or "why?", which mean something only in their place."""
    dense = len(_DENSE.findall(text))
    words = len(_WORD.findall(_DENSE.sub(" ", text)))
    return words + dense / 2 >= SHORT_BELOW


def search_text(text: str, user_turns: Sequence[str]) -> str:
    """The text to search for: the input, behind ``user_turns`` (oldest first) if it is too
    short. Cut to MAX_CHARACTERS."""
    if not carries_intent(text):
        text = "\n".join([*(turn.strip() for turn in user_turns), text.strip()])
    return shortened(text)


def shortened(text: str) -> str:
    """A text that can be sent, of MAX_CHARACTERS at most; half characters (lone surrogates) as a
    broken paste leaves them become question marks."""
    text = text.strip()
    if len(text) > MAX_CHARACTERS:
        half = MAX_CHARACTERS // 2
        text = f"{text[: half - 1]}\n{text[-half:]}"
    return text.encode(errors="replace").decode()


def refers_to_recent(text: str) -> bool:
    """Whether an input refers to what was said a moment ago."""
    return _RECENT.search(text) is not None
