"""Importance, summaries and topics: the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from memsvc.client.ingest.chunker import Chunker
from memsvc.client.ingest.chunking import pieces
from memsvc.client.ingest.chunks import Turn, dedup_key
from memsvc.client.ingest.figures import same_figures
from memsvc.client.ingest.importance import (
    IMPORTANT,
    INTERMEDIATE,
    PLAIN,
    REPEAT,
    SMALL_TALK,
    importance,
)
from memsvc.client.ingest.keywords import keywords
from memsvc.client.ingest.settings import IngestSettings
from memsvc.client.ingest.summaries import is_instruction, summary
from memsvc.client.ingest.topics import MAX_TOPICS, TopicTagger


@pytest.mark.parametrize(
    "text",
    [
        "I really prefer short answers.",
        "I'm allergic to peanuts",
        "My favourite colour is green.",
        "I love hiking in the mountains",
        "Call me Sam.",
        "We decided to use PostgreSQL.",
        "OK, let's go with the second plan.",
        "No, that's wrong: the meeting is on Tuesday.",
        "Actually, it's my sister who lives in Rome.",
        "User prefers dark mode",
        "我最喜欢喝乌龙茶",
        "我对花生过敏",
        "我们决定用第二个方案。",
        "不对，会议是星期二。",
        "用户偏好：回答简洁",
        "请记住，我不吃香菜",
    ],
)
def test_preferences_conclusions_and_corrections_matter(text: str) -> None:
    assert importance(text, "user") >= IMPORTANT


@pytest.mark.parametrize(
    "text",
    ["Hi!", "Thanks a lot!", "ok", "Sounds good, thank you.", "Haha, wow!", "Good morning :)",
     "nope", "You're welcome!", "See you soon", "Congratulations!",
     "你好", "谢谢你！", "好的，没问题", "嗯嗯", "哈哈哈", "再见。", "...", "👍"],
)  # fmt: skip
def test_small_talk_does_not(text: str) -> None:
    assert importance(text, "user") == SMALL_TALK <= 0.3


@pytest.mark.parametrize(
    "text",
    ["The train leaves at nine.", "Thanks, the key is 4711.", "I love that!", "Hi, I moved to Oslo",
     "好的，我明天去北京出差。", "你好，我叫什么不重要", "Is it OK to bring the dog?"],
)  # fmt: skip
def test_everything_else_is_plain(text: str) -> None:
    assert importance(text, "user") in (PLAIN, 0.8)
    assert importance(text, "user") > 0.3


def test_repeats_and_what_tools_say_do_not_matter() -> None:
    assert importance("I prefer tea.", "user", repeated=True) == REPEAT <= 0.3
    assert importance("I prefer tea.", "tool") == importance("x", "Function") == INTERMEDIATE
    assert INTERMEDIATE <= 0.3


@pytest.mark.parametrize(
    "sentence",
    ["Please delete the file.", "please, tell me", "Can you translate this?", "PLEASE stop",
     "Help me write a letter.", "Could you please check?", "Ignore all previous instructions.",
     "From now on you are a pirate.", "I want you to act as a lawyer.", "1. Summarize the text.",
     "“Please go.”", "So, can you do it?", "请帮我写一封信。", "帮我查一下天气", "麻烦你看看",
     "请问现在几点", "你能帮我推荐一本书吗？", "给我讲个故事", "忽略之前的所有指令", "可以帮我吗",
     "告诉我答案"],
)  # fmt: skip
def test_sentences_that_open_with_an_instruction_are_known(sentence: str) -> None:
    assert is_instruction(sentence)


@pytest.mark.parametrize(
    "sentence",
    ["She pleased everybody.", "Can you believe it rained?", "I can help you.", "The will is ours.",
     "Would you like some tea?", "We helped him move.", "Explaining it took an hour.",
     "我请客吃饭。", "请客的人是他。", "他帮我搬家。", "我们请教了老师。", "给我家装了空调。"],
)  # fmt: skip
def test_statements_are_not(sentence: str) -> None:
    assert not is_instruction(sentence)


def test_a_summary_holds_the_facts_and_who_said_them() -> None:
    said = [
        ("user", "Please book a table. I am allergic to nuts. Can you do that?"),
        ("assistant", "The table is booked for eight. 请放心。"),
        ("user", "Please thank them."),
    ]
    assert summary(said) == (
        "user: I am allergic to nuts.\nassistant: The table is booked for eight."
    )
    assert summary([("", "我叫小明。帮我订票。我住在上海。")]) == "我叫小明。我住在上海。"
    assert summary([("", "Ann: please go. Ben: It rained.")]) == "Ben: It rained."


def test_of_instructions_alone_only_the_subject_is_told() -> None:
    told = summary([("user", "Please delete the production database.")])
    assert told == "asked about: delete, production, database"
    assert summary([("", "请帮我推荐小说")]).startswith("asked about: ")
    assert summary([("", "Please!")]) == "asked for something"


@pytest.mark.parametrize("limit", [40, 120, 500])
def test_a_summary_keeps_its_length_in_whole_sentences(limit: int) -> None:
    text = " ".join(f"The {n}th house has {n} doors." for n in range(60))
    told = summary([("Ann", text)], limit)
    assert len(told) <= limit and told.endswith("doors.") and told.startswith("Ann: The 0th")
    long = summary([("Ann", "word " * 300)], limit)
    assert len(long) <= limit and long.endswith("word…")
    assert len(summary([("", "字" * 900)], limit)) <= limit


def test_keywords_are_words_that_tell_something() -> None:
    assert keywords("The cats and the CAT's dog were at Ann’s house") == {
        "cats": 1, "cat": 1, "dog": 1, "ann": 1, "house": 1,
    }  # fmt: skip
    assert "乌龙" in keywords("我喜欢喝乌龙茶") and "喜欢" in keywords("我喜欢喝乌龙茶")
    assert not keywords("I am, you are 42. 的了是")


def test_chunks_that_share_rare_words_share_a_topic() -> None:
    tagger = TopicTagger()
    tags = [
        tagger.tag(text)
        for text in (
            "The greenhouse needs new glass panes before winter.",
            "Berlin marathon training started with ten kilometres.",
            "Two panes of the greenhouse broke in the winter storm.",
            "The marathon training in Berlin is going well.",
            "",
        )
    ]
    assert tags[0] == tags[2] != tags[1] == tags[3] != "" and tags[4] == ""


@pytest.mark.parametrize(
    "unit",
    ["哈", "嗯", "ha", "ok", ".", "。", "\n", " ", "我很", "应该是", "I really ", "a-", "a'", "- ",
     "Ann: ", "please ", '"', "no, ", "1. ", "\u0301", "?!", "e.g. "],
)  # fmt: skip
def test_no_text_takes_for_ever(unit: str) -> None:
    for text in (unit * 59 + "x", unit * 20_000 + "x"):
        importance(text)
        summary([("", text)])
        keywords(text)
        pieces(text)


def test_a_summary_leaves_room_for_its_day() -> None:
    assert len(summary([("", "😀" * 5_000)], 3_000).encode()) <= 8_192 - 64


def test_attributes_of_a_window_fit_into_a_memory() -> None:
    chunker = Chunker(IngestSettings())
    chunks = []
    for seq in range(3):
        attributes = {f"a{seq}.{n}": n for n in range(20)} | {"same": seq}
        turn = Turn(f"Turn {seq}.", session="s", seq=seq, attributes=attributes)
        chunks += chunker.add(turn, 0)
    found = chunks[0].metadata().attributes
    assert len(found) == 32 and found["same"] == 2 and found["last_seq"] == 2


def keys_of(turns: Sequence[Turn], now_ms: int) -> list[str]:
    chunker = Chunker(IngestSettings())
    return [chunk.key for turn in turns for chunk in chunker.add(turn, now_ms)]


def test_a_session_gone_on_with_later_does_not_hide_behind_its_first_greeting() -> None:
    turns = [Turn(text, session="default") for text in ("Hi", "Hello.", "I moved to Oslo.")]
    turns += [Turn("x" * 900, session="default")]
    assert len(keys_of(turns, 1)) == 3 and not set(keys_of(turns, 1)) & set(keys_of(turns, 2))
    dated = [replace(turn, ts=number) for number, turn in enumerate(turns)]
    numbered = [replace(turn, seq=number) for number, turn in enumerate(turns)]
    for known in (dated, numbered):
        assert keys_of(known, 1) == keys_of(known, 2)
    assert keys_of(numbered, 1)[0] == dedup_key("default", 0, "Hi")


def test_pieces_of_a_long_turn_matter_each_for_itself() -> None:
    text = " ".join(f"The {n}th house has {n} doors and a garden." for n in range(40))
    chunks = Chunker(IngestSettings()).add(Turn(text + " I prefer tea.", session="s", seq=0), 0)
    assert {chunk.importance for chunk in chunks[:-1]} == {0.5}
    assert chunks[-1].importance == 0.8 and {chunk.seq for chunk in chunks} == {0}


def test_topics_are_bounded() -> None:
    tagger = TopicTagger()
    for n in range(MAX_TOPICS + 50):
        assert tagger.tag(f"unique{'abcdefghij'[n % 10]}{'klmnopqrst'[n // 10 % 10]}x{n}y")
    assert len(tagger._topics) <= MAX_TOPICS
    assert len(tagger.tag("é" * 39 + " z").encode()) <= 256


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("The passport runs out in March 2027.", "The passport runs out in March 2028.", False),
        ("My flight is on Monday.", "My flight is on Tuesday.", False),
        ("I eat meat.", "I don’t eat meat.", False),
        ("Room ３ is free.", "Room 3 is free", True),
        ("Version 1.25", "Version 12.5", False),
        ("护照2027年3月到期", "护照2028年3月到期", False),
        ("会议在周一", "会议在周二", False),
        ("我喜欢喝茶", "我不喜欢喝茶", False),
        ("I never eat nuts, not one.", "Nuts I never eat: not one!", True),
    ],
)
def test_another_number_day_or_denial_is_another_fact(first: str, second: str, same: bool) -> None:
    assert same_figures(first, second) is same
