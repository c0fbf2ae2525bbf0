"""How much a turn matters, by rules: 0 is noise, 1 must never be lost."""

from __future__ import annotations

import re
from typing import Final

PLAIN: Final = 0.5
"""Whatever no rule is about. Below 0.6, where the service warns of inflation."""
PREFERENCE: Final = 0.8
CONCLUSION: Final = 0.85
CORRECTION: Final = 0.9
SMALL_TALK: Final = 0.2
REPEAT: Final = 0.2
INTERMEDIATE: Final = 0.2
"""What tools and functions say on the way to an answer."""

IMPORTANT: Final = 0.8
"""From here on an item is kept when others are let go."""

_TOOL_ROLES: Final = frozenset({"tool", "function", "ipython", "observation", "system"})


def _compiled(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


_CORRECTION: Final = _compiled(
    r"^(?:no|nope)[,.]\s+(?:it|that|i|he|she|they|we|not)\b",
    r"\bthat(?:'s| is) (?:wrong|not right|incorrect|not what i)\b",
    r"\bi (?:meant|misspoke|was wrong|made a mistake)\b",
    r"\bcorrection:",
    r"\bactually,? (?:it|that|my|i'm|i am|the|we)\b",
    r"^不对|不是[^，。！？]{1,20}而是|更正|纠正|我说错|说错了|搞错|记错",
    r"其实(?:是|应该)|应该是[^吗？]{1,40}而不是",
)
_CONCLUSION: Final = _compiled(
    r"\b(?:we|i)(?:'ve| have)? (?:decided|agreed|settled|concluded|confirmed)\b",
    r"\blet(?:'s|s| us) go with\b",
    r"\b(?:it's|it is|that's|is) (?:decided|confirmed|settled|final)\b",
    r"\b(?:the|our|final) (?:decision|conclusion|agreement) (?:is|was)\b",
    r"(?:我们|我|已经|最终)?(?:决定|确认|敲定|定下|商定)(?:了|用|采用|是|：|:)",
    r"结论(?:是|：|:)|就这么定",
)
_PREFERENCE: Final = _compiled(
    r"\bi (?:really |absolutely |always |usually |much |strongly |definitely )*"
    r"(?:prefer|hate|dislike|can't stand|cannot stand|avoid)\b",
    r"\bi (?:really |absolutely |just )*(?:love|like|enjoy|adore) "
    r"(?!that|this|it|your|how|the idea|to hear|hearing|seeing you)",
    r"\bi(?:'m| am) (?:allergic|a vegetarian|a vegan|vegetarian|vegan|fond of|into)\b",
    r"\bmy (?:(?:all-time|absolute) )?fav(?:ou?rite)s?\b",
    r"\b(?:call me|my name is|i go by)\b",
    r"\b(?:remember|note|keep in mind) (?:that|this|:)",
    r"\bi (?:never|always) (?:eat|drink|use|want|take|work|go|wear)\b",
    r"\buser (?:prefers|likes|dislikes|wants|hates)\b",
    r"我(?:们)?(?:[很最也更还就]|真的|非常|特别|比较|超级?|一直|平时|从小)*"
    r"(?:喜欢|喜爱|热爱|讨厌|偏好|偏爱|习惯|不喜欢|不爱|不吃|不喝|过敏|受不了|爱(?:吃|喝|看|听|好))",
    r"(?:用户)?偏好[：:]|我(?:的名字)?叫|称呼我|记住|别忘了|我对[^，。]{1,12}过敏",
)
# Possessive, or runs of one syllable would be tried in every division. So each word must be a
# whole one by itself: "no" is not the beginning of "nope".
_SMALL_TALK: Final = re.compile(
    r"""^[\W_]*(?:
      (?:hi|hey|hello|yo|good\ (?:morning|afternoon|evening|night)|how\ are\ you(?:\ doing)?|
         what's\ up|thanks?(?:\ you)?|thank\ you|thx|cheers|bye|goodbye|see\ (?:you|ya)|take\ care|
         talk\ (?:soon|later|to\ you)|ok(?:ay)?|sure|yes|yeah|yep|no|nope|cool|nice|great|wow|lol|
         haha++|awesome|sounds\ good|no\ problem|you're\ welcome|welcome|congrats?|congratulations|
         absolutely|definitely|exactly|right|got\ it|i\ see|so|much|very|again|a\ lot|for\ (?:that|
         the\ help|your\ help|sharing|asking)|there|mel|man|buddy|all|too|then|later|soon)(?![a-z])
      |你好|您好|嗨|哈喽|早上好|晚上好|下午好|晚安|早安|谢谢(?:你|您)?|多谢|不客气|再见|拜拜|
       好的?|嗯++|哦++|行|可以|是的?|对的?|没问题|哈哈++|呵呵|太好了|不用谢|辛苦了|知道了|明白了?|收到|了|吧|啊|呀|呢|啦
    )++(?:[\W_]+|$)""",
    re.IGNORECASE | re.VERBOSE,
)
_SHORT: Final = 60
"""Characters up to which a turn may be nothing but small talk."""


def importance(text: str, role: str = "", *, repeated: bool = False) -> float:
    """0 to 1 for one turn. ``repeated``: the same was said shortly before."""
    if role.casefold() in _TOOL_ROLES:
        return INTERMEDIATE
    if repeated:
        return REPEAT
    if is_small_talk(text):
        return SMALL_TALK
    if _CORRECTION.search(text):
        return CORRECTION
    if _CONCLUSION.search(text):
        return CONCLUSION
    if _PREFERENCE.search(text):
        return PREFERENCE
    return PLAIN


def is_small_talk(text: str) -> bool:
    """Whether a short text says nothing but greetings, thanks and assent."""
    rest = text.strip()
    if len(rest) > _SHORT:
        return False
    while rest:
        found = _SMALL_TALK.match(rest)
        if found is None or found.end() == 0:
            break
        rest = rest[found.end() :]
    return not any(one.isalnum() for one in rest)
