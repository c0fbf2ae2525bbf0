"""What is searched for, and what is kept on the agent's side."""

from __future__ import annotations

import pytest

from memsvc.client.recall.caches import ExpiringLru, RecentTurns, user_texts
from memsvc.client.recall.query import (
    MAX_CHARACTERS,
    carries_intent,
    refers_to_recent,
    search_text,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("text", ["", "ok", "嗯", "why?", "继续说", "好的好的", "yes please", "…"])
def test_inputs_without_intent_are_joined_with_what_the_user_said_before(text: str) -> None:
    assert not carries_intent(text)
    assert search_text(text, ["first", "second"]) == f"first\nsecond\n{text}".strip()


@pytest.mark.parametrize(
    "text", ["who is Anna", "我的护照在哪里", "When does it expire?", "비밀번호가 뭐"]
)
def test_inputs_with_intent_are_searched_alone(text: str) -> None:
    assert carries_intent(text)
    assert search_text(text, ["first", "second"]) == text


def test_a_pasted_text_keeps_its_beginning_and_its_end() -> None:
    text = "Question first. " + "x " * 9_000 + " question last"
    found = search_text(text, [])
    assert len(found) <= MAX_CHARACTERS and len(found.encode()) <= 8_192
    assert found.startswith("Question first.") and found.endswith("question last")
    assert len(search_text("猫 " + "猫" * 9_000, []).encode()) <= 8_192


@pytest.mark.parametrize(
    "text",
    [
        "What did I just say?",
        "the answer you gave a moment ago",
        "我刚才说了什么",
        "repeat the last message",
    ],
)
def test_immediate_references_are_known(text: str) -> None:
    assert refers_to_recent(text)


@pytest.mark.parametrize(
    "text", ["just a note about cats", "How long ago did we meet?", "我喜欢猫"]
)
def test_other_inputs_are_not_taken_for_them(text: str) -> None:
    assert not refers_to_recent(text)


def test_originals_expire_and_the_one_used_longest_ago_goes_first() -> None:
    clock = Clock()
    cache: ExpiringLru[str] = ExpiringLru(2, 60.0, clock)
    cache.put("a", "A")
    cache.put("b", "B")
    assert cache.get("a") == "A"
    cache.put("c", "C")
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("A", None, "C")
    clock.now += 59.9
    assert cache.get("c") == "C"
    clock.now += 0.1
    assert cache.get("c") is None
    cache.put("d", "D")
    cache.drop(["d"])
    assert cache.get("d") is None


def test_a_cache_of_no_size_keeps_nothing() -> None:
    cache: ExpiringLru[str] = ExpiringLru(0, 60.0, Clock())
    cache.put("a", "A")
    assert cache.get("a") is None


def test_the_last_twenty_turns_are_kept_for_half_an_hour_by_session() -> None:
    clock = Clock()
    recent = RecentTurns(20, 1_800.0, clock)
    for number in range(25):
        recent.note("s1", "user" if number % 2 else "assistant", f"turn {number}", 0)
    recent.note("s2", "user", "elsewhere", 0)
    kept = recent.of("s1")
    assert [turn.text for turn in kept] == [f"turn {n}" for n in range(5, 25)]
    assert user_texts(kept, 3) == ["turn 19", "turn 21", "turn 23"]
    assert user_texts(kept, 0) == []
    assert recent.numbered(kept[0].number) == kept[0]
    clock.now += 1_800.0
    assert recent.of("s1") == [] and recent.numbered(kept[0].number) is None


def test_a_turn_noted_twice_in_a_row_is_kept_once() -> None:
    recent = RecentTurns(20, 60.0, Clock())
    recent.note("s", "user", "hello", 0)
    recent.note("s", "user", "hello", 0)
    recent.note("s", "user", "  ", 0)
    assert len(recent.of("s")) == 1
    recent.clear("s")
    assert recent.of("s") == []
