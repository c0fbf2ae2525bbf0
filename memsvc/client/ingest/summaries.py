"""What of a text is put before the model: facts, no instructions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from memsvc.client.ingest.keywords import keywords
from memsvc.client.ingest.sentences import sentences
from memsvc.domain.limits import MAX_SUMMARY_BYTES

SUMMARY_CHARACTERS: Final = 700
"""A chunk has no more, so its summary says all its facts: words are looked for in summaries."""

# A model that reads "please delete the files" among its memories may do it. The opening of a
# sentence tells: a courtesy, a wish that somebody do something, or a bare order.
_INSTRUCTION: Final = re.compile(
    r"""^[\s"'“‘「『(（*>-]*(?:\d+[.)、]\s*)?(?:
        (?:so|and|then|now|ok|okay|also|hey|hi|well)[,\s]+(?=\S))?
    (?:
        (?:please|pls|plz|kindly)\b
      | (?:can|could|would|will)\ you\b(?!\ (?:believe|imagine|like|be\b))
      | (?:would|do)\ you\ mind\b
      | i\ (?:want|need|would\ like|'d\ like)\ you\ to\b
      | (?:(?:help|tell|show|give|remind|write)\ me|let\ me\ know|make\ sure|disregard|
           ignore\ (?:all|any|the|previous|prior)|forget\ (?:all|everything|previous)|
           (?:do\ not|don't)\ (?:mention|tell|say|reveal)|from\ now\ on|
           you\ (?:must|should)\ (?:now|always|never)|
           act\ as|pretend|translate|summari[sz]e|rewrite|explain)\b
      | (?:麻烦|劳驾|拜托)
      | 请(?!客|假|教(?:了|过)|问了|柬|求(?:被|了))
      | (?:可以|能不能|能|可不可以|能否)?(?:帮|替|给)(?:我|咱|忙)(?!们?(?:家|妈|爸|的))
      | (?:你|您)(?:能|可以|要|得|必须|应该|需要|来|先)(?:不能|不可以)?
        (?:帮|给|为|替|告诉|推荐|写|做)
      | (?:告诉|提醒|教)我(?!们)
      | (?:忽略|无视|忘记)(?:之前|以上|前面|所有|一切)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_LABEL: Final = re.compile(r"^[^\s:：]{1,40}(?: [^\s:：]{1,40})?[:：]\s*")
_CJK: Final = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uff00-\uffef\u3000-\u303f]$")
_TOPIC_WORDS: Final = 8
ROOM_BYTES: Final = 64
"""Left free of what the service takes, for a line with the day."""


def is_instruction(sentence: str) -> bool:
    """Whether a sentence opens with an instruction (please, can you, 请, 帮我, 麻烦)."""
    return _INSTRUCTION.match(sentence) is not None


def summary(turns: Sequence[tuple[str, str]], limit: int = SUMMARY_CHARACTERS) -> str:
    """The sentences of some turns that are no instructions, in order, as (label, text) pairs;
    a label ("Ann") stands before what is left of its turn. At most ``limit`` characters of whole
    sentences; a first sentence that is longer is cut at a word.

    Where nothing is left, it tells the subject in keywords ("asked about: ..."), so that the
    service does not show the text itself, and words still find it.
    """
    lines: list[str] = []
    used = 0
    full = False
    for label, text in turns:
        kept: list[str] = []
        for start, end in sentences(text):
            sentence = text[start:end]
            if is_instruction(_LABEL.sub("", sentence, count=1)) or is_instruction(sentence):
                continue
            cost = len(sentence) + 1 + (len(label) + 2 if not kept else 0)
            if used + cost > limit + 1:
                full = True
                if not lines and not kept:
                    kept.append(_cut(sentence, limit - len(label) - 2))
                break
            used += cost
            kept.append(sentence)
        if kept:
            said = _sentences_joined(kept)
            lines.append(f"{label}: {said}" if label else said)
        if full:
            break
    return _bounded("\n".join(lines) or _subject([text for _, text in turns]))


def _cut(sentence: str, room: int) -> str:
    if len(sentence) <= room:
        return sentence
    at = sentence.rfind(" ", room // 2, room)
    return sentence[: at if at > 0 else max(room - 1, 1)].rstrip() + "…"


def _sentences_joined(kept: Sequence[str]) -> str:
    said = kept[0]
    for sentence in kept[1:]:
        said += ("" if _CJK.search(said) else " ") + sentence
    return said


def _subject(texts: Sequence[str]) -> str:
    words = [word for word, _ in keywords("\n".join(texts)).most_common(_TOPIC_WORDS)]
    return "asked about: " + ", ".join(words) if words else "asked for something"


def _bounded(text: str) -> str:
    return text.encode()[: MAX_SUMMARY_BYTES - ROOM_BYTES].decode(errors="ignore")
